"""What is learnt of answers' lengths outlives the process, within bounds, and no file can keep a gateway from starting."""

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from core.clock import SystemClock
from core.service import Edges
from gateway.learnt import LearntFile, beside
from predictor.blend import Blend
from predictor.features import Asked
from predictor.kept import OLDEST_S, TEMPLATES, dump, learnt_of, load, restore
from predictor.length import lengths_of
from predictor.model import LengthModel, shipped_model

MODEL, EDGES, WALL_S = shipped_model(), Edges(), 1e9
TALE = Asked(b"Tell me the secret tale of Rumpelstiltskin", hint_tokens=300)


def taught(model: LengthModel | None = MODEL, templates: int = 3, answers: int = 200) -> Blend:
    blend, rng = Blend(model), random.Random(5)
    for at in range(answers):
        name = b"template%d" % (at % templates)
        told = blend.foretell(name, None, EDGES, TALE, b"ann")
        blend.learn(told, round(rng.lognormvariate(3 + at % templates % 4, 0.4)) + 1)
    return blend


def file_of(*blends: Blend, service: str = "chat") -> bytes:
    return dump([learnt_of(blend, service, WALL_S, 3.5) for blend in blends])


def again(blend: Blend) -> Blend:
    (one,) = load(file_of(blend), WALL_S + 60)
    found = Blend(blend.model)
    restore(found, one)
    return found


@pytest.mark.parametrize("model", [MODEL, None])
def test_the_next_process_foretells_what_this_one_would(model: LengthModel | None) -> None:
    blend = taught(model)
    found = again(blend)
    for name in (b"template0", b"template1", b"template2", b"never seen"):
        mine, other = (one.foretell(name, None, EDGES, TALE, b"ann") for one in (blend, found))
        assert other.prediction.p == pytest.approx(mine.prediction.p, abs=0.02)
        assert other.prediction.q90_tokens == pytest.approx(mine.prediction.q90_tokens, rel=0.03)
        assert (other.trust, other.hint and other.hint.weight) == (mine.trust, mine.hint and mine.hint.weight)
    assert found.calibration == blend.calibration and found.sizes == blend.sizes and found.templates == blend.templates
    fresh = Blend(model).foretell(b"template2", None, EDGES, TALE, b"ann").prediction
    assert fresh.p != pytest.approx(mine.prediction.p, abs=0.05), "or the test would hold of a new one"


def test_it_is_bounded_and_holds_no_text() -> None:
    blend = taught(templates=3000, answers=3000)
    data = file_of(blend)
    (one,) = load(data, WALL_S)
    assert [state.name for state in one.templates] == [b"template%d" % at for at in range(3000 - TEMPLATES, 3000)]
    assert len(data) < 400 * TEMPLATES + 10_000
    assert b"Rumpel" not in data and b"secret" not in data
    blend = taught(templates=1, answers=5000)
    assert len(file_of(blend)) < 10_000, "however many answers"


def test_what_is_old_or_was_learnt_beside_another_model_is_left() -> None:
    data = file_of(taught())
    assert load(data, WALL_S + OLDEST_S - 1) and not load(data, WALL_S + OLDEST_S + 1)
    (one,) = load(data, WALL_S)
    other = LengthModel(replace(MODEL.body, level=MODEL.body.level + 1))
    with pytest.raises(ValueError, match="another length model"):
        restore(Blend(other), one)
    with pytest.raises(ValueError, match="another length model"):
        restore(Blend(None), one)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.binary(min_size=1, max_size=4))
def test_a_damaged_file_is_refused(at: int, other: bytes) -> None:
    data = DATA[: at % len(DATA)] + other + DATA[at % len(DATA) + len(other) :]
    if data.strip() != DATA.strip():
        with pytest.raises(ValueError):
            load(data, WALL_S)
    with pytest.raises(ValueError):
        load(DATA[: at % (len(DATA) - 2)], WALL_S)


DATA = file_of(taught(answers=12))


