"""The controller as operators see and steer it: /admin/plan and /admin/controller. Owns no state; every change is one
row of kind "admin" in the run log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from controller.due import ask_for, plannable
from controller.loop import Made
from controller.planning import Ask, ServicePlan
from controller.pressure import taken
from controller.state import ServiceState
from core.errors import BadRequest, Conflict, NotFound, Unavailable
from core.instances import Action
from gateway.admin_models import ErrorView, Mode, Strict
from gateway.wiring import Running

SHOWN = 20  # earlier plans
Responses = dict[int | str, dict[str, Any]]
CONFLICT: Responses = {409: {"model": ErrorView, "description": "Not possible in its state"}}
UNMADE: Responses = {503: {"model": ErrorView, "description": "The plan could not be made"}}
MISSING: Responses = {404: {"model": ErrorView, "description": "No such thing"}}


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


class NextView(BaseModel):
    making: bool = Field(description="a plan is being made now")
    due_in_s: float | None = Field(description="until the next one at the latest; null: when something has arrived")


class ServicePlanView(BaseModel):
    service: str
    plan: PlanView | None = Field(description="the newest; null: not planned, or nothing has arrived yet")
    in_force: PlanView | None = Field(description="the one that is followed; null: the configured instances")
    next: NextView
    rungs: dict[str, list[str]] = Field(description="by pool, the rungs of the emergency ladder that are taken")
    trim: float = Field(description="what attainment has taught: above 1 the plan keeps more room than forecast")
    bad_minutes: int
    at_maximum: bool = Field(description="promises were broken for some minutes: everything runs at its fastest")
    doubted: list[str] = Field(description="seen too long ago to be trusted: nothing is slowed or drained for it")


class MadeView(BaseModel):
    id: str
    t: float = Field(description="Unix time")
    by: str = Field(description="controller, or the name of the admin key that had it proposed")
    reason: str
    plans: dict[str, PlanView] = Field(description="by service")


class ProposedView(MadeView):
    expected_w: float = Field(description="mean watts of all its services; modelled")
    in_force_w: float | None = Field(description="the same of the plans that are followed now; null: none is")
    changes: list[str] = Field(description="counts that would differ from those followed now")


class PlansView(BaseModel):
    mode: Mode
    planning: Literal["configured", "energy"]
    services: list[ServicePlanView]
    proposed: list[dict[str, str]] = Field(description="what the last tick would have done, had the mode let it")
    history: list[MadeView] = Field(description=f"the last {SHOWN} plans, the newest first")


class Proposal(Strict):
    """What to plan for otherwise than now. Nothing given: as the controller itself would plan at this moment."""

    services: list[str] | None = Field(default=None, max_length=64, description="null: all that can be planned")
    load: float = Field(default=1.0, gt=0, le=100, description="times the forecast")
    gpus: int | None = Field(default=None, ge=1, le=1_000_000)
    eta: float | None = Field(default=None, ge=0, le=1)


class Application(Strict):
    id: str = Field(max_length=64, description="of a plan in the history")


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
        """The plan in force, the next one, why, and where each pool stands on the ladder."""
        return plans_view(running)

    async def propose(body: Proposal, request: Request) -> ProposedView:
        """Makes a plan for an operator to look at. Nothing changes until it is applied."""
        ask = _ask(running, body)
        try:
            made = await running.controller.propose(ask, request.state.who)
        except Exception as error:
            raise Unavailable(f"the plan could not be made: {error}", code="plan_failed") from None
        return _proposed(running, made)

    async def apply(body: Application, request: Request) -> MadeView:
        """Follows a plan of the history from the next tick on: in `enforce` until the next one is made (a pause
        override holds it), in `advise` until another one is applied."""
        made = _applicable(running, body.id)
        audit(request, "apply_plan", plan=made.id, services=list(made.plans))
        running.controller.apply(made)
        return _made(made, running.clock.wall_s())

    async def controller() -> ControllerView:
        """How the controller fares."""
        return _controller(running)

    async def change(body: ControllerChange, request: Request) -> ControllerView:
        """shadow = only tell, advise = propose, enforce = act. Instances stay as they are until the next tick."""
        audit(request, "change_mode", mode=body.mode, before=running.mode.name)
        running.mode.name = body.mode
        running.cluster.changed.set()
        return _controller(running)

    router.add_api_route("/controller", controller, methods=["GET"])
    router.add_api_route("/controller", change, methods=["PATCH"])
    router.add_api_route("/plan", plan, methods=["GET"])
    router.add_api_route(
        "/plan/propose", propose, methods=["POST"], status_code=201, responses=MISSING | CONFLICT | UNMADE
    )
    router.add_api_route("/plan/apply", apply, methods=["POST"], responses=MISSING | CONFLICT)
    return router


def _controller(running: Running) -> ControllerView:
    one = running.controller
    return ControllerView.model_validate(
        {"mode": running.mode.name, "ticks": one.state.ticks, "last_error": one.last_error}
    )


def _ask(running: Running, body: Proposal) -> Ask:
    controller, knowledge = running.controller, running.controller.knowledge
    able = {
        name: one
        for name, one in controller.state.services.items()
        if plannable(name, knowledge) and one.demand.counts is not None and any(c.asked for c in one.demand.counts)
    }
    if running.config.controller.plan == "configured":
        raise Conflict("controller.plan is configured: nothing is planned", code="not_planned")
    for name in body.services or ():
        if name not in running.gateway.services:
            raise NotFound(f"there is no service {name}", code="unknown_service")
        if name not in able:
            raise Conflict(f"{name} cannot be planned: nothing has arrived, or it has no profile", code="not_planned")
    chosen = {name: one for name, one in able.items() if body.services is None or name in body.services}
    if not chosen or controller.seen is None:
        raise Conflict("no service can be planned yet: nothing has arrived", code="not_planned")
    if body.gpus is not None and body.gpus < max(1, controller.knowledge.settings.floor):
        raise BadRequest("fewer GPUs than instances that must be ready", param="gpus")
    knowledge = replace(knowledge, gpus=body.gpus or knowledge.gpus)
    if body.eta is not None:
        services = {name: replace(one, spec=replace(one.spec, eta=None)) for name, one in knowledge.services.items()}
        knowledge = replace(knowledge, services=services, settings=replace(knowledge.settings, eta=body.eta))
    reason = f"proposed, load x {body.load:g}"
    ask = ask_for(chosen, controller.seen, knowledge, controller.overrides, reason)
    return replace(ask, asked={name: replace(one, load=body.load) for name, one in ask.asked.items()})


def _applicable(running: Running, plan_id: str) -> Made:
    made = next((one for one in running.controller.history if one.id == plan_id), None)
    if made is None:
        raise NotFound(f"there is no plan {plan_id} in the history", code="unknown_plan")
    if running.mode.name == "shadow":
        raise Conflict("in shadow mode no plan is followed: change the mode first", code="shadow_mode")
    for name, plan in made.plans.items():
        service = running.gateway.services.get(name)
        pools = {pool.name for pool in service.spec.pools} if service is not None else set()
        if any(target.kind.pool not in pools for target in plan.targets):
            raise Conflict(f"{plan_id} is for pools that {name} no longer has", code="plan_outdated")
    return made


def plans_view(running: Running) -> PlansView:
    wall_s = running.clock.wall_s()
    made = list(running.controller.history)[: -SHOWN - 1 : -1]
    return PlansView.model_validate({
        "mode": running.mode.name,
        "planning": running.config.controller.plan,
        "services": service_plans(running),
        "proposed": proposed_now(running),
        "history": [_made(one, wall_s) for one in made],
    })  # fmt: skip


def service_plans(running: Running) -> list[ServicePlanView]:
    """Each service's plans and where it stands, without the history."""
    now_s, every_s = running.clock.now_s(), running.config.controller.plan_interval_s
    states = running.controller.state.services
    return [_service(name, one, running.mode.name, now_s, every_s) for name, one in states.items()]


