"""Learning mode: it ends near the best clock although the profile is wrong, tries nothing while slack is thin, and what
it has learnt is there again after a restart."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.learning import KNOWN, Arm, Learning, allowed, chosen, learnt, metered

CLOCKS = (800, 1000, 1200, 1400, 1600, 1800, 1980)
PRICED = dict(zip(CLOCKS, (900.0, 850.0, 880.0, 940.0, 1050.0, 1150.0, 1200.0), strict=True))
WITHIN = 1.03  # of the best cell's watts, over the last hundred of five hundred minutes


def truth(seed: int) -> dict[int, float]:
    """Watts as they are: U-shaped, the cheapest at a clock that the profile takes for dear."""
    rng = random.Random(f"truth {seed}")
    best = rng.choice(CLOCKS[2:])
    return {clock: 700.0 + 500.0 * ((clock - best) / 800) ** 2 + rng.uniform(0, 10) for clock in CLOCKS}


def served(
    seed: int, minutes: int = 500, least_mhz: int = 1000, tight: frozenset[int] = frozenset()
) -> tuple[list[int], Learning]:
    """The clock of each minute. Below `least_mhz` promises break; `tight`: minutes with thin slack."""
    real, learning, clocks, luck = truth(seed), Learning(), list[int](), random.Random(f"luck {seed}")
    for minute in range(minutes):
        learning = chosen(learning, PRICED, minute not in tight, luck)
        at = learning.clock_mhz
        clocks.append(at)
        learning = metered(learning, real[at] * luck.gauss(1.0, 0.02), PRICED[at])
        learning = learnt(learning, kept=at >= least_mhz)
    return clocks, learning


@pytest.mark.parametrize("seed", range(10))
def test_it_ends_near_the_best_cell_although_the_profile_is_wrong(seed: int) -> None:
    real = truth(seed)
    clocks, _ = served(seed)
    assert clocks[0] == max(CLOCKS), "it starts where no promise can break for being slow"
    mean_w = sum(real[clock] for clock in clocks[-100:]) / 100
    assert mean_w <= WITHIN * min(watts for clock, watts in real.items() if clock >= 1000)
    assert sum(clock < 1000 for clock in clocks) <= 1, "a clock that broke a promise is not tried again"


@pytest.mark.parametrize("seed", range(3))
def test_it_never_tries_anything_while_slack_is_thin(seed: int) -> None:
    tight = frozenset(range(0, 500, 3)) | frozenset(range(100, 160))
    clocks, _ = served(seed, tight=tight)
    for minute in tight:
        before = clocks[:minute]
        assert clocks[minute] == max(CLOCKS) or before.count(clocks[minute]) >= KNOWN
    assert set(served(seed, tight=frozenset(range(500)))[0]) == {max(CLOCKS)}


def test_clocks_open_one_by_one_from_the_fastest() -> None:
    assert allowed(Learning(), CLOCKS) == [1980]
    known = Learning(tuple(Arm(clock, KNOWN) for clock in (1980, 1800)))
    assert allowed(known, CLOCKS) == [1980, 1800, 1600]
    assert allowed(Learning(known.arms, pruned_mhz=1800), CLOCKS) == [1980]
    assert allowed(Learning(known.arms, pruned_mhz=1980), CLOCKS) == [1980], "the fastest always"


@given(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=50))
def test_an_arm_is_the_mean_of_its_minutes(times: list[float]) -> None:
    arm = Arm(1400)
    for one in times:
        arm = arm.with_minute(one)
    assert arm.minutes == len(times) and arm.mean == pytest.approx(sum(times) / len(times))
    assert arm.deviation() > 0


def test_a_minute_that_breaks_its_promise_teaches_no_watts_and_an_idle_one_nothing() -> None:
    begun = metered(Learning(clock_mhz=1200), 900.0, 1000.0)
    assert learnt(begun, kept=False) == Learning(pruned_mhz=1200)
    assert learnt(begun, kept=True).arm(1200) == Arm(1200, 1, 0.9)
    assert learnt(Learning(clock_mhz=1200), kept=True) == Learning()


def test_what_was_learnt_outlives_a_restart() -> None:
    _, learning = served(1, minutes=50)
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(learning)), Learning) == learning
