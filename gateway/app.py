"""The ASGI application for all that is not hot: FastAPI, and an error in the client's dialect for whatever exists
neither there nor among the hot routes, which gateway/protocol.py serves before ASGI is reached.

FastAPI reads a body before it asks who sent it, and without a bound. So /admin's keys are checked here from the head
alone, and every body that FastAPI gets has been read here within a size and a time."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI

from core.errors import JoulegateError, MethodNotAllowed, NotFound
from gateway.asgi_client import AsgiClient, Receive, Scope, Send
from gateway.auth import Keyring
from gateway.client import ClientGone
from gateway.dialect import ROUTES, dialect_of, error_body
from gateway.serve import Gateway, error_headers

App = Callable[[Scope, Receive, Send], Awaitable[None]]
COLD_BODY_BYTES = 64 * 1024  # the largest that any route of FastAPI's needs is a small object


def make_app(gateway: Gateway, cold: FastAPI, cold_routes: dict[str, str], admin_keyring: Callable[[], Keyring]) -> App:
    """`cold_routes` are the fixed paths of `cold` with their methods; /admin and the OpenAPI page come on top.
    `admin_keyring` gives the keys that hold now: a reload replaces them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _other(scope, receive, send)
            return
        client = AsgiClient(scope, receive, send, gateway.limits.stall_timeout_s)
        with contextlib.suppress(ClientGone):
            try:
                _check_route(client.method, client.path, cold_routes)
                if client.path.startswith("/admin/"):
                    admin_keyring().identify(client.header(b"authorization"), client.header(b"x-api-key"))
                body = await client.body(COLD_BODY_BYTES, gateway.limits.body_timeout_s)
            except JoulegateError as error:
                await _refuse(client, gateway, error)
                return
            await cold(scope, _already_read(body, receive), client.send)

    return app


def _check_route(method: str, path: str, cold_routes: dict[str, str]) -> None:
    """Raises what is to be told of a route that FastAPI does not have."""
    if path.startswith(("/admin/", "/dashboard", "/docs", "/openapi.json")) or method in cold_routes.get(path, ""):
        return
    if path in ROUTES:
        raise MethodNotAllowed(f"{path} takes POST", allow="POST")
    if path in cold_routes:
        raise MethodNotAllowed(f"{path} takes {cold_routes[path]}", allow=cold_routes[path])
    if not path.startswith("/v1/models/"):
        raise NotFound(f"there is no route {method} {path}", code="unknown_route")


def _already_read(body: bytes, receive: Receive) -> Receive:
    messages: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> MutableMapping[str, Any]:
        return messages.pop() if messages else await receive()

    return again


async def _refuse(client: AsgiClient, gateway: Gateway, error: JoulegateError) -> None:
    headers = error_headers(client.request_id(gateway.new_id()), error)
    if client.header(b"expect") is not None:  # its sender may keep the body back, and what comes next is no body
        headers.append((b"connection", b"close"))
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