def proposed_now(running: Running) -> list[dict[str, str]]:
    last = running.controller.last
    return [_told(action) for action in last.proposed] if last is not None else []


def _service(name: str, one: ServiceState, mode: str, now_s: float, every_s: float) -> ServicePlanView:
    followed = one.in_force(mode)
    due_in_s = None if one.plan is None else max(0.0, round(one.plan.at_s + every_s - now_s, 3))
    return ServicePlanView(
        service=name,
        plan=None if one.plan is None else plan_view(one.plan, now_s - one.plan.at_s),
        in_force=None if followed is None else plan_view(followed, now_s - followed.at_s),
        next=NextView(making=one.asked_s is not None, due_in_s=due_in_s),
        rungs={pool: list(taken(standing)) for pool, standing in one.standings.items()},
        trim=one.health.trim,
        bad_minutes=one.health.bad,
        at_maximum=one.health.harmed_until_s > now_s,
        doubted=list(one.doubted),
    )


def plan_view(plan: ServicePlan, age_s: float) -> PlanView:
    return PlanView(
        age_s=round(age_s, 3),
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


def _made(made: Made, wall_s: float) -> MadeView:
    plans = {name: plan_view(plan, wall_s - made.at_s) for name, plan in made.plans.items()}
    return MadeView(id=made.id, t=made.at_s, by=made.by, reason=made.reason, plans=plans)


def _proposed(running: Running, made: Made) -> ProposedView:
    states = running.controller.state.services
    followed = {name: states[name].in_force(running.mode.name) for name in made.plans}
    watts = [plan.expected_w for plan in followed.values() if plan is not None]
    changes = [line for name, plan in made.plans.items() for line in _changes(name, followed[name], plan)]
    return ProposedView(
        **_made(made, running.clock.wall_s()).model_dump(),
        expected_w=sum(plan.expected_w for plan in made.plans.values()),
        in_force_w=sum(watts) if len(watts) == len(made.plans) else None,
        changes=changes,
    )


def _changes(name: str, before: ServicePlan | None, after: ServicePlan) -> Iterator[str]:
    old, new = {} if before is None else before.counts(), after.counts()
    for pool, tp in sorted({*old, *new}):
        was, will = old.get((pool, tp), 0), new.get((pool, tp), 0)
        if was != will:
            yield f"{name}/{pool} TP{tp}: {was} -> {will}"


def _told(action: Action) -> dict[str, str]:
    fields = {name: str(getattr(action, name)) for name in type(action).__dataclass_fields__}
    return {"action": type(action).__name__.lower(), **fields}
