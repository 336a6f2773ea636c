"""The routes that are not hot: models, health, metrics, and the root. FastAPI; no work at instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry
from starlette.exceptions import HTTPException

from core.errors import JoulegateError, MethodNotAllowed, NotFound
from core.instances import State
from gateway.agents import HostAgent
from gateway.auth import Identity
from gateway.client import sane_id
from gateway.dialect import dialect_of, error_body
from gateway.serve import Gateway, error_headers
from gateway.service import Service

COLD_ROUTES = {
    "/": "GET", "/v1/models": "GET, HEAD", "/health": "GET, HEAD", "/ping": "GET, HEAD", "/liveness": "GET, HEAD",
    "/readiness": "GET, HEAD", "/metrics": "GET, HEAD", "/version": "GET, HEAD",
}  # fmt: skip
VERSION = "0.1.0"


def add_error_answers(app: FastAPI, gateway: Gateway) -> None:
    """Errors of the whole app in the dialect of their path."""

    @app.exception_handler(JoulegateError)
    async def told(request: Request, error: JoulegateError) -> Response:
        given = dict(request.headers.raw).get(b"x-request-id")
        headers = dict(error_headers(sane_id(given, gateway.new_id()), error))
        body = error_body(dialect_of(request.url.path), error)
        return Response(body, error.status, {k.decode(): v.decode() for k, v in headers.items()})

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        """The framework's own: it has no such route, or not with this method."""
        path, allow = request.url.path, (error.headers or {}).get("Allow", "")
        if error.status_code != 405:
            return await told(request, NotFound(f"there is no route {request.method} {path}", code="unknown_route"))
        answer = await told(request, MethodNotAllowed(f"{path} takes {allow}", allow=allow))
        answer.headers["allow"] = allow
        return answer


def add_cold_routes(
    app: FastAPI, gateway: Gateway, registry: CollectorRegistry, agents: Mapping[str, HostAgent]
) -> None:
    """Adds the routes to `app`."""

    def identify(request: Request) -> Identity:
        headers = dict(request.headers.raw)
        return gateway.keyring.identify(headers.get(b"authorization"), headers.get(b"x-api-key"))

    @app.get("/", include_in_schema=False)
    async def root() -> dict[str, str]:
        return {"name": "joulegate", "version": VERSION, "api": "/v1", "admin": "/docs", "state": "/admin/state",
                "dashboard": "/dashboard"}  # fmt: skip

    @app.api_route("/v1/models", methods=["GET", "HEAD"], include_in_schema=False)
    async def models(request: Request) -> dict[str, Any]:
        identity = identify(request)
        shown = [_model(s) for s in gateway.services.values() if _allowed(identity, s)]
        return {"object": "list", "data": shown}

    @app.api_route("/v1/models/{name:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def model(name: str, request: Request) -> dict[str, Any]:
        service = gateway.services.get(name)
        if service is None or not _allowed(identify(request), service):
            raise NotFound(f"The model `{name}` does not exist.", param="model", code="model_not_found")
        return _model(service)

    @app.api_route("/version", methods=["GET", "HEAD"], include_in_schema=False)
    async def version() -> dict[str, str]:
        return {"version": VERSION}

    for path in ("/health", "/ping", "/liveness"):
        app.add_api_route(path, _alive, methods=["GET", "HEAD"], include_in_schema=False)

    @app.api_route("/readiness", methods=["GET", "HEAD"], include_in_schema=False)
    async def readiness() -> JSONResponse:
        ready = {name: count_ready(service) for name, service in gateway.services.items()}
        ok = all(ready.values()) and not gateway.closing
        told = {"ready": ok, "closing": gateway.closing, "services": ready}
        if agents:  # one that is dead takes the clock knob away, and nothing else
            told["agents"] = {name: agent.view() for name, agent in agents.items()}
        return JSONResponse(told, 200 if ok else 503)

    @app.api_route("/metrics", methods=["GET", "HEAD"], include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _alive() -> dict[str, str]:
    return {"status": "ok"}


def _allowed(identity: Identity, service: Service) -> bool:
    return identity.services is None or service.spec.name in identity.services


def _model(service: Service) -> dict[str, Any]:
    spec = service.spec
    return {"id": spec.name, "object": "model", "created": 0, "owned_by": "joulegate", "root": spec.model,
            "parent": None, "max_model_len": spec.context_tokens}  # fmt: skip


def count_ready(service: Service) -> int:
    return sum(1 for member in service.fleet.members.values() if member.instance.state is State.READY)
