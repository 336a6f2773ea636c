"""When clocks are set, and for which instances. One clock for all instances of a kind: what differs between them is how
full the router makes them, and the fullest one's needs are what the kind's price was made for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from controller.clocks import finishing_mhz, wanted_mhz
from controller.exploring import explored
from controller.knowledge import ServiceKnowledge, Settings
from controller.overrides import Override, clock_pinned, paused
from controller.planning import ServicePlan, Target
from controller.problem import Kind
from controller.state import ServiceState
from controller.trust import Doubt
from core.instances import Action, Seen, SeenInstance, SetClock, State

NOW_S = 5.0


def set_clocks(
    one: ServiceState, seen: Seen, known: ServiceKnowledge, settings: Settings, doubt: Doubt,
    overrides: Sequence[Override] = (),
) -> tuple[ServiceState, list[Action]]:  # fmt: skip
    """At their period, and at once where the ladder or the guard says so. Operators may pin a pool's clock, or pause
    the service: then only the ladder and the guard turn clocks. None falls on old observations."""
    plan, now_s, name = one.plan, seen.now_s, known.spec.name
    if plan is None:
        return one, []
    kv_tokens = {pool.name: _kv(seen, name, pool.name) for pool in seen.pools}
    due = now_s - one.clocks_s >= settings.clock_every_s - 1e-6
    load = _load(one, plan, seen) if due or settings.learn else 0.0
    if settings.learn:
        one = explored(one, plan, seen, name, load, settings)
    boosted = _boosted(one, plan, seen, name)
    turns = due and not paused(overrides, name)
    there = [i for i in seen.instances if i.service == name and not clock_pinned(overrides, name, i.pool)]
    falls = {pool for pool in kv_tokens if pool not in doubt.pools and not _fills(pool, one, kv_tokens)}
    actions: list[Action] = []
    if turns or boosted:
        for target, part in [*((target, 1.0) for target in plan.targets), *_unnamed(plan, there, name)]:
            pool = target.kind.pool
            if turns or pool in boosted:
                actions += _of_target(target, there, one, load * part, pool in boosted, pool in falls)
    actions += _leaving(there, known, boosted, falls if turns else ())
    if due:
        one = replace(one, clocks_s=now_s, kv_tokens=kv_tokens)
    return one, actions


def _boosted(one: ServiceState, plan: ServicePlan, seen: Seen, name: str) -> set[str]:
    """Pools that run at their fastest: those on a rung, and from the second rung on, where the plan has none of such a
    pool, the next longer one that it has, for that takes its requests. Boosting that one for whoever is late at all
    costs 2 % more joules (twenty minutes of both traces)."""
    pools = [pool.name for pool in seen.pools if pool.service == name]
    if one.health.harmed_until_s > seen.now_s:
        return set(pools)
    named = {target.kind.pool for target in plan.targets}
    boosted = set[str]()
    for place, pool in enumerate(pools):
        standing = one.standings.get(pool)
        if standing is not None and standing.rungs:
            boosted.add(pool)
            if standing.rungs > 1:
                boosted.add(next((longer for longer in pools[place:] if longer in named), pool))
    return boosted


def _unnamed(plan: ServicePlan, there: Sequence[SeenInstance], name: str) -> Iterator[tuple[Target, float]]:
    """Kinds that serve although the plan has none of them, with their part of the load: what they hold of all sequences
    now, and no less than what their number among all is, for the router may give them that at any moment."""
    ready = [i for i in there if i.state is State.READY]
    named = {(target.kind.pool, target.kind.tp) for target in plan.targets}
    sequences = max(1, sum(i.sequences for i in ready))
    for pool, tp in dict.fromkeys((i.pool, i.tp) for i in ready if (i.pool, i.tp) not in named):
        mine = [i for i in ready if (i.pool, i.tp) == (pool, tp)]
        clocks = next((one.clocks for one in plan.alone if one.tp == tp), ())
        part = max(len(mine) / len(ready), sum(i.sequences for i in mine) / sequences)
        yield Target(Kind(name, pool, "", tp), 0, 0, clocks), part


def _of_target(
    target: Target, there: Sequence[SeenInstance], one: ServiceState, load: float, boost: bool, falls: bool
) -> list[Action]:
    kind = target.kind
    mine = [
        i for i in there
        if (i.pool, i.tp) == (kind.pool, kind.tp) and i.clock_knob and i.state in (State.READY, State.STARTING)
    ]  # fmt: skip
    ready = [i for i in mine if i.state is State.READY]
    if not ready:
        return []
    now_mhz = max(i.clock_mhz for i in ready)
    mhz = wanted_mhz(target, load, len(ready), now_mhz, boost=boost, may_fall=falls)
    tried = one.learning.clock_mhz
    if tried and not boost and any(price.clock_mhz == tried for price in target.clocks):
        mhz = now_mhz if not falls and tried < now_mhz else tried
    why = "boost" if boost else f"{load:.2f} of the planned load on {len(ready)}"
    return [SetClock(i.id, mhz, why) for i in mine if i.clock_mhz != mhz]


def _leaving(
    there: Sequence[SeenInstance], known: ServiceKnowledge, boosted: Collection[str], turn: Collection[str]
) -> Iterator[Action]:
    """Whoever drains gets nothing new, so that what it decodes is all there is to carry. `turn`: pools whose clocks may
    turn now for anything but a boost."""
    model = known.model
    for i in there:
        if model is None or i.state is not State.DRAINING or not i.clock_knob or not i.sequences:
            continue
        if i.pool in boosted:
            mhz = max(model.clocks_mhz)
        elif i.pool in turn and not i.prefill_tokens:
            mhz = finishing_mhz(model, i)
        else:
            continue
        if mhz != i.clock_mhz:
            yield SetClock(i.id, mhz, "boost" if i.pool in boosted else f"{i.sequences} sequences end here")


def _fills(pool: str, one: ServiceState, kv_tokens: dict[str, int]) -> bool:
    return kv_tokens.get(pool, 0) > 1.05 * one.kv_tokens.get(pool, 0)


def _load(one: ServiceState, plan: ServicePlan, seen: Seen) -> float:
    """What arrives now over what was planned for, by whichever of requests, prompts and answers grew most."""
    mean = one.demand.load.forecast(seen.wall_s, NOW_S).total_mean
    now = mean.requests_rps, mean.input_tokens_per_s, mean.output_tokens_per_s
    shares = [rate / planned for rate, planned in zip(now, plan.planned, strict=True) if planned > 0]
    return max(shares, default=1.0)


def _kv(seen: Seen, service: str, pool: str) -> int:
    return sum(i.kv_tokens for i in seen.instances if (i.service, i.pool) == (service, pool))
