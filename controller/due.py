"""When a plan is asked for, why, and for whom. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.knowledge import Knowledge
from controller.overrides import Override, excluded, ordered, paused
from controller.planning import Ask, Asked, Ordered
from controller.reconcile import LIVE
from controller.state import ServiceState
from core.instances import Seen, State

MINUTE_S = 60.0


def asked(
    services: Mapping[str, ServiceState], seen: Seen, knowledge: Knowledge, overrides: Sequence[Override] = ()
) -> Ask | None:
    """All services that can be planned, as soon as one of them is due: they share the GPUs."""
    able = {name: one for name, one in services.items() if _able(name, one, knowledge, overrides)}
    if any(one.asked_s is not None for one in able.values()):
        return None
    orders = ordered(overrides, seen.pools)
    reasons = [f"{name}: {why}" for name, one in able.items() if (why := due(one, seen, knowledge, orders))]
    return ask_for(able, seen, knowledge, overrides, "; ".join(reasons)) if reasons else None


def ask_for(
    services: Mapping[str, ServiceState], seen: Seen, knowledge: Knowledge, overrides: Sequence[Override], reason: str
) -> Ask:
    """A plan for these services on the GPUs that operators have left them."""
    asks = {name: Asked(knowledge.services[name], one.demand, one.health.trim) for name, one in services.items()}
    if knowledge.gpus:
        others = sum(i.tp for i in seen.instances if i.service not in asks and not i.adopted)
        knowledge = replace(knowledge, gpus=max(1, knowledge.gpus - len(excluded(overrides)) - others))
    orders = ordered(overrides, seen.pools)
    live, asleep = _counted(seen, LIVE), _counted(seen, (State.PARKED,))
    return Ask(knowledge, asks, live, seen.now_s, seen.wall_s, reason, orders, asleep)


def plannable(name: str, knowledge: Knowledge) -> bool:
    known = knowledge.services.get(name)
    return known is not None and known.model is not None


def _able(name: str, one: ServiceState, knowledge: Knowledge, overrides: Sequence[Override]) -> bool:
    if not plannable(name, knowledge) or paused(overrides, name) or one.demand.counts is None:
        return False
    return any(count.asked for count in one.demand.counts)


def due(one: ServiceState, seen: Seen, knowledge: Knowledge, orders: Ordered) -> str:
    """Why a plan is to be made now; empty: it is not."""
    settings = knowledge.settings
    if one.demand.load.windows.heard_s < min(MINUTE_S, settings.plan_every_s):
        return ""
    if one.plan is None:
        return "the first plan"
    if one.plan.ordered != orders:
        return "operators have ordered otherwise"
    age_s = seen.now_s - one.plan.at_s
    if age_s >= settings.plan_every_s:
        return f"the plan is {age_s:.0f} s old"
    if age_s < MINUTE_S:
        return ""
    if one.health.bad and one.health.minute_s > one.plan.at_s:
        return "a minute broke its promise"
    forecast = one.demand.load.forecast(seen.wall_s, 300.0, settings.coverage)
    now_rps, then_rps = forecast.total_mean.requests_rps, one.plan.mean_rps
    if now_rps - then_rps > settings.drift_band * max(1.0, then_rps):  # less load can wait for the next plan
        return f"{now_rps:.2f} requests/s are forecast, the plan is for {then_rps:.2f}"
    return ""


def _counted(seen: Seen, states: Sequence[State]) -> dict[tuple[str, str, int], int]:
    counted: dict[tuple[str, str, int], int] = {}
    for i in seen.instances:
        if i.state in states and not i.adopted:
            counted[i.service, i.pool, i.tp] = counted.get((i.service, i.pool, i.tp), 0) + 1
    return counted
