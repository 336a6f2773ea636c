"""From what is to what the plan wants, by next safe steps only. Pure; applying them twice changes nothing more.

Make before break: what is missing is started first, or a drain of its kind is taken back; a surplus is drained when
what replaces it is READY, and never below the floor. Starts that keep failing are spaced out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from core.instances import Action, Forget, Resume, SeenInstance, Shape, Start, State, Stop

BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # before the n-th start in a row that did not become ready
LIVE = (State.STARTING, State.READY, State.PARKED)
Kind = tuple[str, int]  # (pool, TP)


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


def steps(wanted: Wanted, instances: Sequence[SeenInstance], reason: str) -> list[Action]:
    """`instances`: those of this service that are the controller's, dead ones left out."""
    actions: list[Action] = []
    live = [i for i in instances if i.state in LIVE or i.held]
    draining = [i for i in instances if i.state is State.DRAINING and not i.held]
    missing: dict[Kind, int] = {}
    for kind, count in wanted.counts.items():
        short = count - sum(1 for i in live if _kind(i) == kind)
        for instance in [i for i in draining if _kind(i) == kind and i.running][: max(0, short)]:
            actions.append(Resume(instance.id, f"{reason}: wanted again"))
            short -= 1
        if short > 0:
            missing[kind] = short
    started = list(_starts(wanted, missing, reason))
    actions += started
    surplus = list(_surplus(wanted, live))
    if surplus and wanted.drain:
        on_the_way = len(started) + (len(draining) if missing else 0)
        actions += _stops(wanted, live, surplus, missing, on_the_way, reason)
    return actions


def _kind(instance: SeenInstance) -> Kind:
    return instance.pool, instance.tp


def _starts(wanted: Wanted, missing: Mapping[Kind, int], reason: str) -> Iterator[Start]:
    left, gpus = wanted.starts, wanted.gpus
    for (pool, tp), number in sorted(missing.items(), key=lambda item: (-item[1], item[0])):
        for _ in range(number):
            if left < 1 or (gpus is not None and gpus < tp):
                break
            left -= 1
            gpus = None if gpus is None else gpus - tp
            yield Start(wanted.service, pool, reason, wanted.shapes[pool, tp])


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
    the GPUs are taken, one drain at a time makes room for it. `on_the_way`: starts, and drains that will make room."""
    going = {i.id for i in surplus}
    coming = on_the_way or any(i.state is State.STARTING and i.id not in going for i in live)
    gives = list(surplus)
    if coming:
        gives = [i for i in surplus if i.state is not State.READY]
    elif missing:  # what may not start needs no room
        gives = ([i for i in surplus if i.state is State.READY][:1] or gives[:1]) if wanted.starts > 0 else []
    ready = sum(1 for i in live if i.state is State.READY)
    for instance in gives:
        if instance.state is State.READY:
            if ready <= wanted.floor:
                return
            ready -= 1
        yield Stop(instance.id, reason, keep_gpus=bool(missing))


def barred_out(
    doomed: Sequence[SeenInstance], usable: Sequence[SeenInstance], wanted: Wanted, free_gpus: int | None
) -> Iterator[Stop]:
    """Instances on GPUs that operators took out go when what replaces them is READY; where the GPUs for that are not
    there, they go first, down to the floor."""
    ready = [i for i in usable if i.state is State.READY]
    left = sum(1 for i in doomed if i.state is State.READY)
    for instance in doomed:
        if instance.state not in LIVE:
            continue
        needed = sum(count for (pool, _), count in wanted.counts.items() if pool == instance.pool)
        replaced = sum(1 for i in ready if i.pool == instance.pool) >= needed
        no_room = free_gpus is not None and free_gpus < instance.tp and len(ready) + left > wanted.floor
        if replaced or no_room or instance.state is not State.READY:
            left -= instance.state is State.READY
            yield Stop(instance.id, "an operator took its GPU out")


def dead(instances: Sequence[SeenInstance]) -> list[Action]:
    return [Forget(i.id, "it failed") for i in instances if i.state is State.FAILED and not i.adopted]
