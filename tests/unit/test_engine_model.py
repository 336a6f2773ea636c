"""The engine models: their answers agree with the published figures they come from, and never turn the wrong way."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.engine_model import GPUS, MODELS_DIR, EngineModel, engine_model_names, load_engine_model

NAMES = {"llama-3.1-8b", "llama-3.1-70b", "llama-2-70b", "qwen3-32b", "gpt-oss-120b"}
ON = {(gpu, name): load_engine_model(name, gpu) for gpu in GPUS for name in engine_model_names(gpu)}
H100 = {name: model for (gpu, name), model in ON.items() if gpu == "h100"}
PLACES = [(model, tp) for model in ON.values() for tp in model.points]
places = st.sampled_from(PLACES)
clocks = st.floats(150, 2200)


def test_names_and_what_is_unknown() -> None:
    assert all(set(engine_model_names(gpu)) == NAMES for gpu in GPUS)
    assert load_engine_model("llama-3.1-70b") == load_engine_model("llama-3.1-70b", gpu="h100")
    with pytest.raises(ValueError, match=r"known: llama-3\.1-8b, "):
        load_engine_model("gpt-2")
    with pytest.raises(ValueError, match=r"no TP8; known: \[1, 2, 4\]"):
        H100["llama-3.1-8b"].decode_step_s(8, 1980, 1, 1)
    with pytest.raises(ValueError, match=r"gpu 'l20'; known: h100, h200, a100"):
        load_engine_model("llama-3.1-8b", "l20")


@pytest.mark.parametrize(
    ("name", "tp", "batch", "context", "measured_ms"),
    [
        ("llama-3.1-8b", 1, 64, 500, 11.5),  # ML.ENERGY v3, lm-arena-chat
        ("llama-3.1-8b", 1, 256, 500, 26.1),
        ("llama-3.1-8b", 1, 691, 500, 62.9),
        ("llama-3.1-70b", 4, 64, 500, 22.4),
        ("llama-3.1-70b", 4, 256, 500, 39.8),
        ("llama-3.1-70b", 4, 512, 500, 73.9),
        ("qwen3-32b", 2, 64, 850, 22.4),
        ("gpt-oss-120b", 1, 32, 1490, 18.0),
        ("gpt-oss-120b", 2, 8, 1490, 7.2),
        ("gpt-oss-120b", 2, 512, 1490, 48.8),
        ("llama-2-70b", 8, 52, 767, 28.8),  # jovan-vllm, SL at 3/s
        ("llama-2-70b", 4, 60, 767, 39.8),
    ],
)
def test_decode_steps_are_within_a_tenth_of_the_source(
    name: str, tp: int, batch: int, context: int, measured_ms: float
) -> None:
    step_ms = 1e3 * H100[name].decode_step_s(tp, 1980, batch, batch * context)
    assert step_ms == pytest.approx(measured_ms, rel=0.1)


@pytest.mark.parametrize(
    ("name", "tp", "batch", "prefill", "measured_w"),
    [
        ("llama-3.1-8b", 1, 8, 0, 486),
        ("llama-3.1-8b", 1, 512, 0, 688),
        ("llama-3.1-70b", 4, 128, 0, 2184),
        ("llama-2-70b", 8, 0, 4096, 4800),  # DynamoLLM, Fig. 3
    ],
)
def test_watts_are_within_a_tenth_of_the_source(
    name: str, tp: int, batch: int, prefill: int, measured_w: float
) -> None:
    assert H100[name].watts(tp, 1980, batch, prefill) == pytest.approx(measured_w, rel=0.1)


@pytest.mark.parametrize(("model", "tp"), PLACES, ids=lambda value: getattr(value, "model", str(value)))
def test_idle_kv_and_the_energy_valley(model: EngineModel, tp: int) -> None:
    top = model.clocks_mhz[-1]
    assert model.watts(tp, top, 0) == model.idle_w * tp
    assert 0 < model.bare_idle_w < model.parked_w <= model.idle_w
    assert model.watts(tp, top, 0) <= model.watts(tp, model.clocks_mhz[0], 1) < model.watts(tp, top, 1)
    assert model.watts(tp, top, 512, 16384) <= model.clip_w * tp
    assert model.kv_tokens(tp) > 8000
    assert (
        model.decode_step_s(tp, top, 0, 0) == model.decode_steps_s(tp, top, 0, 0, 9) == model.prefill_s(tp, top, 0) == 0
    )
    energy = [model.watts(tp, c, 32) * model.decode_step_s(tp, c, 32, 9000) for c in model.clocks_mhz]
    valley = model.clocks_mhz[energy.index(min(energy))]
    assert 0.45 < valley / top < 0.75


def test_clocks_interpolate_and_clamp() -> None:
    model = H100["llama-2-70b"]
    at = [model.decode_step_s(8, clock, 1, 0) / model.decode_step_s(8, 1980, 1, 0) for clock in (100, 800, 1100, 3000)]
    assert at == pytest.approx([1.76, 1.76, 1.30, 1.0])


def test_other_cards_differ_as_their_hardware_does() -> None:
    for name in NAMES:
        h100, h200, a100 = (ON[gpu, name] for gpu in ("h100", "h200", "a100"))
        assert set(h100.points) <= set(h200.points)
        for tp in h100.points:
            assert h200.decode_step_s(tp, 1980, 16, 16000) < h100.decode_step_s(tp, 1980, 16, 16000)
            assert h200.prefill_s(tp, 1980, 4096) == h100.prefill_s(tp, 1980, 4096)
            assert h200.kv_tokens(tp) > h100.kv_tokens(tp)
            assert 1 < a100.decode_step_s(tp, 1410, 16, 16000) / h100.decode_step_s(tp, 1980, 16, 16000) < 2
            assert a100.prefill_s(tp, 1410, 8192) / h100.prefill_s(tp, 1980, 8192) == pytest.approx(2, rel=0.01)
            assert a100.watts(tp, 1410, 64) <= 400 * tp


def test_switch_costs_come_from_the_papers_tables() -> None:
    model = H100["llama-2-70b"]
    assert model.reshard_s(2, 4) == pytest.approx(2 * 0.05 + model.switch.reshard_sync_s)
    assert model.reshard_s(8, 2) < model.reshard_s(4, 2)
    assert model.reshard_s(4, 4) == 0
    assert H100["llama-3.1-8b"].switch.reshard_unit_s < model.switch.reshard_unit_s
    assert model.switch.clock_s < model.reshard_s(4, 8) < model.start_s < model.switch.return_s
    with pytest.raises(ValueError, match="no source gives a re-shard from TP1 to TP2"):
        model.reshard_s(1, 2)


def test_every_line_of_constants_names_its_source() -> None:
    for gpu in GPUS:
        lines = (MODELS_DIR / f"models_{gpu}.yaml").read_text(encoding="utf-8").splitlines()
        constants = [line for line in lines if re.match(r" +[\w]+: *[^ ].*\d", line.partition("#")[0])]
        assert len(constants) > 15
        assert not [line for line in constants if "#" not in line]


def test_context_is_a_straight_line_that_steps_follow() -> None:
    model = H100["llama-3.1-70b"]
    one, two, three = (model.decode_step_s(4, 1200, 30, context) for context in (0, 10_000, 20_000))
    assert two - one == pytest.approx(three - two)


@settings(deadline=None)
@given(places, clocks, st.integers(1, 600), st.integers(0, 200_000), st.integers(0, 60))
def test_a_run_of_decode_steps_is_the_sum_of_its_steps(
    place: tuple[EngineModel, int], mhz: float, running: int, context: int, steps: int
) -> None:
    model, tp = place
    one_by_one = sum(model.decode_step_s(tp, mhz, running, context + running * done) for done in range(steps))
    assert model.decode_steps_s(tp, mhz, running, context, steps) == pytest.approx(one_by_one, rel=1e-9)


@settings(deadline=None)
@given(places, clocks, clocks, st.integers(0, 2500), st.integers(0, 2500), st.integers(0, 9000), st.integers(0, 9000))
def test_monotone(
    place: tuple[EngineModel, int], one_mhz: float, other_mhz: float, b1: int, b2: int, t1: int, t2: int
) -> None:
    model, tp = place
    slow, fast = sorted((one_mhz, other_mhz))
    (few, many), (less, more) = sorted((b1, b2)), sorted((t1, t2))
    steps = [
        model.step_s(tp, fast, less, few, less),
        model.step_s(tp, fast, more, few, less),
        model.step_s(tp, fast, more, many, less),
        model.step_s(tp, fast, more, many, more),
        model.step_s(tp, slow, more, many, more),
    ]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(steps)), steps
    watts = [
        model.watts(tp, slow, few, less),
        model.watts(tp, slow, few, more),
        model.watts(tp, slow, many, more),
        model.watts(tp, fast, many, more),
    ]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(watts)), watts
    assert 0 < model.decode_step_s(tp, fast, many + 1, more) <= model.decode_step_s(tp, slow, many + 1, more)


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("gpu", GPUS)
def test_more_gpus_are_faster_and_hold_more(gpu: str, name: str) -> None:
    model = ON[gpu, name]
    top = model.clocks_mhz[-1]
    for tp, more in itertools.pairwise(sorted(model.points)):
        assert model.kv_tokens(tp) < model.kv_tokens(more)
        assert model.decode_step_s(tp, top, 16, 16000) > model.decode_step_s(more, top, 16, 16000)
        assert model.prefill_s(tp, top, 4096) > model.prefill_s(more, top, 4096)
        assert model.watts(tp, top, 16) < model.watts(more, top, 16)
