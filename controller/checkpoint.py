"""What the controller keeps over a restart of its process, as a value for JSON and back. Pure.

Kept: the load's history and its head-room, lengths of answers, trims, the hour's attainment, plans, starts of the last
hour, overrides. Not kept: counters (the new process counts from zero), the ladder and what is being planned.
Monotonic times are moved by what wall clocks say has passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from controller.planning import ServicePlan
from controller.state import ControllerState, Health, ServiceState
from core.service import ServiceSpec

SCHEMA = 1
PLAN_S = 900.0  # an older plan is for a load that has gone


@dataclass(frozen=True, slots=True)
class Saved:
    """`now_s`, `wall_s`: the same instant on both clocks."""

    now_s: float
    wall_s: float
    state: ControllerState
    schema: int = SCHEMA


def restored(plain: Any, now_s: float, wall_s: float, services: Mapping[str, ServiceSpec]) -> ControllerState:
    """ValueError where it is no checkpoint, or one of another schema. Services that are gone are left out, and plans
    for pools that are."""
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
        raise ValueError(f"no checkpoint of schema {SCHEMA}")
    try:
        saved = msgspec.convert(plain, Saved)
    except msgspec.ValidationError as error:
        raise ValueError(f"no checkpoint that can be read: {error}") from None
    later_s = (now_s - wall_s) - (saved.now_s - saved.wall_s)
    kept = {
        name: _service(one, services[name], later_s, now_s)
        for name, one in saved.state.services.items()
        if name in services
    }
    return ControllerState(kept, saved.state.ticks, saved.state.overrides)


def _service(one: ServiceState, spec: ServiceSpec, later_s: float, now_s: float) -> ServiceState:
    plan = _plan(one.plan, spec, later_s)
    if plan is not None and now_s - plan.at_s > PLAN_S:
        plan = None
    starts_s = tuple(at_s + later_s for at_s in one.starts_s)
    harmed_until_s = one.health.harmed_until_s + later_s if one.health.harmed_until_s else 0.0
    health = Health(
        now_s, harmed_until_s=harmed_until_s, trim=one.health.trim, minutes=one.health.minutes,
        classes=one.health.classes,
    )  # fmt: skip
    return ServiceState(
        demand=replace(one.demand, counts=None), plan=plan, approved=_plan(one.approved, spec, later_s),
        health=health, starts_s=starts_s, learning=replace(one.learning, clock_mhz=0, measured_j=0.0, priced_j=0.0),
    )  # fmt: skip


def _plan(plan: ServicePlan | None, spec: ServiceSpec, later_s: float) -> ServicePlan | None:
    pools = {pool.name for pool in spec.pools}
    if plan is None or any(target.kind.pool not in pools for target in plan.targets):
        return None
    return replace(plan, at_s=plan.at_s + later_s)
