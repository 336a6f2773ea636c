"""Energy and events over REST: /admin/energy, /admin/energy/requests/ID, /admin/events and /admin/events/recent. Reads
only; owns the shape of the answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from core.errors import BadRequest, NotFound
from gateway.ledger_query import energy, request_joules, span_of
from gateway.wiring import Running

Moment = Annotated[float | None, Query(ge=0, le=1e11, description="Unix seconds")]
Length = Annotated[float | None, Query(gt=0, le=400 * 86_400, description="seconds before `until`; instead of `since`")]
HOUR_S = 3600.0


class QualityView(BaseModel):
    meter: Literal["measured", "modelled"] = Field(description="modelled: no real counter, or not for all of it")
    requests: Literal["attributed", "modelled"]


class LinesView(BaseModel):
    """Joules. The first is the sum of the next two; all but the first add up to meter_j + filled_j."""

    requests: float
    prefill: float
    decode: float
    idle: float = Field(description="READY with nothing running; GPUs without an instance")
    parked: float
    starting: float
    switching: float = Field(description="draining and empty, or dead and still on the counter")
    residual: float = Field(description="counted, and explained by nothing")


class GroupView(BaseModel):
    joules: float
    prefill_j: float
    decode_j: float
    requests: float
    input_tokens: float
    output_tokens: float
    good_tokens: float
    j_per_good_token: float | None = Field(description="of the requests' own joules alone")


class Co2View(BaseModel):
    g: float


class CostView(BaseModel):
    amount: float
    currency: str


class EnergyView(BaseModel):
    since: float
    until: float
    step_s: float = Field(description="width of a point of `series`")
    now_t: float = Field(description="when the counters were last read, Unix seconds; 0: not yet")
    quality: QualityView
    watts: dict[str, float] = Field(description="at the last reading, by cause")
    pool_watts: dict[str, float] = Field(description="at the last reading, by service/pool")
    meter_j: float = Field(description="what the counters counted")
    filled_j: float = Field(description="modelled, for times in which no counter could be read")
    lines: LinesView
    residual_share: float
    model_error: float | None = Field(description="joules that the model foretold / counted - 1, before scaling")
    requests: int
    output_tokens: int
    good_tokens: int
    j_per_good_token: float | None = Field(description="all joules / tokens of requests that kept their objectives")
    co2: Co2View | None = Field(description="null: no intensity is configured")
    cost: CostView | None = Field(description="null: no price is configured")
    series: list[dict[str, float]] = Field(description="t, total and each cause: mean watts")
    by_service: dict[str, GroupView]
    by_class: dict[str, GroupView]
    by_pool: dict[str, GroupView]
    by_key: dict[str, GroupView]


class RequestEnergyView(BaseModel):
    id: str
    t: float
    key: str
    service: str
    size_class: str
    outcome: str
    input_tokens: int
    output_tokens: int
    attained: bool
    prefill_j: float
    decode_j: float
    joules: float
    quality: Literal["attributed", "modelled"]


class EventView(BaseModel):
    id: int
    event: str
    model_config = {"extra": "allow"}


def make_energy_routes(running: Running) -> APIRouter:
    router = APIRouter()

    async def read(since: Moment = None, until: Moment = None, window_s: Length = None) -> EnergyView:
        """What was spent, by cause, class, pool and key. Without parameters: the last hour."""
        now_s = running.clock.wall_s()
        until_s = now_s if until is None else until
        since_s = until_s - (window_s or HOUR_S) if since is None else since
        if since is not None and window_s is not None:
            raise BadRequest("give `since` or `window_s`, not both", param="window_s")
        if since_s >= until_s:
            raise BadRequest("`since` must be before `until`", param="since")
        span = span_of(max(0.0, since_s), until_s)
        found = await running.ledger.store.ask(lambda disk: energy(disk, span, running.tariff))
        last = running.ledger.last
        pools = {f"{service}/{pool}": round(watts, 3) for (service, pool), watts in last.pools.items()}
        return EnergyView.model_validate(
            {**found, "watts": dict(last.watts), "pool_watts": pools, "now_t": last.wall_s}
        )

    async def one(request_id: str) -> RequestEnergyView:
        """Joules of one request, known about a second after its end, and for as long as its row is kept."""
        found = await running.ledger.store.ask(lambda disk: request_joules(disk, request_id))
        if found is None:
            raise NotFound(f"the ledger has no request {request_id}", code="unknown_request")
        return RequestEnergyView.model_validate(found)

    async def recent(
        after: Annotated[int, Query(ge=0, le=1 << 53)] = 0,
        limit: Annotated[int, Query(ge=1, le=2000)] = 200,
        since: Annotated[float, Query(ge=0, le=1e11)] = 0.0,
    ) -> list[EventView]:
        """The newest events, oldest first."""
        return [EventView.model_validate(row) for row in running.events.recent(after, limit, since)]

    async def listen(
        after: Annotated[int | None, Query(ge=0, le=1 << 53)] = None,
        last_event_id: Annotated[str | None, Header(max_length=32)] = None,
    ) -> StreamingResponse:
        """Server-sent events, for as long as the connection lasts."""
        resumed = int(last_event_id) if last_event_id and last_event_id.isdecimal() else after
        return StreamingResponse(
            running.events.listen(resumed), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    stream: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}, "description": "Events"}}
    missing: dict[int | str, dict[str, Any]] = {404: {"description": "No such request"}}
    router.add_api_route("/energy", read, methods=["GET"])
    router.add_api_route("/energy/requests/{request_id:path}", one, methods=["GET"], responses=missing)
    router.add_api_route("/events/recent", recent, methods=["GET"])
    router.add_api_route("/events", listen, methods=["GET"], responses=stream, response_class=StreamingResponse)
    return router
