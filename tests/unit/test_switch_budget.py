"""Starts of an hour are bounded, whatever plans and emergencies say, and whatever an operator orders is no thrash."""

from dataclasses import replace

from controller.clock_prices import Alone, ClockPrice
from controller.knowledge import Knowledge, Settings
from controller.overrides import Impose, Order, Override
from controller.planning import ServicePlan, Target
from controller.pressure import Standing
from controller.problem import Kind
from controller.state import ControllerState, Decision, ServiceState
from controller.tick import EMERGENCIES, tick
from core.instances import Seen, SeenGpus, SeenInstance, SeenPool, Start, State, Stop
from tests.unit.test_planning import NAME, SPEC, asked

GPUS = 16
KNOWLEDGE = Knowledge({NAME: asked(5.0).knowledge}, gpus=GPUS)
BUDGET = max(Settings().most_changes, int(Settings().switches_per_hour * GPUS / 100))
POOLS = tuple(SeenPool(NAME, pool.name, pool.instances, pool.tp, 0, True) for pool in SPEC.pools)
SPENT = EMERGENCIES * BUDGET
EMERGENCY = {"medium": Standing(1, 0.0, 1e9, "late")}


def plan(count: int, now_s: float) -> ServicePlan:
    target = Target(Kind(NAME, "medium", "H100", 2), count, 1200, ())
    return ServicePlan(now_s, (target,), (1.0, 1.0, 1.0), 1.0, 2.0, 900.0, "dp")


def decide(
    state: ControllerState, now_s: float, ready: int, *orders: Order, wanted: int = 2, emergency: bool = False
) -> tuple[ControllerState, Decision]:
    one = state.services.get(NAME, ServiceState())
    state = replace(state, services={NAME: replace(one, standings=EMERGENCY if emergency else {})})
    instances = tuple(SeenInstance(f"i{n}", NAME, "medium", 2, State.READY, 0, 0.0) for n in range(ready))
    seen = Seen(now_s, POOLS, instances, gpus=SeenGpus(GPUS, 2 * ready), wall_s=now_s)
    return tick(state, seen, KNOWLEDGE, 1.0, {NAME: plan(wanted, now_s)}, orders)


def count(decision: Decision, kind: type) -> int:
    return sum(isinstance(action, kind) for action in decision.actions)


def test_a_load_that_jumps_between_emergency_and_nothing_does_not_thrash() -> None:
    state, ready, started = ControllerState(), 2, list[float]()
    for minute in range(240):
        high = minute % 10 < 5
        state, decision = decide(state, 60.0 * minute, ready, wanted=6 if high else 2, emergency=high)
        started += [60.0 * minute] * count(decision, Start)
        ready += count(decision, Start) - count(decision, Stop)
    within_an_hour = [sum(at_s <= other_s < at_s + 3600 for other_s in started) for at_s in started]
    assert started and max(within_an_hour) <= SPENT + Settings().most_changes


def test_beyond_twice_the_budget_an_emergency_still_starts_but_nothing_goes() -> None:
    spent = ControllerState({NAME: ServiceState(starts_s=(100.0,) * SPENT, surplus_s=0.0)})
    assert count(decide(spent, 1000.0, 2, wanted=4)[1], Start) == 0
    assert count(decide(spent, 1000.0, 2, wanted=4, emergency=True)[1], Start) == 2
    assert count(decide(spent, 1000.0, 5)[1], Stop) == 0
    assert count(decide(spent, 3800.0, 5)[1], Stop) == 3, "an hour later"
    planned = ControllerState({NAME: ServiceState(starts_s=(100.0,) * BUDGET, surplus_s=0.0)})
    assert count(decide(planned, 1000.0, 2, wanted=4)[1], Start) == 0, "the budget of plans"
    assert count(decide(planned, 1000.0, 5)[1], Stop) == 3


def test_what_an_operator_orders_is_outside_of_the_budget() -> None:
    spent = ControllerState({NAME: ServiceState(starts_s=(100.0,) * SPENT, surplus_s=0.0)})
    floor = Override("one", "floor", 1e6, NAME, "medium", instances=4)
    assert count(decide(spent, 1000.0, 2, Impose(floor))[1], Start) == 2


def seen(pools: tuple[SeenPool, ...], *instances: SeenInstance) -> Seen:
    return Seen(1000.0, pools, instances, gpus=SeenGpus(GPUS, sum(i.tp for i in instances)), wall_s=1000.0)


