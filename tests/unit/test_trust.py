"""What is seen too late makes nothing slower and nothing fewer; it is told, and it still makes more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.clock_prices import ClockPrice
from controller.health import MINUTE_S
from controller.knowledge import STALE_S, Knowledge
from controller.planning import ServicePlan, Target
from controller.pressure import LADDER, Standing, climbed, taken
from controller.problem import Kind
from controller.state import ControllerState, Decision, ServiceState
from controller.tape import TapeReader, seen_of, seen_row
from controller.tick import tick
from core.instances import (
    ClassCount,
    Seen,
    SeenGpus,
    SeenInstance,
    SeenPool,
    SeenService,
    SeenWaiting,
    SetClock,
    Start,
    State,
    Steer,
    Stop,
)
from tests.unit.test_planning import NAME, SPEC, asked

OLD_S = STALE_S + 1
KNOWLEDGE = Knowledge({NAME: asked(5.0).knowledge}, gpus=16)
POOL = "medium"
PRICES = (ClockPrice(1200, 1.0, (1.0,), (500.0,), 300.0), ClockPrice(1980, 0.5, (1.0,), (900.0,), 400.0))
COUNTS = (ClassCount(),) * 9


def plan(count: int, now_s: float) -> ServicePlan:
    target = Target(Kind(NAME, POOL, "H100", 2), count, 1200, PRICES)
    return ServicePlan(now_s, (target,), (1.0, 1.0, 1.0), 1.0, 2.0, 900.0, "dp")


def seen(
    now_s: float, *, instance_s: float = 0.0, queue_s: float = 0.0, load_s: float = 0.0, late: bool = False
) -> Seen:
    """Three instances at the highest clock, of which two are wanted at most."""
    waiting = (SeenWaiting(now_s - 5.0, 1000),) if late else ()
    pools = tuple(
        SeenPool(NAME, p.name, p.instances, p.tp, len(waiting), True, waiting, age_s=queue_s if p.name == POOL else 0.0)
        for p in SPEC.pools
    )
    there = [SeenInstance(f"i{n}", NAME, POOL, 2, State.READY, 0, 0.0, clock_mhz=1980, clock_knob=True) for n in "abc"]
    there[0] = replace(there[0], age_s=instance_s)
    services = (SeenService(NAME, COUNTS, age_s=load_s),)
    return Seen(now_s, pools, tuple(there), services, SeenGpus(16, 6), now_s)


def run(*ages: dict[str, float], wanted: int = 2) -> list[Decision]:
    """Ticks ten minutes apart, so that every patience is over."""
    state, decisions = ControllerState({NAME: ServiceState(surplus_s=-1e6)}), []
    for place, age in enumerate(ages):
        now_s = 600.0 * (place + 1)
        state, decision = tick(state, seen(now_s, **age), KNOWLEDGE, 1.0, {NAME: plan(wanted, now_s)})
        decisions.append(decision)
    return decisions


def kinds(decision: Decision) -> set[type]:
    return {type(action) for action in decision.actions}


@pytest.mark.parametrize("what", ["instance_s", "queue_s", "load_s"])
def test_nothing_is_slowed_or_drained_for_what_is_old(what: str) -> None:
    fresh, old, again = run({what: STALE_S}, {what: OLD_S}, {what: 0.0})
    assert kinds(fresh) == kinds(again) == {SetClock, Stop}
    assert not kinds(old)


def test_it_is_told_when_trust_ends_and_when_it_is_back() -> None:
    notes = [[n for n in d.notes if n["note"] in ("stale", "fresh_again")] for d in run({}, {"instance_s": OLD_S},
             {"instance_s": OLD_S, "load_s": OLD_S}, {"load_s": OLD_S}, {})]  # fmt: skip
    assert notes[0] == []
    assert notes[1] == [{"note": "stale", "service": NAME, "what": {"ia": OLD_S}}]
    assert notes[2] == [{"note": "stale", "service": NAME, "what": {"load and attainment": OLD_S}}]
    assert notes[3] == [{"note": "fresh_again", "service": NAME, "what": ["ia"]}]
    assert notes[4] == [{"note": "fresh_again", "service": NAME, "what": ["load and attainment"]}]


def test_more_is_started_all_the_same() -> None:
    (old,) = run({"load_s": OLD_S, "instance_s": OLD_S}, wanted=4)
    assert Start in kinds(old)


def test_who_is_not_ready_is_not_waited_to_be_heard_of() -> None:
    starting = seen(600.0)
    first = replace(starting.instances[0], state=State.STARTING, age_s=OLD_S)
    one = ControllerState({NAME: ServiceState(surplus_s=-1e6)})
    before = replace(starting, instances=(first, *starting.instances[1:]))
    _, decision = tick(one, before, KNOWLEDGE, 1.0, {NAME: plan(2, 600.0)})
    assert Stop in kinds(decision)


def test_an_old_queue_may_boost_and_spill_but_sheds_nobody() -> None:
    for queue_s, shed in ((0.0, True), (OLD_S, False)):
        state, steers = ControllerState({NAME: ServiceState(plan=plan(3, 0.0))}), list[Steer]()
        for second in range(20):
            state, decision = tick(state, seen(float(second), queue_s=queue_s, late=True), KNOWLEDGE, 1.0)
            steers += [a for a in decision.actions if isinstance(a, Steer) and a.pool == POOL]
        assert any(steer.spill for steer in steers)
        assert any(steer.shed_late for steer in steers) is shed


def test_a_queue_that_grows_old_leaves_the_topmost_rung() -> None:
    top = Standing(len(LADDER), 0.0, 1e9, "late")
    after = climbed(top, 100.0, 5, 10.0, sheds=False)
    assert "shed" in taken(top) and "shed" not in taken(after) and after.rungs == len(LADDER) - 1
    assert climbed(after, 100.0, 5, 100.0, sheds=False).rungs == after.rungs


def test_counts_are_of_the_time_that_they_tell_of() -> None:
    """A frozen view is no silence: neither load nor attainment go on while it lasts."""
    state = ControllerState()
    for second in range(61):
        state, _ = tick(state, seen(1000.0 + second), KNOWLEDGE, 1.0)
    then = state.services[NAME]
    for second in range(300):
        state, _ = tick(state, seen(1061.0 + second, load_s=1.0 + second), KNOWLEDGE, 1.0)
    frozen = state.services[NAME]
    assert frozen.demand.load.windows.at_s == then.demand.load.windows.at_s == 1060.0
    assert frozen.health == then.health and then.health.minute_s == 1000.0 + MINUTE_S


def test_ages_are_on_the_tape() -> None:
    now = seen(1.0, instance_s=3.0, queue_s=4.0, load_s=5.0)
    now = replace(now, services=(replace(now.services[0], watts_age_s=6.0),))
    assert seen_of(Seen(0.0, (), ()), seen_row(Seen(0.0, (), ()), now)) == now
    assert TapeReader().read({"n": 0}) is None
