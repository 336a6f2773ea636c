"""The ASGI application: hot routes straight to the gateway, everything else to FastAPI, and an error in the client's
dialect for whatever exists in neither."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI

from core.errors import JoulegateError, MethodNotAllowed, NotFound
from gateway.client import Client, Receive, Scope, Send
from gateway.dialect import ROUTES, dialect_of, error_body
from gateway.serve import Gateway, error_headers

App = Callable[[Scope, Receive, Send], Awaitable[None]]


def make_app(gateway: Gateway, cold: FastAPI, cold_routes: dict[str, str]) -> App:
    """`cold_routes` are the fixed paths of `cold` with their methods; /admin and the OpenAPI page come on top."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _other(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        route = ROUTES.get(path)
        if route is not None and method == "POST":
            await gateway.serve(Client(scope, receive, send), route)
        elif path.startswith(("/admin/", "/docs", "/openapi.json")) or method in cold_routes.get(path, ""):
            await cold(scope, receive, send)
        elif route is not None:
            await _refuse(Client(scope, receive, send), gateway, MethodNotAllowed(f"{path} takes POST", allow="POST"))
        elif path in cold_routes:
            allow = cold_routes[path]
            await _refuse(Client(scope, receive, send), gateway, MethodNotAllowed(f"{path} takes {allow}", allow=allow))
        elif path.startswith("/v1/models/"):
            await cold(scope, receive, send)
        else:
            await _refuse(
                Client(scope, receive, send),
                gateway,
                NotFound(f"there is no route {method} {path}", code="unknown_route"),
            )

    return app


async def _refuse(client: Client, gateway: Gateway, error: JoulegateError) -> None:
    headers = error_headers(client.request_id(gateway.new_id()), error)
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    await client.reply(error.status, headers, error_body(dialect_of(client.path), error))


async def _other(scope: Scope, receive: Receive, send: Send) -> None:
    """Lifespan needs no work here (gateway/run.py starts and stops things); WebSockets are refused."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await send({"type": "lifespan.shutdown.complete"})
                return
    await send({"type": "websocket.close", "code": 1003})
