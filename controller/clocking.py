"""When clocks are set, and for which instances. One clock for all instances of a kind: what differs between them is how
full the router makes them, and the fullest one's needs are what the kind's price was made for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.clocks import wanted_mhz
from controller.exploring import explored
from controller.knowledge import ServiceKnowledge, Settings
from controller.overrides import Override, clock_pinned, paused
from controller.planning import ServicePlan, Target
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
    plan, now_s = one.plan, seen.now_s
    if plan is None:
        return one, []
    kv_tokens = {pool.name: _kv(seen, known.spec.name, pool.name) for pool in seen.pools}
    due = now_s - one.clocks_s >= settings.clock_every_s - 1e-6
    load = _load(one, plan, seen) if due or settings.learn else 0.0
    if settings.learn:
        one = explored(one, plan, seen, known.spec.name, load, settings)
    harmed = one.health.harmed_until_s > now_s
    actions: list[Action] = []
    for target in plan.targets:
        standing = one.standings.get(target.kind.pool)
        boost = harmed or (standing is not None and standing.rungs > 0)
        held = paused(overrides, known.spec.name) or not due
        if (held and not boost) or clock_pinned(overrides, known.spec.name, target.kind.pool):
            continue
        falls = target.kind.pool not in doubt.pools and not _fills(target.kind.pool, one, kv_tokens)
        actions += _of_target(target, seen, one, load, boost, falls)
    if due:
        one = replace(one, clocks_s=now_s, kv_tokens=kv_tokens)
    return one, actions


def _of_target(target: Target, seen: Seen, one: ServiceState, load: float, boost: bool, falls: bool) -> list[Action]:
    kind = target.kind
    mine = [
        i for i in seen.instances
        if (i.service, i.pool, i.tp) == (kind.service, kind.pool, kind.tp) and i.clock_knob
        and i.state in (State.READY, State.DRAINING, State.STARTING)
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
    return [SetClock(i.id, mhz, why) for i in mine if i.clock_mhz != mhz and _may(i, mhz)]


def _fills(pool: str, one: ServiceState, kv_tokens: dict[str, int]) -> bool:
    return kv_tokens.get(pool, 0) > 1.05 * one.kv_tokens.get(pool, 0)


def _may(instance: SeenInstance, mhz: int) -> bool:
    """A draining instance finishes at the clock it has, unless a faster one is wanted."""
    return instance.state is not State.DRAINING or mhz > instance.clock_mhz


def _load(one: ServiceState, plan: ServicePlan, seen: Seen) -> float:
    """What arrives now over what was planned for, by whichever of requests, prompts and answers grew most."""
    mean = one.demand.load.forecast(seen.wall_s, NOW_S).total_mean
    now = mean.requests_rps, mean.input_tokens_per_s, mean.output_tokens_per_s
    shares = [rate / planned for rate, planned in zip(now, plan.planned, strict=True) if planned > 0]
    return max(shares, default=1.0)


def _kv(seen: Seen, service: str, pool: str) -> int:
    return sum(i.kv_tokens for i in seen.instances if (i.service, i.pool) == (service, pool))
