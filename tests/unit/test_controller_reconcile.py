"""Next safe steps: make before break, GPUs and floors kept, drains taken back, and rest once the plan is reached."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.reconcile import LIVE, Wanted, steps
from core.instances import Resume, SeenInstance, Shape, Start, State, Stop

KINDS = (("all", 4), ("all", 8))


def instance(number: int, tp: int, state: State = State.READY, running: int = 0) -> SeenInstance:
    return SeenInstance(f"i{number}", "m", "all", tp, state, running, 0.0)


def wanted(counts: dict, *, starts: int = 8, gpus: int | None = None, floor: int = 1, drain: bool = True) -> Wanted:
    shapes = {kind: Shape(kind[1], 1200) for kind in KINDS}
    return Wanted("m", counts, shapes, starts, gpus, floor, drain)


def test_what_replaces_is_started_before_anything_goes() -> None:
    seen = [instance(1, 8), instance(2, 8)]
    first = steps(wanted({("all", 4): 2}, gpus=8), seen, "plan")
    assert [type(step) for step in first] == [Start, Start] and first[0].shape == Shape(4, 1200)
    starting = [*seen, instance(3, 4, State.STARTING), instance(4, 4, State.STARTING)]
    assert steps(wanted({("all", 4): 2}, gpus=0), starting, "plan") == []
    ready = [*seen, instance(3, 4), instance(4, 4)]
    assert {step.instance_id for step in steps(wanted({("all", 4): 2}, gpus=0), ready, "plan")} == {"i1", "i2"}


def test_without_free_gpus_one_at_a_time_makes_room() -> None:
    seen = [instance(1, 8), instance(2, 8), instance(3, 8)]
    (step,) = steps(wanted({("all", 4): 4}, gpus=0), seen, "plan")
    assert isinstance(step, Stop) and step.keep_gpus
    draining = [replace(seen[0], state=State.DRAINING, running=3), *seen[1:]]
    again = steps(wanted({("all", 4): 4}, gpus=0), draining, "plan")
    assert len(again) <= 1, "the floor of ready ones is kept"


def of(pool: str, tp: int, running: int, state: State = State.READY) -> SeenInstance:
    return SeenInstance(f"{pool}{tp}", "m", pool, tp, state, running, 0.0)


def room_for(carries: dict[int, float], *there: SeenInstance) -> list[str]:
    """Who goes for a TP4 of `long` that has no room. Three quarters of the load may only go to `long`."""
    asked = wanted({("long", 4): 1, ("long", 2): 1}, gpus=2)
    asked = replace(asked, carries=carries, from_pool={"short": 1.0, "medium": 0.9, "long": 0.75})
    return [step.instance_id for step in steps(asked, there, "plan") if isinstance(step, Stop)]


def test_who_makes_room_leaves_enough_behind_for_every_pool() -> None:
    carries = {2: 0.1, 4: 1.3, 8: 1.8}
    there = of("long", 8, 0), of("short", 4, 9), of("long", 2, 0)
    assert room_for(carries, *there) == ["short4"], "the idle TP8 carries what no TP4 of another pool may have"
    assert room_for({**carries, 2: 0.95}, *there) == ["long8"], "the TP2 carries that, and the TP4 the rest"
    assert room_for({**carries, 8: 0.5}, *there) == [], "neither may go: the plan has to wait"
    assert room_for({4: 1.3, 8: 1.8}, *there) == ["long8"], "nobody knows what the TP2 carries"
    coming = of("long", 8, 0, State.STARTING), of("short", 4, 9), of("long", 2, 0)
    assert room_for({**carries, 2: 0.1, 4: 0.5}, *coming) == [], "what is not READY carries nothing"


def test_the_last_ready_one_stays() -> None:
    assert steps(wanted({("all", 4): 1}, gpus=0), [instance(1, 8)], "plan") == []


def test_a_drain_of_its_kind_is_taken_back_rather_than_started_anew() -> None:
    seen = [instance(1, 4), instance(2, 4, State.DRAINING, running=5)]
    assert [type(step) for step in steps(wanted({("all", 4): 2}), seen, "plan")] == [Resume]
    empty = [instance(1, 4), instance(2, 4, State.DRAINING)]
    assert [type(step) for step in steps(wanted({("all", 4): 2}), empty, "plan")] == [Start], "that one is ending"


def test_no_more_starts_than_allowed_nor_than_gpus() -> None:
    assert len(steps(wanted({("all", 4): 9}, starts=3), [], "plan")) == 3
    assert len(steps(wanted({("all", 8): 9}, gpus=20), [], "plan")) == 2


def test_a_surplus_may_be_told_to_wait() -> None:
    seen = [instance(1, 4), instance(2, 4)]
    assert steps(wanted({("all", 4): 1}, drain=False), seen, "plan") == []
    assert len(steps(wanted({("all", 4): 1}), seen, "plan")) == 1


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from([4, 8]), st.sampled_from([State.STARTING, State.READY]), st.integers(0, 9)), max_size=6),
    st.integers(0, 4), st.integers(0, 3), st.integers(1, 8), st.integers(0, 6),
)  # fmt: skip
def test_any_plan_that_fits_is_reached_within_gpus_and_above_the_floor(
    begins: list, fours: int, eights: int, starts: int, spare: int
) -> None:
    instances = {f"i{n}": instance(n, tp, state, running) for n, (tp, state, running) in enumerate(begins)}
    total = max(4 * fours + 8 * eights, sum(i.tp for i in instances.values())) + 4 * spare
    counts, number = {("all", 4): fours, ("all", 8): eights}, 100
    floor = 1 if fours + eights else 0
    for _ in range(80):
        used = sum(i.tp for i in instances.values())
        assert used <= total
        ready = sum(i.state is State.READY for i in instances.values())
        acts = steps(wanted(counts, starts=starts, gpus=total - used, floor=floor), list(instances.values()), "plan")
        for act in acts:
            if isinstance(act, Start):
                number += 1
                instances[f"i{number}"] = instance(number, act.shape.tp, State.STARTING)
            elif isinstance(act, Stop):
                instances[act.instance_id] = replace(instances[act.instance_id], state=State.DRAINING)
        left = sum(i.state is State.READY for i in instances.values())
        assert left >= min(ready, floor), "never below the floor by a step of its own"
        moved = False
        for name, one in list(instances.items()):
            if one.state is State.STARTING:
                instances[name], moved = replace(one, state=State.READY), True
            elif one.state is State.DRAINING:
                moved = True
                if one.running:
                    instances[name] = replace(one, running=0)
                else:
                    del instances[name]
        if not acts and not moved:
            break
    have = {kind: sum((i.pool, i.tp) == kind and i.state in LIVE for i in instances.values()) for kind in counts}
    free = total - sum(i.tp for i in instances.values())
    walled = sum(have.values()) <= floor and free < min((tp for (_, tp), n in counts.items() if n), default=0)
    assert have == counts or walled, "only the floor, with no GPUs beside it, may keep a plan from being reached"
