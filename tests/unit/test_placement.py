"""Placement: as many instances as possible stay where they are, none straddles islands, and it is told what cannot be."""

from collections import Counter
from dataclasses import replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.placement import Ground, placed, room_now
from controller.reconcile import Wanted, steps
from core.instances import SeenInstance, Shape, Start, State, Stop

LEFT, RIGHT = ([f"{side}{number}" for number in range(4)] for side in "LR")
GROUND = Ground((frozenset(LEFT), frozenset(RIGHT)))
SIZES = (1, 2, 4)


def seen(name: str, gpus: list[str], state: State = State.READY) -> SeenInstance:
    return SeenInstance(name, "chat", "all", len(gpus), state, 0, 0.0, gpus=tuple(gpus))


def running(*groups: tuple[int, int]) -> list[SeenInstance]:
    """(island, size) of each; those that do not fit are left out."""
    free = {0: list(LEFT), 1: list(RIGHT)}
    found = []
    for number, (island, size) in enumerate(groups):
        if len(free[island]) >= size:
            found.append(seen(f"i-{number}", [free[island].pop() for _ in range(size)]))
    return found


def most_kept(live: list[SeenInstance], counts: dict[tuple[str, int], int]) -> int | None:
    """By trying every way to put the instances of each size on the two islands."""
    here = Counter((i.tp, GROUND.at(i)) for i in live)
    best = None
    for lefts in product(*(range(counts[kind] + 1) for kind in counts)):
        rooms = (
            sum(n * tp for n, (_, tp) in zip(lefts, counts, strict=True)),
            sum((counts[kind] - n) * kind[1] for n, kind in zip(lefts, counts, strict=True)),
        )
        if max(rooms) <= 4:
            kept = sum(
                min(n, here[tp, 0]) + min(counts[pool, tp] - n, here[tp, 1])
                for n, (pool, tp) in zip(lefts, counts, strict=True)
            )
            best = kept if best is None else max(best, kept)
    return best


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from(SIZES)), max_size=6),
    st.fixed_dictionaries({("all", size): st.integers(0, 4) for size in SIZES}),
)
def test_as_many_stay_as_can(groups: list[tuple[int, int]], counts: dict[tuple[str, int], int]) -> None:
    live = running(*groups)
    layout = placed(GROUND, live, live, counts)
    best = most_kept(live, counts)
    assert (layout is None) == (best is None)
    if layout is None:
        return
    here = Counter(((i.pool, i.tp), GROUND.at(i)) for i in live)
    assert sum(min(number, here[cell]) for cell, number in layout.items()) == best
    for island in (0, 1):
        assert sum(kind[1] * number for (kind, at), number in layout.items() if at == island) <= 4
    for kind, count in counts.items():
        assert sum(number for (one, _), number in layout.items() if one == kind) == count


def wanted(counts: dict[tuple[str, int], int], floor: int = 1) -> Wanted:
    shapes = {kind: Shape(kind[1]) for kind in counts}
    return Wanted("chat", counts, shapes, starts=4, gpus=8, floor=floor, ground=GROUND)


def test_free_gpus_on_two_islands_are_no_group() -> None:
    """Four GPUs are free, two on each: one of the small ones has to make room, after its successor is ready."""
    live = [seen("a", LEFT[:2]), seen("b", RIGHT[:2])]
    assert not room_now(GROUND, live, [4])
    counts = {("all", 2): 2, ("all", 4): 1}
    (start,) = steps(wanted(counts), live, "why")
    assert isinstance(start, Start) and start.shape.tp == 2 and start.shape.near in (*LEFT, *RIGHT)
    side = LEFT if start.shape.near in LEFT else RIGHT
    moved = "b" if side is LEFT else "a"
    coming = seen("c", side[2:], State.STARTING)
    assert steps(wanted(counts), [*live, coming], "why") == [], "make before break"
    ready = seen("c", side[2:])
    (stop,) = steps(wanted(counts), [*live, ready], "why")
    assert isinstance(stop, Stop) and stop.instance_id == moved
    stay = [one for one in live if one.id != moved]
    (start,) = steps(wanted(counts), [*stay, ready], "why")
    assert isinstance(start, Start) and start.shape.tp == 4


def test_nobody_moves_where_there_is_room() -> None:
    live = [seen("a", LEFT[:2])]
    (start,) = steps(wanted({("all", 2): 1, ("all", 4): 1}), live, "why")
    assert isinstance(start, Start) and start.shape.tp == 4
    assert steps(wanted({("all", 2): 1}), live, "why") == []


# --- sleep instead of an end


def sleepers(*instances: SeenInstance, counts: dict[tuple[str, int], int], now_s: float = 0.0) -> list[object]:
    asked = replace(wanted(counts), ground=None, park_s={2: 300.0}, now_s=now_s)
    return [(type(step).__name__, getattr(step, "instance_id", "")) for step in steps(asked, instances, "why")]


def able(name: str, gpus: list[str], **changes: object) -> SeenInstance:
    return replace(seen(name, gpus), parks=True, **changes)  # type: ignore[arg-type]


def test_what_is_not_needed_and_runs_nothing_sleeps() -> None:
    a, b = able("a", LEFT[:2], running=1), able("b", LEFT[2:])
    assert sleepers(a, b, counts={("all", 2): 1}) == [("Park", "b")]
    assert sleepers(a, replace(b, parks=False), counts={("all", 2): 1}) == [("Stop", "b")], "it has refused to sleep"
    assert sleepers(a, replace(b, running=1), counts={("all", 2): 1}) == [("Stop", "a")]


def test_a_sleeper_wakes_before_anything_starts() -> None:
    a, b = able("a", LEFT[:2]), able("b", LEFT[2:], state=State.PARKED)
    assert sleepers(a, b, counts={("all", 2): 2}) == [("Wake", "b")]


def test_a_sleeper_ends_when_it_has_cost_a_start_or_stands_in_the_way() -> None:
    a, b = able("a", LEFT[:2]), able("b", LEFT[2:], state=State.PARKED, since_s=100.0)
    assert sleepers(a, b, counts={("all", 2): 1}, now_s=399.0) == []
    assert sleepers(a, b, counts={("all", 2): 1}, now_s=400.0) == [("Stop", "b")]
    taken = replace(wanted({("all", 2): 1, ("all", 4): 1}), gpus=0, ground=None, park_s={2: 300.0})
    assert [type(step) for step in steps(taken, [a, b], "why")] == [Stop]
