"""/admin/explain/{request}: what was known of a request, what was predicted, which instances were weighed and how, and
the plan of that time. Owns the words; the facts were kept as the request passed (gateway/explain.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path
from msgspec import structs
from pydantic import BaseModel, Field

from core.errors import NotFound
from gateway.admin_controller import PlanView, plan_view
from gateway.admin_models import ErrorView
from gateway.explain import Trail
from gateway.wiring import Running
from pools.router import Weighed
from predictor.features import NAMES

Responses = dict[int | str, dict[str, Any]]
MISSING: Responses = {404: {"model": ErrorView, "description": "No such request, or it is too long ago"}}
RequestId = Annotated[str, Path(max_length=256)]


class ConsideredView(BaseModel):
    instance: str
    pool: str
    tp: int
    chosen: bool
    in_time: bool = Field(description="the first token was expected by the deadline")
    keeps_others: bool = Field(description="the objectives of those who ran there were expected to hold")
    ttft_s: float = Field(description="expected seconds to the first token")
    added_joules: float | None = Field(
        description="modelled; without an engine model the emptier the more; null: nothing to compare with"
    )


class ExplainView(BaseModel):
    request: str
    state: str = Field(description="waiting, running or ended")
    service: str
    features: dict[str, Any] = Field(description="what the class rests on")
    prediction: dict[str, Any]
    pool_asked: str | None = Field(description="the first pool that serves such an answer")
    instance: str | None
    considered: list[ConsideredView] = Field(description="at the last choice; empty: it was never placed")
    plan: PlanView | None = Field(description="in force when it arrived")
    outcome: dict[str, Any] | None = Field(description="its row in the run log; null: not ended yet")
    told: list[str] = Field(description="the same in sentences")


def make_explain_routes(running: Running) -> APIRouter:
    router = APIRouter()

    async def explain(request_id: RequestId) -> ExplainView:
        """Why a request that runs, or one of the last thousand, went where it went. Its id is in `x-request-id`."""
        trail = running.gateway.recent.find(request_id)
        if trail is None:
            raise NotFound(f"nothing is known of request {request_id}, or no longer", code="unknown_request")
        return explained(trail, running)

    router.add_api_route("/explain/{request_id}", explain, methods=["GET"], responses=MISSING)
    return router


def explained(trail: Trail, running: Running) -> ExplainView:
    sized, ask, weighed = trail.sized, trail.ask, trail.weighed
    service = running.gateway.services.get(trail.service)
    pools = service.spec.pools if service is not None else ()
    asked = pools[min(ask.pool_index, len(pools) - 1)].name if ask is not None and pools else None
    features: dict[str, Any] = {}
    prediction: dict[str, Any] = {}
    if sized is not None:
        features = {name: getattr(sized, name) for name in ("input_tokens", "input_exact", "input_size", "output_size")}
        if sized.told.features is not None:
            features["read"] = {k: round(x, 3) for k, x in zip(NAMES, sized.told.features.numbers, strict=True) if x}
        p = dict(zip("SML", sized.prediction.p, strict=True))
        prediction = {**structs.asdict(sized.prediction), "p": p, "class": sized.name, "trust": sized.told.trust}
    if ask is not None:
        features |= {"sequences": ask.sequences, "kv_tokens": ask.kv_tokens, "tbt_limit_s": ask.tbt_limit_s,
                     "ttft_limit_s": round(ask.deadline_s - ask.arrived_s, 6)}  # fmt: skip
    considered = [] if weighed is None else _considered(weighed)
    plan = None if trail.plan is None else plan_view(trail.plan, running.clock.now_s() - trail.plan.at_s)
    state = "ended" if trail.row is not None else "running" if trail.instance else "waiting"
    view = ExplainView(
        request=trail.request_id, state=state, service=trail.service, features=features, prediction=prediction,
        pool_asked=asked, instance=trail.instance or None, considered=considered, plan=plan,
        outcome=None if trail.row is None else dict(trail.row), told=[],
    )  # fmt: skip
    return view.model_copy(update={"told": _sentences(view)})


def _considered(weighed: Weighed) -> list[ConsideredView]:
    joules: Sequence[float | None] = weighed.joules or [None] * len(weighed.in_time)
    found = [
        ConsideredView(
            instance=i.id, pool=i.pool, tp=i.tp, chosen=i is weighed.chosen, in_time=True, keeps_others=True,
            ttft_s=round(ttft_s, 6), added_joules=added_j,
        )
        for (ttft_s, i), added_j in zip(weighed.in_time, joules, strict=True)
    ]  # fmt: skip
    return found + [
        ConsideredView(
            instance=i.id, pool=i.pool, tp=i.tp, chosen=i is weighed.chosen, in_time=False, keeps_others=not harms,
            ttft_s=round(ttft_s, 6), added_joules=None,
        )
        for harms, ttft_s, i in weighed.late
    ]  # fmt: skip


def _sentences(view: ExplainView) -> list[str]:
    said = []
    if view.features:
        how = "counted" if view.features.get("input_exact") else "estimated"
        said.append(
            f"{view.features['input_tokens']} prompt tokens ({how}); an answer of {view.prediction['q50_tokens']}, "
            f"at most {view.prediction['q90_tokens']} in nine of ten answers: class {view.prediction['class']}"
        )
    chosen = next((one for one in view.considered if one.chosen), None)
    if chosen is not None:
        others = len(view.considered) - 1
        why = "the only one with room" if not others else "the fastest, none could be in time"
        if others and chosen.in_time:
            in_time = sum(one.in_time for one in view.considered)
            why = f"the fewest added joules of {in_time} in time" if in_time > 1 else "the only one in time"
        said.append(f"{chosen.instance} took it: {why}, first token expected after {chosen.ttft_s * 1000:.0f} ms")
    if view.plan is not None:
        said.append(
            f"the plan was for {view.plan.planned_rps:.2f} requests/s and {view.plan.expected_w:.0f} W (modelled)"
        )
    if view.outcome is not None:
        said.append(f"it {view.outcome['outcome']} after {view.outcome['e2e_s']} s")
    return said
