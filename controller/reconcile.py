"""From what is to what the plan wants, by next safe steps only. Pure; applying them twice changes nothing more.

Make before break: what is missing is started first, or a drain of its kind is taken back; a surplus is drained when
what replaces it is READY, and never below the floor. Starts that keep failing are spaced out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from controller.placement import Ground, Kind, placed, room_now
from core.instances import Action, Forget, Park, Resume, SeenInstance, Shape, Start, State, Stop, Wake

BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # before the n-th start in a row that did not become ready
LIVE = (State.STARTING, State.READY)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one service should have. `shapes`: how an instance of a kind is started. `starts`: how many may start now.
    `gpus`: GPUs that are free; None = nobody counts them."""

    service: str
    counts: Mapping[Kind, int]
    shapes: Mapping[Kind, Shape]
    starts: int
    gpus: int | None
    floor: int = 1
    drain: bool = True
    ground: Ground | None = None  # where several islands of GPUs are known
    park_s: Mapping[int, float] = field(default_factory=dict)  # by TP, how long one that is not needed may sleep
    now_s: float = 0.0
    carries: Mapping[int, float] = field(default_factory=dict)  # by TP, the part of the load that one can carry
    from_pool: Mapping[str, float] = field(default_factory=dict)  # by pool, the part that it and longer ones have to


def steps(wanted: Wanted, instances: Sequence[SeenInstance], reason: str) -> list[Action]:
    """`instances`: those of this service that are the controller's, dead ones left out."""
    actions: list[Action] = []
    live = [i for i in instances if i.state in LIVE or i.held]
    asleep = [i for i in instances if i.state is State.PARKED]
    draining = [i for i in instances if i.state is State.DRAINING and not i.held]
    missing: dict[Kind, int] = {}
    for kind, count in wanted.counts.items():
        short = count - sum(1 for i in live if _kind(i) == kind)
        for instance in [i for i in draining if _kind(i) == kind and i.running][: max(0, short)]:
            actions.append(Resume(instance.id, f"{reason}: wanted again"))
            short -= 1
        for instance in [i for i in asleep if _kind(i) == kind][: max(0, short)]:
            actions.append(Wake(instance.id, f"{reason}: wanted again"))
            asleep.remove(instance)
            short -= 1
        if short > 0:
            missing[kind] = short
    ground = wanted.ground if missing else None  # nobody moves for its own sake
    sizes = [tp for (_, tp), number in missing.items() for _ in range(number)]
    layout = (
        None if ground is None or room_now(ground, instances, sizes) else placed(ground, live, instances, wanted.counts)
    )
    if ground is not None and layout is not None:
        started = list(_placed_starts(wanted, ground, layout, instances, reason))
        surplus = list(_misplaced(wanted, ground, layout, live))
    else:
        started, surplus = list(_starts(wanted, missing, reason, instances)), list(_surplus(wanted, live))
    actions += started
    actions += _slept_enough(wanted, asleep, bool(missing) and not started)
    if surplus and wanted.drain:
        on_the_way = len(started) + (len(draining) if missing else 0)
        stops = _stops(wanted, live, surplus, missing, on_the_way, reason)
        actions += stops if missing else _parked(wanted, stops, surplus)
    return actions


def _parked(wanted: Wanted, stops: Iterable[Stop], surplus: Sequence[SeenInstance]) -> Iterator[Action]:
    """One that runs nothing and can sleep is put to sleep rather than ended: it may be wanted again."""
    idle = {i.id for i in surplus if i.state is State.READY and i.parks and not i.running and wanted.park_s.get(i.tp)}
    return (Park(stop.instance_id, stop.reason) if stop.instance_id in idle else stop for stop in stops)


def _slept_enough(wanted: Wanted, asleep: Sequence[SeenInstance], gpus_wanted: bool) -> Iterator[Stop]:
    """A sleeper ends when its sleep has cost what its next start would, or when its GPUs are wanted. Where nobody says
    what that costs, whoever put it to sleep lets it sleep."""
    for instance in asleep:
        if gpus_wanted or wanted.now_s - instance.since_s >= wanted.park_s.get(instance.tp, inf):
            yield Stop(instance.id, "its GPUs are wanted" if gpus_wanted else "asleep for what a start would cost")


def _kind(instance: SeenInstance) -> Kind:
    return instance.pool, instance.tp


def _starts(
    wanted: Wanted, missing: Mapping[Kind, int], reason: str, instances: Sequence[SeenInstance] = ()
) -> Iterator[Start]:
    left, gpus = wanted.starts, wanted.gpus
    most = max(wanted.ground.free(instances), default=0) if wanted.ground is not None else None
    for (pool, tp), number in sorted(missing.items(), key=lambda item: (-item[1], -item[0][1], item[0])):
        for _ in range(number):
            if left < 1 or (gpus is not None and gpus < tp) or (most is not None and most < tp):
                break
            left -= 1
            gpus = None if gpus is None else gpus - tp
            yield Start(wanted.service, pool, reason, wanted.shapes[pool, tp])


