"""The controller as operators see and steer it: /admin/plan and /admin/controller. Owns no state; every change is one
row of kind "admin" in the run log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from controller.planning import ServicePlan
from controller.pressure import taken
from controller.state import ServiceState
from core.instances import Action
from gateway.admin_models import Mode, Strict
from gateway.wiring import Running


class ClockView(BaseModel):
    clock_mhz: int
    needs: float = Field(description="instances that the planned load needs at this clock")


class TargetView(BaseModel):
    pool: str
    gpu: str
    tp: int
    instances: int
    clock_mhz: int = Field(description="planned; the controller moves it with the load")
    clocks: list[ClockView]


class PlanView(BaseModel):
    age_s: float
    expected_w: float = Field(description="mean watts of the instances under the planned load")
    quality: Literal["modelled"] = "modelled"
    status: str = Field(description="who solved it, and how well")
    mean_rps: float
    upper_rps: float = Field(description="peak that the plan keeps room for, clocks at their highest")
    planned_rps: float
    targets: list[TargetView]


class ServicePlanView(BaseModel):
    service: str
    plan: PlanView | None = Field(description="null: not planned, or nothing has arrived yet")
    rungs: dict[str, list[str]] = Field(description="by pool, the rungs of the emergency ladder that are taken")
    trim: float = Field(description="what attainment has taught: above 1 the plan keeps more room than forecast")
    bad_minutes: int
    at_maximum: bool = Field(description="promises were broken for some minutes: everything runs at its fastest")


class PlansView(BaseModel):
    mode: Mode
    planning: Literal["configured", "energy"]
    services: list[ServicePlanView]
    proposed: list[dict[str, str]] = Field(description="what the last tick would have done, had the mode let it")


class ControllerChange(Strict):
    mode: Mode


class ControllerView(BaseModel):
    mode: Mode
    ticks: int
    last_error: str


def make_controller_routes(running: Running, audit: Callable[..., None]) -> APIRouter:
    """`audit(request, action, **fields)` writes the row of a change."""
    router = APIRouter()

    async def plan() -> PlansView:
        """The plan that serves, why, and where each pool stands on the ladder."""
        return plans_view(running)

    async def controller() -> ControllerView:
        """How the controller fares."""
        return _controller(running)

    async def change(body: ControllerChange, request: Request) -> ControllerView:
        """shadow = only tell, advise = propose, enforce = act. Instances stay as they are until the next tick."""
        audit(request, "change_mode", mode=body.mode, before=running.mode.name)
        running.mode.name = body.mode
        running.cluster.changed.set()
        return _controller(running)

    router.add_api_route("/plan", plan, methods=["GET"])
    router.add_api_route("/controller", controller, methods=["GET"])
    router.add_api_route("/controller", change, methods=["PATCH"])
    return router


def _controller(running: Running) -> ControllerView:
    one = running.controller
    return ControllerView.model_validate(
        {"mode": running.mode.name, "ticks": one.state.ticks, "last_error": one.last_error}
    )


def plans_view(running: Running) -> PlansView:
    state, last, now_s = running.controller.state, running.controller.last, running.clock.now_s()
    return PlansView.model_validate({
        "mode": running.mode.name,
        "planning": running.config.controller.plan,
        "services": [_service(name, one, now_s) for name, one in state.services.items()],
        "proposed": [_told(action) for action in last.proposed] if last is not None else [],
    })  # fmt: skip


def _service(name: str, one: ServiceState, now_s: float) -> ServicePlanView:
    return ServicePlanView(
        service=name,
        plan=None if one.plan is None else _plan(one.plan, now_s),
        rungs={pool: list(taken(standing)) for pool, standing in one.standings.items()},
        trim=one.health.trim,
        bad_minutes=one.health.bad,
        at_maximum=one.health.harmed_until_s > now_s,
    )


def _plan(plan: ServicePlan, now_s: float) -> PlanView:
    return PlanView(
        age_s=round(now_s - plan.at_s, 3),
        expected_w=plan.expected_w,
        status=plan.status,
        mean_rps=plan.mean_rps,
        upper_rps=plan.upper_rps,
        planned_rps=plan.planned[0],
        targets=[
            TargetView(
                pool=target.kind.pool, gpu=target.kind.gpu, tp=target.kind.tp, instances=target.count,
                clock_mhz=target.clock_mhz,
                clocks=[ClockView(clock_mhz=price.clock_mhz, needs=price.needs) for price in target.clocks],
            )
            for target in plan.targets
        ],
    )  # fmt: skip


def _told(action: Action) -> dict[str, str]:
    fields = {name: str(getattr(action, name)) for name in type(action).__dataclass_fields__}
    return {"action": type(action).__name__.lower(), **fields}
