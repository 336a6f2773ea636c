"""Predicted lateness and the rungs that follow from it; attainment, trim and the guard that does no harm."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.health import HARMED_S, TRIMS, judged
from controller.knowledge import Settings
from controller.pressure import GRACE_S, LADDER, Standing, climbed, lateness_s, overdue, taken
from controller.state import Health
from core.instances import ClassCount, SeenWaiting


def test_the_worst_of_the_whole_queue_counts_not_its_head() -> None:
    waiting = [SeenWaiting(10.0, 1000), SeenWaiting(10.5, 4000), SeenWaiting(20.0, 100)]
    assert lateness_s(waiting, 9.0, 1000.0) == (9.0 + 5.0) - 10.5
    assert lateness_s((), 9.0, 1000.0) == -math.inf
    assert lateness_s(waiting, 9.0, 0.0) == math.inf, "nobody there to prefill"


def test_a_long_queue_that_makes_it_is_no_emergency() -> None:
    waiting = [SeenWaiting(100.0, 10)] * 200
    assert climbed(Standing(), lateness_s(waiting, 0.0, 1000.0), 200, 0.0) == Standing()


def test_what_has_not_begun_moves_before_anybody_is_shed() -> None:
    assert [rung.name for rung in LADDER] == ["boost", "spill", "move", "shed"]
    standing, seen = Standing(), []
    for second in range(60):
        standing = climbed(standing, overdue(30.0 if second < 30 else 0.0), 0, float(second))
        seen.append(taken(standing))
    assert ("boost", "spill", "move") in seen, "an instance that owes first tokens is reason enough"
    assert not any("shed" in rungs for rungs in seen), "and none to refuse those who wait"
    assert seen[-1] == ()
    assert overdue(GRACE_S) == overdue(0.0) == -math.inf


def test_rungs_are_climbed_one_by_one_and_left_one_by_one() -> None:
    standing, seen = Standing(), []
    for second in range(40):
        standing = climbed(standing, 5.0 if second < 10 else -1.0, 7, float(second))
        seen.append(taken(standing))
    assert seen[0] == ("boost",) and ("boost", "spill") in seen and ("boost", "spill", "move", "shed") in seen
    assert seen[-1] == (), "after the hold of each nothing is left"
    lengths = [len(rungs) for rungs in seen]
    assert all(abs(after - before) <= 1 for before, after in zip(lengths, lengths[1:], strict=False))
    assert standing.cause.startswith("7 wait")


@given(st.lists(st.floats(-3, 5), min_size=1, max_size=60))
def test_it_stays_on_the_ladder_and_ends_at_its_foot(lates: list[float]) -> None:
    standing = Standing()
    for second, late_s in enumerate(lates):
        standing = climbed(standing, late_s, 1, float(second))
        assert 0 <= standing.rungs <= len(LADDER)
    for second in range(len(lates), len(lates) + 60):
        standing = climbed(standing, -1.0, 0, float(second))
    assert standing.rungs == 0


SETTINGS = Settings()
NOTHING = (ClassCount(),) * 9


def minutes(health: Health, *shares: float) -> Health:
    """A minute of 1,000 judged requests for each share that attained."""
    for share in shares:
        now = (ClassCount(judged=1000, attained=round(1000 * share)), *NOTHING[1:])
        health = judged(health, NOTHING, now, health.minute_s + 60.0, SETTINGS)
    return health


def test_three_bad_minutes_in_a_row_and_everything_goes_to_its_fastest() -> None:
    health = minutes(Health(), 0.98, 0.98)
    assert health.bad == 2 and health.harmed_until_s == 0.0
    health = minutes(health, 0.97)
    assert health.harmed_until_s == health.minute_s + HARMED_S
    assert minutes(Health(), 0.98, 0.98, 0.999, 0.98).harmed_until_s == 0.0


def test_the_trim_rises_fast_and_falls_slowly_within_bounds() -> None:
    up, down = minutes(Health(), 0.98), minutes(Health(), 1.0)
    assert up.trim - 1 >= 2 * (1 - down.trim) - 1e-9 > 0
    assert minutes(Health(), *[1.0] * 200).trim == TRIMS[0]
    assert minutes(Health(), *[0.9] * 200).trim == TRIMS[1]
    assert minutes(Health(), 0.991).trim == 1.0, "within the promise, but its budget is being spent"


def test_a_class_under_its_promise_stops_the_spending_though_all_together_keep_theirs() -> None:
    few = ClassCount(judged=150, attained=145)
    many = ClassCount(judged=9850, attained=9850)
    health = judged(Health(), NOTHING, (few, many, *NOTHING[2:]), 60.0, SETTINGS)
    assert health.minutes == ((10000, 9995),) and health.bad == 0
    assert health.trim > 1.0
    for minute in range(2, 10):
        health = judged(health, NOTHING, (NOTHING[0], many, *NOTHING[2:]), 60.0 * minute, SETTINGS)
    assert health.trim >= 1.0, "what was lost is remembered"
    for minute in range(10, 60):
        good = (ClassCount(judged=150, attained=150), many, *NOTHING[2:])
        health = judged(health, NOTHING, good, 60.0 * minute, SETTINGS)
    assert health.trim < 1.0, "and forgotten when the class has made up for it"


def test_a_quiet_minute_and_a_new_process_say_nothing() -> None:
    few = (ClassCount(judged=5, attained=0), *NOTHING[1:])
    assert judged(Health(), NOTHING, few, 60.0, SETTINGS).trim == 1.0
    old = (ClassCount(judged=500, attained=500), *NOTHING[1:])
    fresh = judged(replace(Health(), judged=7), old, few, 30.0, SETTINGS)
    assert fresh.judged == 0
