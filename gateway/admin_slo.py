"""/admin/slo and /admin/pools: promises beside what is measured of them, and the pools. Read only."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter
from pydantic import BaseModel, Field

from controller.state import ServiceState
from core.instances import ClassCount
from core.service import CLASSES
from gateway.admin_models import PoolView, SloView
from gateway.admin_views import state_view
from gateway.service import Service
from gateway.wiring import Running


class AttainmentView(BaseModel):
    judged: int = Field(description="requests that count: shed and failed ones too, cancelled ones and 4xx not")
    attained: int
    attainment: float | None = Field(description="attained / judged; null: none was judged")


class BudgetView(AttainmentView):
    """Of the last hour, minute by minute."""

    minutes: int = Field(description="that were judged")
    allowed: float = Field(description="requests that may miss: judged x (1 - promised)")
    missed: int
    left: float = Field(description="share of the allowed ones that is left; negative: overspent")


class ServiceSloView(BaseModel):
    service: str
    slo: SloView
    promised: float = Field(description="share of requests that must attain")
    kept: bool = Field(description="every class with 100 judged requests or more keeps it")
    total: AttainmentView = Field(description="since the gateway started")
    classes: dict[str, AttainmentView] = Field(description="by input size and predicted output size")
    hour: BudgetView
    trim: float = Field(description="above 1 plans keep more room than forecast, because promises were broken")
    bad_minutes: int = Field(description="minutes in a row under what is promised")
    at_maximum: bool = Field(description="everything runs at its fastest until promises are kept again")


class PoolOfView(PoolView):
    service: str
    ready: int
    starting: int
    draining: int
    parked: int
    pinned: bool = Field(description="an operator set its number of instances without an end")


TELLING = 100  # requests of a class from which its attainment is judged (docs/figures.md)


def make_slo_routes(running: Running) -> APIRouter:
    router = APIRouter()

    async def slo() -> list[ServiceSloView]:
        """What is promised, what was kept, and what is left of the error budget of the last hour."""
        states, now_s = running.controller.state.services, running.clock.now_s()
        promised = running.controller.knowledge.settings.promised
        services = running.gateway.services
        return [
            _service(one, states.get(name, ServiceState()), promised, now_s) for name, one in services.items()
        ]  # fmt: skip

    async def pools() -> list[PoolOfView]:
        """All pools of all services."""
        fleets = {name: service.fleet for name, service in running.gateway.services.items()}
        found = []
        for service in state_view(running).services:
            for pool in service.pools:
                states = [i.state for i in service.instances if i.pool == pool.name]
                counts = {name: states.count(name) for name in ("ready", "starting", "draining", "parked")}
                pinned = pool.name in fleets[service.name].pinned
                fields = {**pool.model_dump(), **counts, "service": service.name, "pinned": pinned}
                found.append(PoolOfView.model_validate(fields))
        return found

    router.add_api_route("/slo", slo, methods=["GET"])
    router.add_api_route("/pools", pools, methods=["GET"])
    return router


def _service(service: Service, state: ServiceState, promised: float, now_s: float) -> ServiceSloView:
    spec, counts, health = service.spec, service.counts.seen(), state.health
    classes = {name: _share([count]) for name, count in zip(CLASSES, counts, strict=True)}
    told = [one.attainment for one in classes.values() if one.judged >= TELLING and one.attainment is not None]
    judged = sum(minute[0] for minute in health.minutes)
    attained = sum(minute[1] for minute in health.minutes)
    allowed, missed = judged * (1 - promised), judged - attained
    return ServiceSloView(
        service=spec.name,
        slo=SloView(ttft_p99_ms={k: v * 1000 for k, v in spec.slo.ttft_s.items()}, tbt_p99_ms=spec.slo.tbt_s * 1000),
        promised=promised,
        kept=all(share >= promised for share in told),
        total=_share(counts),
        classes=classes,
        hour=BudgetView(
            judged=judged, attained=attained, attainment=attained / judged if judged else None,
            minutes=len(health.minutes), allowed=round(allowed, 3), missed=missed,
            left=round(1 - missed / allowed, 4) if allowed else 1.0,
        ),
        trim=health.trim,
        bad_minutes=health.bad,
        at_maximum=health.harmed_until_s > now_s,
    )  # fmt: skip


def _share(counts: Iterable[ClassCount]) -> AttainmentView:
    counts = list(counts)
    judged, attained = sum(count.judged for count in counts), sum(count.attained for count in counts)
    return AttainmentView(judged=judged, attained=attained, attainment=attained / judged if judged else None)
