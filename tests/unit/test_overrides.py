"""What operators order holds against any plan, until its time is over."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.knowledge import Knowledge
from controller.overrides import Apply, Impose, Lift, Override, bounded, imposed, ordered
from controller.planning import Ordered, ServicePlan, Target
from controller.problem import Bound, Kind
from controller.state import ControllerState, Decision, ServiceState
from controller.tick import tick
from core.instances import (
    AS_CONFIGURED,
    Exclude,
    Hold,
    Release,
    Seen,
    SeenGpus,
    SeenInstance,
    SeenPool,
    SetClock,
    Start,
    State,
    Stop,
)
from tests.unit.test_planning import NAME, SPEC, asked

POOL = SeenPool("m", "short", 2, 4, 0, True)


def instance(number: int, state: State = State.READY, **more: object) -> SeenInstance:
    return SeenInstance(f"short-{number}", "m", "short", 4, state, 0, 0.0, **more)  # type: ignore[arg-type]


def override(kind: str, until_s: float = 1000.0, **more: object) -> Override:
    return Override(f"{kind}-1", kind, until_s, **{"service": "m", "pool": "short", **more})  # type: ignore[arg-type]


def decide(
    *instances: SeenInstance, overrides: tuple[Override, ...] = (), orders: tuple = (), now_s: float = 0.0,
    pool: SeenPool = POOL, gpus: int = 0,
) -> tuple[ControllerState, Decision]:  # fmt: skip
    seen = Seen(now_s, (pool,), instances, gpus=SeenGpus(gpus, sum(i.tp for i in instances)), wall_s=now_s)
    return tick(ControllerState(overrides=overrides), seen, Knowledge(), 1.0, orders=orders)


def test_a_pin_holds_until_its_time_is_over() -> None:
    pin = override("pin", instances=3)
    state, decision = decide(instance(1), instance(2), orders=(Impose(pin),))
    assert [type(a) for a in decision.actions] == [Start]
    assert state.overrides == (pin,)
    state, decision = decide(instance(1), instance(2), instance(3), overrides=(pin,), now_s=1000.0)
    assert [type(a) for a in decision.actions] == [Stop]
    assert state.overrides == ()
    assert decision.notes == ({"note": "override_over", "id": "pin-1", "override": "pin"},)


def test_lifting_ends_it_at_once() -> None:
    pin = override("pin", instances=0)
    state, decision = decide(instance(1), instance(2), overrides=(pin,), orders=(Lift("pin-1"),))
    assert decision.actions == () and state.overrides == ()


def test_floors_and_ceilings_bound_the_configured_number() -> None:
    assert [type(a) for a in decide(overrides=(override("floor", instances=3),))[1].actions] == [Start] * 3
    assert [type(a) for a in decide(overrides=(override("ceiling", instances=1),))[1].actions] == [Start]
    assert [type(a) for a in decide(overrides=(override("floor", instances=1),))[1].actions] == [Start] * 2


counts = st.dictionaries(st.tuples(st.just("short"), st.sampled_from([2, 4, 8])), st.integers(0, 9), max_size=3)


@given(counts, st.none() | st.integers(0, 9), st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))
def test_whatever_is_planned_the_numbers_end_within_the_bounds(
    planned: dict, floor: int | None, ceiling: int | None, pin: int | None
) -> None:
    wanted = {"floor": floor, "ceiling": ceiling, "pin": pin}
    orders = [override(kind, instances=n) for kind, n in wanted.items() if n is not None]
    found, shapes = bounded(orders, [POOL], planned, dict.fromkeys(planned, AS_CONFIGURED))
    whole = sum(found.values())
    expected = sum(planned.values())
    expected = min(expected, ceiling) if ceiling is not None else expected
    expected = max(expected, floor) if floor is not None else expected
    assert whole == (expected if pin is None else pin)
    assert all(count >= 0 for count in found.values()) and found.keys() <= shapes.keys()


def test_an_instance_is_drained_held_and_given_back() -> None:
    drain = override("drain", pool="", instance="short-1")
    _, decision = decide(instance(1), instance(2), orders=(Impose(drain),))
    assert decision.actions == (Hold("short-1", "drained by drain-1"),)
    held = instance(1, State.DRAINING, held=True)
    assert decide(held, instance(2), overrides=(drain,))[1].actions == (), "it counts, and is not replaced"
    _, decision = decide(held, instance(2), overrides=(drain,), now_s=1000.0)
    assert [type(a) for a in decision.actions] == [Release]
    state, decision = decide(instance(2), overrides=(drain,))
    assert state.overrides == (), "what is gone needs no override"


def test_a_clock_may_be_pinned() -> None:
    pin = override("pin", clock_mhz=1200)
    seen = (instance(1, clock_mhz=1980, clock_knob=True), instance(2, clock_mhz=1200, clock_knob=True))
    assert decide(*seen, overrides=(pin,))[1].actions == (SetClock("short-1", 1200, "pinned by pin-1"),)


def test_a_gpu_that_is_taken_out_is_left_when_another_serves() -> None:
    out = override("exclude_gpu", service="", pool="", gpu="GPU-3")
    here = instance(1, gpus=("GPU-0", "GPU-1", "GPU-2", "GPU-3"))
    other = instance(2, gpus=("GPU-4", "GPU-5", "GPU-6", "GPU-7"))
    state, decision = decide(here, other, orders=(Impose(out),), gpus=12)
    assert [type(a) for a in decision.actions] == [Exclude, Start] and state.excluded == ("GPU-3",)
    state, decision = decide(here, other, instance(3), overrides=(out,), gpus=12)
    assert [a.instance_id for a in decision.actions if isinstance(a, Stop)] == ["short-1"]
    _, decision = decide(here, other, overrides=(out,), gpus=8)
    assert Stop in [type(a) for a in decision.actions], "without free GPUs it goes first"
    _, decision = decide(here, overrides=(out,), gpus=4, pool=replace(POOL, wanted=1))
    assert Stop in [type(a) for a in decision.actions], "configured pools know no floor"


# --- modes, and plans that operators apply

PLAN = ServicePlan(0.0, (Target(Kind(NAME, "medium", "H100", 2), 2, 1200, ()),), (1.0, 1.0, 1.0), 1.0, 2.0, 900.0, "dp")


def mode(
    name: str, state: ControllerState, orders: tuple = (), answer: dict | None = None
) -> tuple[ControllerState, Decision]:
    pools = tuple(SeenPool(NAME, pool.name, pool.instances, pool.tp, 0, True) for pool in SPEC.pools)
    knowledge = Knowledge({NAME: asked(5.0).knowledge}, gpus=16, mode=name)
    if NAME in state.services:  # nothing has started, for there are no instances here
        state = replace(state, services={NAME: replace(state.services[NAME], starts_s=())})
    return tick(state, Seen(10.0, pools, (), wall_s=10.0), knowledge, 1.0, answer, orders)


def started(decision: Decision) -> list[str]:
    return [a.pool for a in decision.actions if isinstance(a, Start)]


def test_shadow_holds_the_configured_plan_and_tells_of_the_other() -> None:
    _, decision = mode("shadow", ControllerState(), answer={NAME: PLAN})
    assert sorted(started(decision)) == ["long", "medium", "short"]
    assert {a.pool for a in decision.proposed if isinstance(a, Start)} == {"medium"}


def test_advise_follows_what_was_approved_and_nothing_newer() -> None:
    state, decision = mode("advise", ControllerState(), answer={NAME: PLAN})
    assert sorted(started(decision)) == ["long", "medium", "short"], "nothing was approved yet"
    state, decision = mode("advise", state, orders=(Apply({NAME: PLAN}),))
    assert started(decision) == ["medium", "medium"]
    newer = replace(PLAN, targets=(replace(PLAN.targets[0], count=4),))
    state, decision = mode("advise", state, answer={NAME: newer})
    assert started(decision) == ["medium", "medium"] and state.services[NAME].plan is newer
    assert len(decision.proposed) > 0


def test_what_was_enforced_stays_in_force_when_the_mode_becomes_advise() -> None:
    state, _ = mode("enforce", ControllerState(), answer={NAME: PLAN})
    _, decision = mode("advise", state, answer={NAME: replace(PLAN, targets=())})
    assert started(decision) == ["medium", "medium"]


def test_while_paused_no_newer_plan_is_taken_over() -> None:
    state, _ = mode("enforce", ControllerState(), answer={NAME: PLAN})
    pause = Impose(Override("pause-1", "pause", 1000.0))
    state, decision = mode("enforce", state, orders=(pause,), answer={NAME: replace(PLAN, targets=())})
    assert started(decision) == ["medium", "medium"] and state.services[NAME].plan is PLAN


def test_the_same_id_twice_is_one_override() -> None:
    first, second = override("pin", instances=1), override("pin", instances=2)
    assert imposed((first,), (Impose(second),)) == (second,)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("pin", {"instances": 3}), ("floor", {"instances": 3}), ("ceiling", {"instances": 1}), ("exclude_gpu", {"gpu": "GPU-3"})],
)  # fmt: skip
def test_an_order_and_its_end_have_a_plan_made_at_once(kind: str, more: dict[str, object]) -> None:
    one = Override("one", kind, 1000.0, NAME, "medium", **more)  # type: ignore[arg-type]
    state = ControllerState({NAME: ServiceState(asked(5.0).demand, replace(PLAN, at_s=10.0))})
    assert mode("enforce", state)[1].ask is None, "a fresh plan"
    state, decision = mode("enforce", state, orders=(Impose(one),))
    assert decision.ask is not None and "operators" in decision.ask.reason
    assert decision.ask.knowledge.gpus == (15 if kind == "exclude_gpu" else 16)
    answer = {NAME: replace(PLAN, at_s=10.0, ordered=decision.ask.ordered)}
    assert mode("enforce", state)[1].ask is None, "one is being made"
    state, decision = mode("enforce", state, answer=answer)
    assert decision.ask is None, "it was made for these orders"
    assert mode("enforce", state, orders=(Lift("one"),))[1].ask is not None


def test_what_has_nothing_to_do_with_numbers_has_no_plan_made() -> None:
    state = ControllerState({NAME: ServiceState(asked(5.0).demand, replace(PLAN, at_s=10.0))})
    clock = Override("one", "pin", 1000.0, NAME, "medium", clock_mhz=1200)
    assert mode("enforce", state, orders=(Impose(clock),))[1].ask is None


@pytest.mark.parametrize(
    ("orders", "expected"),
    [({"floor": 3, "ceiling": 1}, (3, 3)), ({"ceiling": 2}, (0, 2)), ({"pin": 0, "floor": 2}, (0, 0)), ({"floor": 2}, (2, None))],
)  # fmt: skip
def test_a_plan_is_told_what_is_ordered(orders: dict[str, int], expected: tuple[int, int | None]) -> None:
    said = [override(kind, instances=n) for kind, n in orders.items()]
    assert ordered(said, [POOL]).bounds == (Bound("m", "short", *expected),)
    assert ordered([], [replace(POOL, pinned=True)]).bounds == (Bound("m", "short", 2, 2),)
    assert ordered([], [POOL]) == Ordered()
