"""The agent's HTTP API. Owns routes, the check of the token and the shape of errors; decides nothing."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.metrics import page
from agent.node import Node
from agent.wire import Acquire, Reset, SetClock, confirmed_row, error_row, lease_row, off_rows, reading_row
from core.clock import Clock
from core.errors import BadRequest, JoulegateError, Unauthorized

OPEN = frozenset({"/health", "/readiness"})  # probes carry no token; neither answer names more than a GPU


def make_app(node: Node, clock: Clock, token: str | None, about: Mapping[str, str]) -> FastAPI:
    """`token` None: whoever reaches the socket may use it. `about`: how its GPUs are emulated, if they are."""
    app = FastAPI(title="joulegate agent", docs_url=None, redoc_url=None)
    if token is not None:
        app.add_middleware(Guard, token=token)
    _errors(app)
    _state(app, node, clock, about)
    _leases(app, node)
    return app


class Guard:
    """Asks for the token, before a route is looked for. Plain ASGI: it costs a comparison."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                refused = Unauthorized("send the agent's token: Authorization: Bearer TOKEN", code="invalid_token")
                await JSONResponse(error_row(refused), refused.status)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _errors(app: FastAPI) -> None:
    @app.exception_handler(JoulegateError)
    async def told(_: Request, error: JoulegateError) -> Response:
        return JSONResponse(error_row(error), error.status)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors())
        return JSONResponse(error_row(BadRequest(problems)), 400)


def _state(app: FastAPI, node: Node, clock: Clock, about: Mapping[str, str]) -> None:
    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {}

    @app.get("/readiness")
    async def readiness() -> Response:
        """200 when every clock can be set and would be undone."""
        off, watched = off_rows(node.off()), node.link.ready.is_set()
        ready = watched and not off
        return JSONResponse({"ready": ready, "off": off, "watchdog": watched}, 200 if ready else 503)

    @app.get("/v1/gpus")
    async def gpus() -> dict[str, Any]:
        hardware = node.hardware
        off = off_rows(node.off())
        rows = [
            {
                "uuid": uuid,
                "name": device.name,
                "driver": device.driver,
                "clocks_mhz": hardware.tables.get(uuid, []),
                "set_mhz": hardware.applied.get(uuid),
                "off": off.get(uuid),
            }
            for uuid, device in hardware.devices.items()
        ]
        leases = [lease_row(lease, {}) for lease in node.leases.held]
        return {"gpus": rows, "leases": leases, "longest_lease_s": node.leases.longest_s, **about}

    @app.get("/v1/readings")
    async def readings(uuids: str = "") -> dict[str, Any]:
        """Counters and gauges of the GPUs named, with commas, or of all; `at_s` is the agent's monotonic clock."""
        rows = await node.read([uuid for uuid in uuids.split(",") if uuid])
        return {"at_s": clock.now_s(), "gpus": [reading_row(row) for row in rows]}

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(await page(node), media_type="text/plain; version=0.0.4; charset=utf-8")


def _leases(app: FastAPI, node: Node) -> None:
    @app.post("/v1/leases")
    async def acquire(body: Acquire) -> dict[str, Any]:
        lease = await node.acquire(body.holder, body.uuids, body.lease_s)
        return lease_row(lease, node.off(lease.uuids))

    @app.post("/v1/leases/{epoch}/renew")
    async def renew(epoch: int) -> Response:
        lease = node.renew(epoch)
        return JSONResponse(lease_row(lease, node.off(lease.uuids)))

    @app.delete("/v1/leases/{epoch}")
    async def release(epoch: int) -> dict[str, Any]:
        """Default clocks for what it held. A lease that has gone is released already."""
        await node.release(epoch)
        return {}

    @app.post("/v1/leases/{epoch}/clock")
    async def set_clock(epoch: int, body: SetClock) -> Response:
        return JSONResponse(confirmed_row(await node.set_clock(epoch, body.uuids, body.mhz)))

    @app.post("/v1/leases/{epoch}/reset")
    async def reset(epoch: int, body: Reset) -> dict[str, Any]:
        await node.reset(epoch, body.uuids)
        return {}