def test_what_an_operator_sets_waits_for_no_surplus_to_last() -> None:
    """A pool that the plan fills with others of another TP, and one that it empties later."""
    medium = next(pool for pool in POOLS if pool.name == "medium")
    pools = tuple(pool if pool.name != "medium" else replace(medium, wanted=2, pinned=True) for pool in POOLS)
    others = [SeenInstance(f"o{n}", NAME, "medium", medium.tp * 2, State.READY, 0, 0.0) for n in range(2)]
    long = SeenInstance("l", NAME, "long", 2, State.READY, 0, 0.0)
    mine = [SeenInstance(f"m{n}", NAME, "medium", medium.tp, State.READY, 0, 0.0) for n in range(2)]
    start = ControllerState({NAME: ServiceState(starts_s=(100.0,) * SPENT)})
    plans = {NAME: plan(2, 1000.0)}
    _, decision = tick(start, seen(pools, *others, long), KNOWLEDGE, 1.0, plans)
    assert count(decision, Start) == 2, "of the ordered kind, whatever was started this hour"
    _, decision = tick(start, seen(pools, *mine, *others, long), KNOWLEDGE, 1.0, plans)
    assert {a.instance_id for a in decision.actions if isinstance(a, Stop)} == {"o0", "o1"}, "and of no other pool"
    _, decision = tick(start, seen(pools, *mine, long), KNOWLEDGE, 1.0, plans)
    assert not decision.actions


def test_the_configured_instances_take_nothing_from_the_budget() -> None:
    """A gateway that starts has its first plan minutes later, which must not find the hour spent."""
    seen = Seen(0.0, POOLS, (), gpus=SeenGpus(GPUS, 0))
    state, decision = tick(ControllerState(), seen, KNOWLEDGE, 1.0)
    assert count(decision, Start) == sum(pool.instances for pool in SPEC.pools)
    assert state.services[NAME].starts_s == ()
    state, decision = decide(state, 60.0, 2, wanted=4)
    assert count(decision, Start) == 2 and len(state.services[NAME].starts_s) == 2


def test_whether_the_rest_carries_the_load_is_asked_of_plans_and_not_of_operators() -> None:
    """No GPU is free, and one alone carries a tenth of the load."""
    price = ClockPrice(1980, 10.0, (1.0,), (900.0,), 100.0)
    weighed = replace(plan(2, 1000.0), alone=(Alone(2, (price,)), Alone(4, (price,))), from_pool=(("medium", 1.0),))
    there = [SeenInstance(f"o{n}", NAME, "medium", 4, State.READY, 0, 0.0) for n in range(GPUS // 4)]
    start = ControllerState({NAME: ServiceState(surplus_s=0.0)})
    _, decision = tick(start, seen(POOLS, *there), KNOWLEDGE, 1.0, {NAME: weighed})
    assert not decision.actions
    pinned = tuple(replace(pool, wanted=2, pinned=True) if pool.name == "medium" else pool for pool in POOLS)
    _, decision = tick(start, seen(pinned, *there), KNOWLEDGE, 1.0, {NAME: weighed})
    assert count(decision, Stop) == 1


def test_a_surplus_has_lasted_since_it_began_whatever_replaces_a_part_of_it() -> None:
    """Three serve where two of another TP are planned: one has gone, and the first of those two starts in its place."""
    others = [SeenInstance(f"o{n}", NAME, "long", 4, State.READY, 0, 0.0) for n in range(2)]
    start = ControllerState({NAME: ServiceState(surplus_s=400.0)})
    plans = {NAME: plan(2, 1000.0)}
    after, _ = tick(start, seen(POOLS, *others), KNOWLEDGE, 1.0, plans)
    assert after.services[NAME].surplus_s == 400.0, "those two are still too many"
    mine = [SeenInstance(f"m{n}", NAME, "medium", 2, State.READY, 0, 0.0) for n in range(2)]
    after, _ = tick(start, seen(POOLS, *mine), KNOWLEDGE, 1.0, plans)
    assert after.services[NAME].surplus_s is None
    fresh, _ = tick(ControllerState(), seen(POOLS, *others), KNOWLEDGE, 1.0, plans)
    assert fresh.services[NAME].surplus_s is None, "as many as are planned are no surplus"


def test_of_two_that_are_missing_the_larger_starts_first() -> None:
    targets = tuple(Target(Kind(NAME, "medium", "H100", tp), 1, 1200, ()) for tp in (2, 4))
    both = replace(plan(1, 1000.0), targets=targets)
    there = [SeenInstance(f"o{n}", NAME, "long", 4, State.READY, 0, 0.0) for n in range(3)]
    _, decision = tick(ControllerState(), seen(POOLS, *there), KNOWLEDGE, 1.0, {NAME: both})
    assert [action.shape.tp for action in decision.actions if isinstance(action, Start)] == [4]
