"""The ASGI application: routes, the API key, and errors turned into answers. Owns no state of its own."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from simulator.server_admin import Admin
from simulator.server_errors import ApiError, engine_failed, to_json
from simulator.server_generate import Generation
from simulator.server_http import ClientGone, Exchange, Message, Receive, Send, answer_json

Endpoint = Callable[[Exchange], Awaitable[None]]
GUARDED = ("/v1", "/v2", "/inference", "/cohere")


class App:
    def __init__(self, generation: Generation, admin: Admin, pooling: bool, api_key: str | None) -> None:
        self._api_key = api_key
        self._routes: dict[str, dict[str, Endpoint]] = {
            "/v1/models": {"GET": admin.models},
            "/health": {"GET": admin.health},
            "/ping": {"GET": admin.health, "POST": admin.health},
            "/version": {"GET": admin.version},
            "/load": {"GET": admin.load},
            "/metrics": {"GET": admin.metrics},
            "/tokenize": {"POST": admin.tokenize},
            "/detokenize": {"POST": admin.detokenize},
            "/pause": {"POST": admin.pause},
            "/resume": {"POST": admin.resume},
            "/is_paused": {"GET": admin.is_paused},
            "/sleep": {"POST": admin.sleep},
            "/wake_up": {"POST": admin.wake_up},
            "/collective_rpc": {"POST": admin.collective_rpc},
            "/is_sleeping": {"GET": admin.is_sleeping},
            "/abort_requests": {"POST": admin.abort_requests},
            "/emulated/clock": {"POST": admin.set_clock},
            "/emulated/state": {"GET": admin.state},
            "/emulated/fault": {"POST": admin.fault},
            "/emulated/die": {"POST": admin.die},
        }
        if pooling:
            self._routes["/v1/embeddings"] = {"POST": admin.embeddings}
            return
        self._routes |= {
            "/v1/chat/completions": {"POST": generation.chat},
            "/v1/completions": {"POST": generation.completions},
            "/v1/responses": {"POST": generation.responses},
            "/v1/messages": {"POST": generation.messages},
            "/v1/messages/count_tokens": {"POST": generation.count_tokens},
            "/invocations": {"POST": generation.invocations},
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        try:
            await self._dispatch(exchange)
        except ClientGone:
            return
        except ApiError as error:
            exchange.fault = None
            await answer_json(exchange, error.body(), error.status)

    async def _dispatch(self, exchange: Exchange) -> None:
        if self._api_key is not None and exchange.path.startswith(GUARDED) and not self._knows_key(exchange):
            return await answer_json(exchange, {"error": "Unauthorized"}, 401)
        methods = self._routes.get(exchange.path)
        if methods is None:
            return await answer_json(exchange, {"detail": "Not Found"}, 404)
        endpoint = methods.get(exchange.method)
        if endpoint is None:
            allow = [(b"allow", ", ".join(methods).encode())]
            return await exchange.answer(405, to_json({"detail": "Method Not Allowed"}), extra=allow)
        try:
            await endpoint(exchange)
        except (KeyError, TypeError, AttributeError, ValueError):
            # A body of an unforeseen shape: the real server answers such things with 500, too.
            raise engine_failed() from None

    def _knows_key(self, exchange: Exchange) -> bool:
        scheme, _, key = exchange.header(b"authorization").partition(" ")
        expected = self._api_key or ""
        return scheme.lower() == "bearer" and hmac.compare_digest(key.encode(), expected.encode())
