"""/admin/overrides: what operators order for a while. Owns what may be ordered; the controller follows it. Every change
is one row of kind "admin" in the run log."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from controller.overrides import Impose, Lift, Override, OverrideKind
from core.errors import BadRequest, Conflict, NotFound
from gateway.admin_models import ErrorView, Strict
from gateway.wiring import Running

Responses = dict[int | str, dict[str, Any]]
MISSING: Responses = {404: {"model": ErrorView, "description": "No such thing"}}
CONFLICT: Responses = {409: {"model": ErrorView, "description": "Not possible in its state"}}
LONGEST_S = 30 * 86_400.0
OverrideId = Annotated[str, Path(max_length=64)]


class NewOverride(Strict):
    """pin: `service`, `pool` and `instances` or `clock_mhz` or both. floor, ceiling: `service`, `pool`, `instances`.
    pause: `service`, or all of them: the plan in force stays and clocks rest, but for emergencies. drain: `instance`.
    exclude_gpu: `gpu`."""

    kind: OverrideKind
    expires_s: float = Field(default=3600.0, gt=0, le=LONGEST_S, description="seconds until it is over by itself")
    service: str = Field(default="", max_length=128)
    pool: str = Field(default="", max_length=128)
    instance: str = Field(default="", max_length=256)
    instances: int | None = Field(default=None, ge=0, le=1024)
    clock_mhz: int | None = Field(default=None, ge=1, le=10_000)
    gpu: str = Field(default="", max_length=128, description="UUID, as instances are given it")
    reason: str = Field(default="", max_length=256, description="for those who read it later")


class OverrideView(BaseModel):
    id: str
    kind: OverrideKind
    service: str
    pool: str
    instance: str
    instances: int | None
    clock_mhz: int | None
    gpu: str
    reason: str
    by: str = Field(description="name of the admin key")
    until_t: float = Field(description="Unix time at which it is over")
    left_s: float


def make_override_routes(running: Running, audit: Callable[..., None]) -> APIRouter:
    """`audit(request, action, **fields)` writes the row of a change."""
    router = APIRouter()

    async def overrides() -> list[OverrideView]:
        """What operators have ordered and is not over yet."""
        return overrides_view(running)

    async def impose(body: NewOverride, request: Request) -> OverrideView:
        """Holds against any plan until it is over or lifted."""
        _check(running, body)
        fields = body.model_dump(exclude={"expires_s"})
        until_s = running.clock.wall_s() + body.expires_s
        one = Override(f"{body.kind}-{secrets.token_hex(3)}", until_s=until_s, by=request.state.who, **fields)
        audit(request, "override", id=one.id, until_t=until_s, **body.model_dump(exclude_defaults=True))
        running.controller.order(Impose(one))
        return _view(running, one)

    async def lift(override_id: OverrideId, request: Request) -> OverrideView:
        """Ends it now."""
        one = next((one for one in running.controller.overrides if one.id == override_id), None)
        if one is None:
            raise NotFound(f"there is no override {override_id}", code="unknown_override")
        audit(request, "lift_override", id=one.id)
        running.controller.order(Lift(one.id))
        return _view(running, one)

    router.add_api_route("/overrides", overrides, methods=["GET"])
    router.add_api_route("/overrides", impose, methods=["POST"], status_code=201, responses=MISSING | CONFLICT)
    router.add_api_route("/overrides/{override_id}", lift, methods=["DELETE"], responses=MISSING)
    return router


def overrides_view(running: Running) -> list[OverrideView]:
    return [_view(running, one) for one in running.controller.overrides]


def _view(running: Running, one: Override) -> OverrideView:
    return OverrideView(
        id=one.id, kind=one.kind, service=one.service, pool=one.pool, instance=one.instance, instances=one.instances,
        clock_mhz=one.clock_mhz, gpu=one.gpu, reason=one.reason, by=one.by, until_t=one.until_s,
        left_s=max(0.0, round(one.until_s - running.clock.wall_s(), 3)),
    )  # fmt: skip


NEEDS = {
    "pin": ("service", "pool"), "floor": ("service", "pool", "instances"), "ceiling": ("service", "pool", "instances"),
    "pause": (), "drain": ("instance",), "exclude_gpu": ("gpu",),
}  # fmt: skip
TAKES = {
    "pin": ("instances", "clock_mhz"), "pause": ("service",), "drain": ("service",),
}  # fmt: skip


def _check(running: Running, body: NewOverride) -> None:
    needs, takes = NEEDS[body.kind], (*NEEDS[body.kind], *TAKES.get(body.kind, ()))
    for name in ("service", "pool", "instance", "instances", "clock_mhz", "gpu"):
        given = getattr(body, name) not in ("", None)
        if name in needs and not given:
            raise BadRequest(f"{body.kind} needs {name}", param=name)
        if given and name not in takes:
            raise BadRequest(f"{body.kind} takes no {name}", param=name)
    if body.kind == "pin" and body.instances is None and body.clock_mhz is None:
        raise BadRequest("pin needs instances, clock_mhz, or both", param="instances")
    services = running.gateway.services
    if body.service and body.service not in services:
        raise NotFound(f"there is no service {body.service}", code="unknown_service")
    if body.instance and not any(body.instance in service.fleet.members for service in services.values()):
        raise NotFound(f"there is no instance {body.instance}", code="unknown_instance")
    if body.pool:
        _check_pool(running, body)


def _check_pool(running: Running, body: NewOverride) -> None:
    fleet = running.gateway.services[body.service].fleet
    if fleet.pool(body.pool) is None:
        raise NotFound(f"{body.service} has no pool {body.pool}", code="unknown_pool")
    if not fleet.launcher.managed:
        raise Conflict("the instances of this service run elsewhere", code="not_managed")
    if body.clock_mhz is None:
        return
    if not fleet.knobs.clock:
        raise Conflict("the clocks of this service cannot be written", code="no_clock_knob")
    if fleet.model is not None and body.clock_mhz not in fleet.model.clocks_mhz:
        known = ", ".join(map(str, fleet.model.clocks_mhz))
        raise BadRequest(f"the clocks of this service are {known} MHz", param="clock_mhz")
