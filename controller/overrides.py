"""What operators order: overrides that expire, and plans that they apply. Pure; the values travel through the run log.

Owns the words and what they make of a plan's counts. An override holds against any plan until its time is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from controller.planning import Ordered, ServicePlan
from controller.problem import Bound
from controller.reconcile import LIVE
from core.instances import (
    AS_CONFIGURED,
    Action,
    Exclude,
    Hold,
    Release,
    Seen,
    SeenInstance,
    SeenPool,
    SetClock,
    Shape,
    State,
)

OverrideKind = Literal["pin", "floor", "ceiling", "pause", "drain", "exclude_gpu"]
Kind = tuple[str, int]  # (pool, TP)


class Override(Struct, frozen=True):
    """`until_s`: Unix time. What counts by kind: pin (`pool`, `instances`, `clock_mhz`), floor and ceiling (`pool`,
    `instances`), pause (`service`; empty = all), drain (`instance`), exclude_gpu (`gpu`, its UUID)."""

    id: str
    kind: OverrideKind
    until_s: float
    service: str = ""
    pool: str = ""
    instance: str = ""
    instances: int | None = None
    clock_mhz: int | None = None
    gpu: str = ""
    reason: str = ""
    by: str = ""


class Impose(Struct, frozen=True, tag_field="order", tag="impose"):
    override: Override


class Lift(Struct, frozen=True, tag_field="order", tag="lift"):
    id: str


class Apply(Struct, frozen=True, tag_field="order", tag="apply"):
    """These plans are in force from now on: until the next one in `enforce`, until the next approval in `advise`."""

    plans: Mapping[str, ServicePlan]


Order = Impose | Lift | Apply


def imposed(overrides: Sequence[Override], orders: Sequence[Order]) -> tuple[Override, ...]:
    """The overrides after these orders; one with the id of an earlier one replaces it."""
    found = {one.id: one for one in overrides}
    for order in orders:
        if isinstance(order, Impose):
            found[order.override.id] = order.override
        elif isinstance(order, Lift):
            found.pop(order.id, None)
    return tuple(found.values())


def live(overrides: Sequence[Override], seen: Seen) -> tuple[Override, ...]:
    """Those whose time is not over and, of drains, whose instance is still there."""
    there = {instance.id for instance in seen.instances}
    return tuple(o for o in overrides if o.until_s > seen.wall_s and (o.kind != "drain" or o.instance in there))


def paused(overrides: Sequence[Override], service: str) -> bool:
    return any(o.kind == "pause" and o.service in ("", service) for o in overrides)


def excluded(overrides: Sequence[Override]) -> tuple[str, ...]:
    return tuple(sorted({o.gpu for o in overrides if o.kind == "exclude_gpu"}))


def drains(now: Sequence[Override], ended: Sequence[Override], seen: Seen) -> list[Action]:
    """Instances that operators hold take nothing new; those whose time is over serve again."""
    held = {o.instance: o for o in now if o.kind == "drain"}
    over = {o.instance for o in ended if o.kind == "drain"} - held.keys()
    actions: list[Action] = []
    for instance in seen.instances:
        if instance.id in held and instance.state in (State.READY, State.STARTING):
            actions.append(Hold(instance.id, f"drained by {held[instance.id].id}"))
        elif instance.id in over and instance.held:
            actions.append(Release(instance.id, "the override that drained it is over"))
    return actions


def clocks(overrides: Sequence[Override], seen: Seen, service: str) -> list[Action]:
    """Pinned clocks, written where they differ."""
    pinned = {o.pool: o for o in overrides if o.kind == "pin" and o.service == service and o.clock_mhz}
    return [
        SetClock(i.id, mhz, f"pinned by {o.id}")
        for i in seen.instances
        if i.service == service and (o := pinned.get(i.pool)) and (mhz := o.clock_mhz)
        and i.clock_knob and i.state is State.READY and i.clock_mhz != mhz
    ]  # fmt: skip


def clock_pinned(overrides: Sequence[Override], service: str, pool: str) -> bool:
    return any(o.kind == "pin" and (o.service, o.pool) == (service, pool) and o.clock_mhz for o in overrides)


def bounded(
    overrides: Sequence[Override], pools: Sequence[SeenPool], counts: Mapping[Kind, int], shapes: Mapping[Kind, Shape]
) -> tuple[dict[Kind, int], dict[Kind, Shape]]:
    """Counts as pins, floors and ceilings allow them. A floor wins over a ceiling, a pin over both."""
    counts, shapes = dict(counts), dict(shapes)
    for pool in pools:
        mine = [o for o in overrides if (o.service, o.pool) == (pool.service, pool.name) and o.instances is not None]
        if not mine:
            continue
        kinds = [kind for kind in counts if kind[0] == pool.name]
        whole = sum(counts[kind] for kind in kinds)
        wanted = min([whole, *_numbers(mine, "ceiling")])
        wanted = max([wanted, *_numbers(mine, "floor")])
        wanted = next(iter(_numbers(mine, "pin")), wanted)
        if not kinds:
            kinds = [(pool.name, pool.tp)]
            shapes[kinds[0]] = AS_CONFIGURED
        _resize(counts, kinds, wanted - whole)
    return counts, shapes


def ordered(overrides: Sequence[Override], pools: Sequence[SeenPool]) -> Ordered:
    """What a plan has to keep to. A pool whose configured number an operator set is bound to that."""
    bounds = []
    for pool in pools:
        mine = [o for o in overrides if (o.service, o.pool) == (pool.service, pool.name) and o.instances is not None]
        least, most = max(_numbers(mine, "floor"), default=0), min(_numbers(mine, "ceiling"), default=None)
        exactly = next(iter(_numbers(mine, "pin")), pool.wanted if pool.pinned else None)
        if exactly is not None:
            least = most = exactly
        elif most is not None:
            most = max(least, most)
        if pool.managed and (least or most is not None):
            bounds.append(Bound(pool.service, pool.name, least, most))
    return Ordered(tuple(bounds), excluded(overrides))


def lacking(
    overrides: Sequence[Override], pools: Sequence[SeenPool], counts: Mapping[Kind, int], mine: Sequence[SeenInstance]
) -> bool:
    """A pool of this service has fewer instances than an operator ordered."""
    asked = _exact(overrides, pools) | {o.pool for o in _of(overrides, pools) if o.kind == "floor" and o.instances}
    there = Counter((i.pool, i.tp) for i in mine if i.state in (*LIVE, State.PARKED))
    return any(there[kind] < count for kind, count in counts.items() if kind[0] in asked)


def beyond(
    overrides: Sequence[Override], pools: Sequence[SeenPool], counts: Mapping[Kind, int], mine: Sequence[SeenInstance]
) -> frozenset[str]:
    """The pools of this service that have more instances, or other ones, than the number that an operator set."""
    there = Counter((i.pool, i.tp) for i in mine if i.state in LIVE)
    more = {pool for (pool, tp), count in there.items() if count > counts.get((pool, tp), 0)}
    return frozenset(more & _exact(overrides, pools))


def _exact(overrides: Sequence[Override], pools: Sequence[SeenPool]) -> set[str]:
    pinned = {o.pool for o in _of(overrides, pools) if o.kind == "pin" and o.instances is not None}
    return pinned | {pool.name for pool in pools if pool.pinned}


def _of(overrides: Sequence[Override], pools: Sequence[SeenPool]) -> list[Override]:
    named = {(pool.service, pool.name) for pool in pools}
    return [o for o in overrides if (o.service, o.pool) in named]


def _numbers(overrides: Sequence[Override], kind: str) -> list[int]:
    """The newest first."""
    return [o.instances for o in reversed(overrides) if o.kind == kind and o.instances is not None]


def _resize(counts: dict[Kind, int], kinds: Sequence[Kind], more: int) -> None:
    """What is added is of the kind there is most of; what goes is of the kind there is least of."""
    for kind in sorted(kinds, key=lambda kind: counts.get(kind, 0), reverse=more > 0):
        before = counts.get(kind, 0)
        counts[kind] = max(0, before + more)
        more -= counts[kind] - before
        if not more:
            return


def barred(instance: SeenInstance, gpus: Sequence[str]) -> bool:
    """It holds a GPU that operators took out."""
    return any(gpu in gpus for gpu in instance.gpus)


def take_out(gpus: Sequence[str], before: Sequence[str]) -> list[Action]:
    return [Exclude(tuple(gpus), "operators took GPUs out or gave them back")] if tuple(gpus) != tuple(before) else []
