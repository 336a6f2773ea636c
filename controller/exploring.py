"""Learning mode in a tick: when there is slack, what a minute has taught, which clock the next one has. Pure.

While it learns, all instances of a service have one clock, so that the watts of the service tell of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.clocks import FULL
from controller.health import TELLING
from controller.knowledge import Settings
from controller.learning import SPENT, chosen, learnt, metered
from controller.planning import ServicePlan, Target
from controller.problem import Kind
from controller.state import Health, ServiceState
from core.instances import Seen, SeenInstance, State


def taught(one: ServiceState, before: Health, settings: Settings) -> ServiceState:
    """`one` with its newest health; at the end of a minute that was judged, with what it has taught."""
    minutes = one.health.minutes
    if not settings.learn or minutes is before.minutes:
        return one
    judged, attained = minutes[-1]
    if judged < TELLING:
        return replace(one, learning=replace(one.learning, measured_j=0.0, priced_j=0.0))
    return replace(one, learning=learnt(one.learning, attained >= settings.promised * judged))


def slack(one: ServiceState, now_s: float, settings: Settings) -> bool:
    """Nobody is predicted late, no minute was bad, and less than SPENT of the hour's error budget is gone."""
    if one.health.bad or one.health.harmed_until_s > now_s or any(s.rungs for s in one.standings.values()):
        return False
    judged, attained = (sum(minute[at] for minute in one.health.minutes) for at in range(2))
    return judged - attained <= SPENT * (1 - settings.promised) * judged


def explored(
    one: ServiceState, plan: ServicePlan, seen: Seen, name: str, load: float, settings: Settings
) -> ServiceState:
    """Meters this tick; where no minute runs, one begins at the clock that is chosen."""
    there = [i for i in seen.instances if i.service == name and i.state is not State.FAILED]
    ready = {target.kind: _ready(there, target) for target in plan.targets}
    prices, learning = _priced(plan, ready, load), one.learning
    if not learning.clock_mhz:
        luck = random.Random(f"{name} {seen.now_s:.3f}")
        free = slack(one, seen.now_s, settings)
        return replace(one, learning=chosen(learning, prices, free, luck)) if prices else one
    watts = next((s.watts for s in seen.services if s.name == name and s.watts_age_s <= settings.stale_s), None)
    price_w = prices.get(learning.clock_mhz)
    steady = all(i.state is State.READY and i.clock_mhz == learning.clock_mhz for i in there)
    if watts is None or not price_w or not steady or len(there) != sum(ready.values()):
        return one
    return replace(one, learning=metered(learning, watts, price_w))


def _ready(there: Sequence[SeenInstance], target: Target) -> int:
    kind = target.kind
    return sum((i.pool, i.tp) == (kind.pool, kind.tp) and i.state is State.READY for i in there)


def _priced(plan: ServicePlan, ready: Mapping[Kind, int], load: float) -> dict[int, float]:
    """Watts of the service by clock, of those at which every kind carries its load by the model."""
    found: dict[int, float] | None = None
    for target in plan.targets:
        count = ready[target.kind]
        fit = {c.clock_mhz: c for c in target.clocks if count and c.needs * load <= FULL * count}
        watts = {mhz: count * price.watts_at(price.needs * load / count) for mhz, price in fit.items()}
        found = watts if found is None else {mhz: found[mhz] + w for mhz, w in watts.items() if mhz in found}
    return found or {}