@pytest.mark.parametrize(
    "fault",
    [
        {"bytes_per_token": 0.0}, {"bytes_per_token": 1e9},
        {"calibration": {"offset": 1e9}}, {"calibration": {"judged": 1, "missed": 2}},
        {"state": {"answers": -1}}, {"state": {"shared": [[0, 1.0], [0, 1.0]]}}, {"state": {"shared": [[68, 1.0]]}},
        {"state": {"shared": [[-1, 1.0]]}}, {"state": {"shared": [[3, -1.0]]}}, {"state": {"shared": [[3, 1e300]]}},
        {"state": {"spread": {"value": 0.0}}}, {"state": {"level": {"value": 1e6}}},
        {"state": {"level": {"weight": 0.0}}}, {"state": {"level": {"memory": 0.0}}}, {"state": {"level": "high"}},
        {"state": {"sizes": {"factors": [1.0, 0.0, 1.0]}}}, {"state": {"sizes": {"factors": [1.0, 99.0, 1.0]}}},
        {"state": {"sizes": {"trust": 2.0}}}, {"state": {"sizes": {"track": {"lead": 1e9}}}},
    ],
)  # fmt: skip
def test_what_no_predictor_could_have_learnt_is_refused_with_a_good_checksum(fault: dict) -> None:
    from predictor.kept import SCHEMA
    from predictor.sealed import seal

    def spoil(tree: dict, by: dict) -> None:
        for key, value in by.items():
            if isinstance(value, dict):
                spoil(tree[key], value)
            else:
                tree[key] = value

    (tree,) = json.loads(DATA)["body"]
    spoil(tree, fault)
    with pytest.raises(ValueError):
        load(seal(json.dumps([tree]).encode(), SCHEMA), WALL_S)


def test_a_histogram_without_answers_still_foretells() -> None:
    """NaN would be the answer of a division by no weight at all."""
    assert sum(lengths_of([]).weights) == 0
    (one,) = load(file_of(taught(None)), WALL_S)
    for shared in ([], [(3, 1.0)]):
        if shared:
            found = Blend(None)
            restore(found, replace(one, state=replace(one.state, shared=shared)))
            assert 1 <= found.foretell(b"x", None, EDGES).prediction.q50_tokens < 1e6
        else:
            tree = json.loads(file_of(taught(None)))["body"]
            tree[0]["state"]["shared"] = shared
            from predictor.kept import SCHEMA
            from predictor.sealed import seal

            with pytest.raises(ValueError, match="histogram"):
                load(seal(json.dumps(tree).encode(), SCHEMA), WALL_S)


def test_a_file_of_before_there_were_size_factors_is_read() -> None:
    (one,) = load(DATA, WALL_S)
    found = Blend(MODEL)
    restore(found, replace(one, state=replace(one.state, sizes=None)))
    assert found.sizes == Blend(MODEL).sizes and found.templates == 3


def service(blend: Blend, challenger: Blend | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        predictor=blend,
        challenger=challenger and SimpleNamespace(blend=challenger),
        estimate=SimpleNamespace(bytes_per_token=4.2),
    )


def test_the_gateway_writes_and_reads_it_for_those_who_serve_and_those_who_would(tmp_path: Path) -> None:
    path, clock = beside(tmp_path / "controller.json"), SystemClock()
    assert path.name == "controller.lengths.json"
    other = LengthModel(replace(MODEL.body, level=9.0))
    one = service(taught(), taught(other))
    one.estimate.bytes_per_token = 2.5
    LearntFile(path, {"chat": one}, clock).write()
    again = service(Blend(MODEL), Blend(other))
    assert LearntFile(path, {"chat": again, "new": service(Blend(MODEL))}, clock).restore() == ["chat"]
    assert again.predictor.templates == 3 == again.challenger.blend.templates and again.estimate.bytes_per_token == 2.5
    crowned = service(Blend(other))
    assert LearntFile(path, {"chat": crowned}, clock).restore() == ["chat"], "a winner that was named goes on"
    assert [kept.name for kept in tmp_path.iterdir()] == [path.name], "nothing half written is left"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema":1,"sha256":"","body":[]}', DATA[:-9], b"\xff" * 99])
def test_a_file_that_is_none_is_no_harm(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "controller.lengths.json"
    path.write_bytes(content)
    one = service(Blend(MODEL))
    held = LearntFile(path, {"chat": one}, SystemClock())
    assert held.restore() == [] and one.predictor.templates == 0
    held.write()
    assert held.restore() == ["chat"]
    (tmp_path / "file").write_text("")
    LearntFile(tmp_path / "file" / "x.json", {"chat": one}, SystemClock()).write()


def test_it_is_written_while_the_gateway_runs(tmp_path: Path) -> None:
    class Ticks(SystemClock):
        async def sleep(self, duration_s: float) -> None:
            await asyncio.sleep(0.001)

    async def written(path: Path) -> None:
        run = asyncio.create_task(LearntFile(path, {"chat": service(taught(templates=70))}, Ticks()).run())
        while not path.exists():
            await asyncio.sleep(0.001)
        run.cancel()

    asyncio.run(asyncio.wait_for(written(tmp_path / "x.json"), 30))
    (one,) = load((tmp_path / "x.json").read_bytes(), SystemClock().wall_s())
    assert len(one.templates) == 70