def _placed_starts(
    wanted: Wanted, ground: Ground, layout: Mapping[tuple[Kind, int], int], instances: Sequence[SeenInstance],
    reason: str,
) -> Iterator[Start]:  # fmt: skip
    """Each on its island, as soon as that has the GPUs. Large groups first: they find room least easily."""
    free, left = ground.free(instances), wanted.starts
    gpus = sum(free) if wanted.gpus is None else wanted.gpus
    live = [i for i in instances if i.state in LIVE or i.held]
    here = Counter((_kind(i), ground.at(i)) for i in live)
    short = {kind: count - sum(1 for i in live if _kind(i) == kind) for kind, count in wanted.counts.items()}
    for (kind, at), number in sorted(layout.items(), key=lambda item: (-item[0][0][1], item[0])):
        for _ in range(number - here[kind, at]):
            moves = short[kind] <= 0  # it is there, elsewhere: make before break
            if left < 1 or min(free[at], gpus) < kind[1] or (moves and not wanted.drain):
                break
            left, short[kind] = left - 1, short[kind] - 1
            free[at], gpus = free[at] - kind[1], gpus - kind[1]
            yield Start(wanted.service, kind[0], reason, replace(wanted.shapes[kind], near=min(ground.islands[at])))


def _misplaced(
    wanted: Wanted, ground: Ground, layout: Mapping[tuple[Kind, int], int], live: Sequence[SeenInstance]
) -> Iterator[SeenInstance]:
    """As `_surplus`, island by island: also those that are wanted, and have to go where there is room for all."""
    spare = Counter((_kind(i), ground.at(i)) for i in live)
    for instance in sorted(live, key=lambda i: (i.state is State.READY, i.running, i.id)):
        cell = kind, at = _kind(instance), ground.at(instance)
        stay = layout.get((kind, at), 0) if at is not None else 0
        if spare[cell] > stay and not instance.held:
            spare[cell] -= 1
            yield instance


def _surplus(wanted: Wanted, live: Sequence[SeenInstance]) -> Iterator[SeenInstance]:
    """Starting ones first, then those with the fewest requests: the cheapest to lose."""
    order = sorted(live, key=lambda i: (i.state is State.READY, i.running, i.id))
    spare: dict[Kind, int] = {}
    for instance in live:
        spare[_kind(instance)] = spare.get(_kind(instance), 0) + 1
    for instance in order:
        if spare[_kind(instance)] > wanted.counts.get(_kind(instance), 0) and not instance.held:
            spare[_kind(instance)] -= 1
            yield instance


def _stops(
    wanted: Wanted, live: Sequence[SeenInstance], surplus: Sequence[SeenInstance], missing: Mapping[Kind, int],
    on_the_way: int, reason: str,
) -> Iterator[Stop]:  # fmt: skip
    """A surplus that stands in for what is missing waits until that is READY; where the missing can not start because
    the GPUs are taken, one drain at a time makes room for it, if those that remain carry the load meanwhile.
    `on_the_way`: starts, and drains that will make room."""
    going = {i.id for i in surplus}
    coming = on_the_way or any(i.state is State.STARTING and i.id not in going for i in live)
    gives = list(surplus)
    if coming:
        gives = [i for i in surplus if i.state is not State.READY]
    elif missing:  # what may not start needs no room
        gives = _one_that_may_go(wanted, live, surplus) if wanted.starts > 0 else []
    ready = sum(1 for i in live if i.state is State.READY)
    for instance in gives:
        if instance.state is State.READY:
            if ready <= wanted.floor:
                return
            ready -= 1
        yield Stop(instance.id, reason, keep_gpus=bool(missing))


def _one_that_may_go(
    wanted: Wanted, live: Sequence[SeenInstance], surplus: Sequence[SeenInstance]
) -> list[SeenInstance]:  # fmt: skip
    serving = [i for i in surplus if i.state is State.READY]
    return [i for i in serving if _carried_without(i, wanted, live)][:1] if serving else list(surplus[:1])


def _carried_without(leaving: SeenInstance, wanted: Wanted, live: Sequence[SeenInstance]) -> bool:
    """Whether the READY ones that remain carry the load at their fastest: for every pool that `leaving` can serve,
    those in that pool and in longer ones. True where nobody knows what one of them carries."""
    able = [(i.pool, wanted.carries.get(i.tp)) for i in live if i.state is State.READY and i is not leaving]
    pools = list(wanted.from_pool)
    if leaving.pool not in pools or any(part is None or pool not in pools for pool, part in able):
        return True
    for place, pool in enumerate(pools[: pools.index(leaving.pool) + 1]):
        if sum(part or 0.0 for where, part in able if where in pools[place:]) < wanted.from_pool[pool]:
            return False
    return True


def barred_out(
    doomed: Sequence[SeenInstance], usable: Sequence[SeenInstance], wanted: Wanted, free_gpus: int | None
) -> Iterator[Stop]:
    """Instances on GPUs that operators took out go when what replaces them is READY; where the GPUs for that are not
    there, they go first, down to the floor."""
    ready = [i for i in usable if i.state is State.READY]
    left = sum(1 for i in doomed if i.state is State.READY)
    for instance in doomed:
        if instance.state not in (*LIVE, State.PARKED):
            continue
        needed = sum(count for (pool, _), count in wanted.counts.items() if pool == instance.pool)
        replaced = sum(1 for i in ready if i.pool == instance.pool) >= needed
        no_room = free_gpus is not None and free_gpus < instance.tp and len(ready) + left > wanted.floor
        if replaced or no_room or instance.state is not State.READY:
            left -= instance.state is State.READY
            yield Stop(instance.id, "an operator took its GPU out")


def dead(instances: Sequence[SeenInstance]) -> list[Action]:
    return [Forget(i.id, "it failed") for i in instances if i.state is State.FAILED and not i.adopted]
