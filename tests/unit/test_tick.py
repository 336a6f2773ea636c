"""The controller's decision: replace, add, drain; and nothing once the plan is reached."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.knowledge import Knowledge
from controller.reconcile import BACKOFF_S, LIVE
from controller.state import ControllerState
from controller.tick import tick
from core.instances import Forget, Seen, SeenGpus, SeenInstance, SeenPool, Start, State, Stop, Wake


def pool(wanted: int, *, managed: bool = True) -> SeenPool:
    return SeenPool("m", "short", wanted, 4, 0, managed)


def instance(number: int, state: State, *, running: int = 0, since_s: float = 0.0, held: bool = False) -> SeenInstance:
    return SeenInstance(f"short-{number}", "m", "short", 4, state, running, since_s, False, held)


def decide(wanted: int, *instances: SeenInstance, state: ControllerState | None = None, now_s: float = 0.0) -> tuple:
    return tick(state or ControllerState(), Seen(now_s, (pool(wanted),), instances), Knowledge(), 1.0)


def test_starts_what_is_missing() -> None:
    _, decision = decide(2, instance(1, State.READY))
    assert [type(a) for a in decision.actions] == [Start]


def test_a_dead_instance_is_forgotten_and_replaced() -> None:
    _, decision = decide(1, instance(1, State.FAILED))
    assert [type(a) for a in decision.actions] == [Forget]
    _, decision = decide(1, state=ControllerState(), now_s=100.0)
    assert [type(a) for a in decision.actions] == [Start]


def test_starts_that_keep_failing_are_spaced_out() -> None:
    state, now_s, starts = ControllerState(), 0.0, []
    while now_s < 60.0:
        failed = [instance(len(starts), State.FAILED)] if starts and starts[-1] == now_s - 1 else []
        state, decision = tick(state, Seen(now_s, (pool(1),), tuple(failed)), Knowledge(), 1.0)
        if any(isinstance(a, Start) for a in decision.actions):
            starts.append(now_s)
        now_s += 1.0
    assert 3 <= len(starts) <= 8
    gaps = [b - a for a, b in zip(starts, starts[1:], strict=False)]
    assert gaps == sorted(gaps)


@pytest.mark.parametrize(
    ("gpus", "drained"),
    [
        (SeenGpus(), []),  # nobody counts them
        (SeenGpus(8, 4), []),
        (SeenGpus(4, 4), ["short-1"]),  # only its end makes room
        (SeenGpus(8, 4, 0, (("a", "b", "c", "d", "e", "f"), ("g", "h"))), ["short-1"]),  # two and two are no four
    ],
)
def test_what_serves_is_not_drained_because_its_replacement_failed_to_start(gpus: SeenGpus, drained: list[str]) -> None:
    """A re-shard by pools: short is to go when long is READY, and long's first start has just failed."""
    serving = replace(instance(1, State.READY), gpus=("a", "b", "c", "d"))
    pools = (pool(0), replace(pool(1), name="long"))
    failed = replace(instance(2, State.FAILED), id="long-2", pool="long")
    state = ControllerState()
    for now_s, there in ((0.0, (serving, failed)), (0.1, (serving,))):
        state, decision = tick(state, Seen(now_s, pools, there, gpus=gpus), Knowledge(), 1.0)
        assert not any(isinstance(a, Start) for a in decision.actions), "it waits before it tries again"
        assert [a.instance_id for a in decision.actions if isinstance(a, Stop)] == drained


def test_a_surplus_is_drained_starting_ones_first_then_the_idlest() -> None:
    seen = (instance(1, State.READY, running=5), instance(2, State.READY, running=0), instance(3, State.STARTING))
    _, decision = decide(1, *seen)
    assert [a.instance_id for a in decision.actions if isinstance(a, Stop)] == ["short-3", "short-2"]


def test_what_an_operator_holds_is_not_replaced() -> None:
    _, decision = decide(1, instance(1, State.DRAINING, held=True))
    assert decision.actions == ()


def test_static_pools_are_left_alone() -> None:
    seen = Seen(0.0, (pool(3, managed=False),), (instance(1, State.FAILED),))
    assert tick(ControllerState(), seen, Knowledge(), 1.0)[1].actions == ()


def test_the_same_input_gives_the_same_decision() -> None:
    seen = Seen(5.0, (pool(3),), (instance(1, State.READY), instance(2, State.FAILED)))
    assert tick(ControllerState(), seen, Knowledge(), 1.0) == tick(ControllerState(), seen, Knowledge(), 1.0)


@given(st.integers(0, 5), st.lists(st.sampled_from(list(State)), max_size=8))
def test_it_reaches_the_plan_and_then_rests(wanted: int, states: list[State]) -> None:
    instances = {f"short-{n}": instance(n, s) for n, s in enumerate(states) if s is not State.STOPPED}
    state, now_s, number = ControllerState(), 0.0, 100
    for _ in range(20):
        now_s += BACKOFF_S[-1] + 1
        state, decision = tick(state, Seen(now_s, (pool(wanted),), tuple(instances.values())), Knowledge(), 1.0)
        for action in decision.actions:
            if isinstance(action, Start):
                number += 1
                instances[f"short-{number}"] = instance(number, State.READY, since_s=now_s)
            elif isinstance(action, Stop | Forget):
                instances.pop(action.instance_id)
            elif isinstance(action, Wake):
                instances[action.instance_id] = replace(instances[action.instance_id], state=State.READY)
        if not decision.actions:
            break
    assert decision.actions == ()
    assert sum(i.state in LIVE for i in instances.values()) == wanted
