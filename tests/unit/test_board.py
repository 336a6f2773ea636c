"""What the dashboard is told: events out of rows, means at three resolutions, sums of five minutes, watts by cause."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.board_events import KEPT, BoardEvents
from gateway.board_frontier import SHIPPED, read
from gateway.board_series import Series, Tally, Tier, Window


class Rows:
    def __init__(self) -> None:
        self.rows: list[object] = []

    def record(self, row: object) -> None:
        self.rows.append(row)


@pytest.fixture
def log() -> Rows:
    return Rows()


@pytest.fixture
def events(log: Rows) -> BoardEvents:
    return BoardEvents(log)


def told(events: BoardEvents) -> list[tuple[str, str, str, str]]:
    return [(e.kind, e.level, e.title, e.why) for e in events.since(0)]


def test_every_row_goes_on_to_the_run_log_and_requests_are_put_aside(events: BoardEvents, log: Rows) -> None:
    rows = [{"kind": "request", "t": 1.0, "id": "a"}, {"kind": "something new", "t": 1.0}, {"kind": "admin", "t": 1.0,
            "who": "root", "action": "change_mode", "mode": "shadow", "before": "enforce"}]  # fmt: skip
    for row in rows:
        events.record(row)
    assert log.rows == rows
    assert [row["id"] for row in events.fresh] == ["a"]
    assert told(events) == [("operator", "notice", "root: change mode", "mode shadow, before enforce")]


def test_rungs_deaths_and_failures_are_told_with_their_reasons(events: BoardEvents) -> None:
    rungs = {"kind": "controller", "t": 1.0, "note": "ladder", "service": "m", "pool": "short", "cause": "9 wait"}
    events.record({**rungs, "rungs": ("boost", "spill")})
    events.record({**rungs, "rungs": ("boost", "spill", "shed")})
    events.record({**rungs, "rungs": ()})
    events.record({"kind": "controller", "t": 1.0, "note": "do_no_harm", "service": "m", "bad_minutes": 3})
    events.record({"kind": "instance_state", "t": 2.0, "service": "m", "instance": "short-1", "from": "ready",
                   "to": "failed", "reason": "its process ended"})  # fmt: skip
    events.record({"kind": "tick_failed", "t": 3.0, "error": "KeyError: 'x'"})
    plan = {"targets": ["short 2 x TP4 at 1200 MHz"], "mean_rps": 3.0, "upper_rps": 4.5, "status": "dp: best"}
    events.record({"kind": "controller", "t": 4.0, "note": "plan", "service": "m", "expected_w": 900.0, **plan})
    events.record({"kind": "controller", "t": 5.0, "note": "override_over", "id": "o-1", "override": "exclude_gpu"})
    assert told(events) == [
        ("ladder", "notice", "short: boost + spill", "9 wait"),
        ("ladder", "bad", "short: boost + spill + shed", "9 wait"),
        ("ladder", "info", "short leaves the ladder", "9 wait"),
        ("guard", "bad", "everything at its fastest", "3 minutes in a row under the promise"),
        ("death", "bad", "short-1 failed", "its process ended"),
        ("error", "bad", "a tick of the controller failed", "KeyError: 'x'"),
        (
            "plan",
            "info",
            "plan: short 2 x TP4 at 1200 MHz",
            "for 3.00 requests/s on average and 4.50 at the peak; dp: best",
        ),
        ("operator", "notice", "exclude gpu is over", ""),
    ]


def test_clocks_of_one_kind_are_one_event_and_a_standing_proposal_is_told_once(events: BoardEvents) -> None:
    clock = {"action": "setclock", "clock_mhz": 1200, "reason": "0.5 of the planned load on 2"}
    actions = [{**clock, "instance_id": name} for name in ("a", "b")]
    events.record({"kind": "tick", "t": 1.0, "actions": [*actions, {**clock, "instance_id": "c", "clock_mhz": 1980}]})
    for t in range(5):
        events.record({"kind": "tick", "t": t, "proposed": [{"action": "start", "reason": "the plan of 7 s"}]})
    assert told(events) == [
        ("clock", "info", "2 instances to 1200 MHz", "0.5 of the planned load on 2"),
        ("clock", "info", "1 instance to 1980 MHz", "0.5 of the planned load on 2"),
        ("proposed", "info", "would do: 1 start", "the plan of 7 s"),
    ]


def test_a_tick_that_turns_a_hundred_clocks_is_told_briefly(events: BoardEvents) -> None:
    clock = {"action": "setclock", "clock_mhz": 1200, "reason": "0.5 of the planned load on 100"}
    events.record({"kind": "tick", "t": 1.0, "actions": [{**clock, "instance_id": str(i)} for i in range(100)]})
    (event,) = events.since(0)
    assert event.title == "100 instances to 1200 MHz"
    assert len(event.detail["actions"]) == 9 and event.detail["actions"][-1] == "and 92 more"


def test_alike_within_a_second_are_counted_and_one_kind_pushes_out_no_other(events: BoardEvents) -> None:
    events.record({"kind": "tick_failed", "t": 0.0, "error": "first"})
    for t in (1.0, 1.2, 1.4, 3.0):
        events.add(t, "migration", "notice", "a stream went on elsewhere", "0.1 s", {})
    assert [(e.t, e.count) for e in events.since(0) if e.kind == "migration"] == [(1.0, 3), (3.0, 1)]
    assert [e.t for e in events.since(events.newest - 1)] == [3.0]
    for t in range(2 * KEPT):
        events.add(10.0 + 2 * t, "clock", "info", "a clock", "", {})
    assert len(events.since(0)) == KEPT + 3


def test_a_tier_keeps_means_of_whole_steps() -> None:
    tier = Tier(10.0, 3)
    for t in range(45):
        tier.add(float(t), (float(t), 1.0))
    assert list(tier.rows) == [(10.0, 14.5, 1.0), (20.0, 24.5, 1.0), (30.0, 34.5, 1.0)]


def test_a_window_is_answered_at_the_finest_resolution_that_reaches_back() -> None:
    series = Series()
    assert [series.of(window_s).step_s for window_s in (60, 600, 601, 7200, 86_400, 1e9)] == [1, 1, 10, 10, 120, 120]


@given(st.lists(st.tuples(st.floats(0, 900), st.integers(0, 5)), max_size=60), st.floats(0, 2000))
def test_a_window_is_the_sum_of_what_is_younger_than_it(parts: list[tuple[float, int]], later_s: float) -> None:
    window = Window(300.0)
    parts = sorted(parts)
    for t, ended in parts:
        window.add(t, Tally(ended=ended, tokens=2 * ended), [t] * ended)
    now_s = max([later_s, *(t for t, _ in parts)])
    window.forget(now_s)
    young = [(t, ended) for t, ended in parts if t > now_s - 300.0]
    assert window.sum == Tally(ended=sum(n for _, n in young), tokens=2 * sum(n for _, n in young))
    ranked = sorted(t for t, ended in young for _ in range(ended))
    assert window.ttft_s(0.99) == (ranked[max(0, math.ceil(0.99 * len(ranked)) - 1)] if ranked else None)


def test_the_shipped_frontiers_are_read_and_a_missing_one_is_said() -> None:
    found = read(SHIPPED / "h100-llama-3.1-70b.profile.csv")
    assert set(found["classes"]) == {a + b for a in "SML" for b in "SML"}
    assert found["quality"] == "modelled"
    assert all(len(row) == len(found["columns"]) for rows in found["classes"].values() for row in rows)
    assert read(SHIPPED / "h100-nothing.profile.csv")["why"].startswith("There is no table h100-nothing")
