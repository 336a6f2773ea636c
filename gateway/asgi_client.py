"""The client of a cold request, seen through ASGI: its body within a size and a time, its answer within a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from core.errors import BodyTimeout, BodyTooLarge
from gateway.client import ClientGone, Headers, sane_id

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class AsgiClient:
    """Built per request. A client that makes no room for its answer for `stall_timeout_s` is taken for gone; its
    connection is ended by gateway/protocol.py, which has the same limit."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, stall_timeout_s: float) -> None:
        self._receive = receive
        self._send = send
        self._stall_timeout_s = stall_timeout_s
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self._headers: dict[bytes, bytes] = dict(scope["headers"])

    def header(self, name: bytes) -> bytes | None:
        return self._headers.get(name)

    def request_id(self, fallback: str) -> str:
        return sane_id(self.header(b"x-request-id"), fallback)

    async def body(self, limit: int, timeout_s: float) -> bytes:
        """The whole body. BodyTooLarge, BodyTimeout or ClientGone."""
        declared = self.header(b"content-length")
        if declared and declared.isdigit() and int(declared) > limit:
            raise BodyTooLarge(f"the body is larger than {limit} bytes")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._read(limit)
        except TimeoutError:
            raise BodyTimeout(f"the body did not arrive within {timeout_s:g} s") from None

    async def _read(self, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise BodyTooLarge(f"the body is larger than {limit} bytes")
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def reply(self, status: int, headers: Headers, body: bytes) -> None:
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Also for an application that writes its answer itself."""
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await self._send(message)
        except TimeoutError:
            raise ClientGone from None
