"""What a run recorded is decided the same again, and differently by other code."""

import json
from functools import cache
from math import inf
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_controller_stories import planned, wave
from typer.testing import CliRunner

from controller import tick as ticking
from controller.redecide import redecide
from controller.tape import KEY_S, seen_of, seen_row
from core.instances import ClassCount, Seen, SeenGpus, SeenInstance, SeenPool, SeenService, SeenWaiting, State
from joulegate import app
from simulator.run import simulate


class Log:
    def __init__(self) -> None:
        self.rows: list[bytes] = []

    def record(self, row: dict) -> None:
        if row["kind"] == "decision":
            self.rows.append(msgspec.json.encode(row))


@cache
def recorded() -> tuple[bytes, ...]:
    log, load = Log(), list(wave(3.0, 1.0, 120.0, 400.0))
    simulate(planned(load, power_cap_w=inf), load, recorder=log)
    return tuple(log.rows)


def rows() -> list[dict]:
    return [json.loads(row) for row in recorded()]


def test_today_s_code_decides_as_it_did() -> None:
    found = redecide(rows())
    assert found.differences == [] and found.changed == 0 and not found.unreadable
    assert found.ticks == len(recorded()) and found.plans >= 1 and found.plans_changed == 0
    assert any(row["decided"].get("actions") for row in rows()), "something happened in it"


def test_other_code_is_told_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    as_recorded = rows()
    monkeypatch.setattr(ticking, "set_clocks", lambda one, *rest: (one, []))
    found = redecide(as_recorded, plans=False)
    assert found.changed > 0
    first = found.differences[0]
    assert first["what"] == "decided" and first["was"] != first["now"]


def test_without_its_beginning_a_log_is_read_from_the_next_key_row_on() -> None:
    cut = rows()[5:]
    assert redecide(cut, plans=False).ticks == 0
    assert redecide(cut, plans=False).skipped == len(cut)
    missing = [row for row in rows() if row["n"] != 100]
    found = redecide(missing, plans=False)
    assert found.ticks == 100 and found.skipped == len(missing) - 100 and found.changed == 0


def test_a_row_of_another_time_ends_nothing() -> None:
    broken = rows()
    broken[50]["seen"]["instances"] = [{"id": "short-1", "unheard_of": 1}]
    found = redecide(broken, plans=False)
    assert found.ticks == 50 and "unheard_of" in found.unreadable


def test_most_rows_are_small() -> None:
    sizes = sorted(len(row) for row in recorded())
    assert sizes[len(sizes) // 2] < 2500, "a tick in which little changes says little"
    assert KEY_S >= 600


def asked(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["redecide", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_reads_a_run_log(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    others = b'{"kind":"request","t":1.0,"class":"decision"}\n'
    log.write_bytes(others + b"".join(row + b"\n" for row in recorded()[:60]))
    status, out, _ = asked(log, "--json", "--no-plans")
    report = json.loads(out)
    assert status == 0 and (report["ticks"], report["changed"], report["skipped"]) == (60, 0, 0)
    assert asked(log, "--no-plans")[1].startswith("60 ticks, 0 decided otherwise")
    log.write_bytes(others)
    assert asked(log)[0] == 1, "nothing could be decided anew"
    log.write_bytes(others + b'{"kind":"decision"')
    status, _, err = asked(log)
    assert status == 2 and "line 2" in err
    assert asked(tmp_path / "none")[0] == 2


numbers = st.integers(0, 5)
instances = st.lists(
    st.builds(
        SeenInstance, st.sampled_from("abcdef"), st.just("m"), st.just("short"), st.sampled_from([2, 4]),
        st.sampled_from(State), numbers, st.floats(0, 9), st.booleans(), st.booleans(), numbers, numbers, numbers,
        numbers, st.sampled_from([inf, 0.1]), st.booleans(), st.sampled_from([(), ("g1",)]),
    ),
    max_size=5, unique_by=lambda i: i.id,
)  # fmt: skip
pools = st.lists(
    st.builds(
        SeenPool, st.just("m"), st.sampled_from(["short", "long"]), numbers, numbers, numbers, st.booleans(),
        st.lists(st.builds(SeenWaiting, st.floats(0, 9), numbers), max_size=2).map(tuple), st.booleans(),
    ),
    max_size=2,
)  # fmt: skip
services = st.lists(
    st.builds(
        SeenService, st.just("m"), st.lists(st.builds(ClassCount, numbers, numbers), min_size=9, max_size=9).map(tuple),
        st.none() | st.floats(0, 9), st.sampled_from(["measured", "modelled"]),
    ),
    max_size=1,
)  # fmt: skip
views = st.builds(
    Seen, st.floats(0, 9), pools.map(tuple), instances.map(tuple), services.map(tuple),
    st.builds(SeenGpus, numbers, numbers), st.floats(0, 9),
)  # fmt: skip


@given(st.lists(views, min_size=1, max_size=4))
def test_whatever_is_seen_is_read_as_it_was(seens: list[Seen]) -> None:
    written = read = Seen(0.0, (), ())
    for seen in seens:
        row = msgspec.json.decode(msgspec.json.encode(seen_row(written, seen)))
        written, read = seen, seen_of(read, row)
        assert read == seen
