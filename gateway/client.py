"""One client's side of a request: its head and body in, an answer out, and whether it is still there.

Owns the ASGI calls; nothing else in the hot path touches `receive` and `send`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from core.errors import BodyTimeout, BodyTooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

TRANSPORT = "joulegate.transport"  # where the protocol puts the connection into the scope
SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
# RFC 9110, 7.6.1, and what this gateway answers for itself. accept-encoding: a compressed answer could not be read.
NOT_FORWARDED = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"host", b"content-length", b"expect", b"accept-encoding",
    b"authorization", b"x-api-key", b"api-key", b"cookie", b"x-request-id", b"x-slo-ttft-ms", b"x-slo-tpot-ms",
})  # fmt: skip
NOT_RETURNED = frozenset({
    b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"server", b"date", b"x-request-id",
    b"set-cookie", b"upgrade", b"trailer", b"proxy-authenticate",
})  # fmt: skip


def sane_id(given: bytes | None, fallback: str) -> str:
    """The client's own request id, where it can go into logs and headers as it is."""
    return given.decode() if given and SANE_ID.fullmatch(given) else fallback


class ClientGone(Exception):
    """The client hung up. Nobody is left to tell."""


class Client:
    """Built per request. `started` is true once a byte of the answer may have reached the client. A client that reads
    nothing for `stall_timeout_s` is taken for gone: it would hold its slot for ever."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, stall_timeout_s: float) -> None:
        self._receive = receive
        self._send = send
        self._stall_timeout_s = stall_timeout_s
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.query: bytes = scope.get("query_string", b"")
        self.headers: Headers = scope["headers"]
        self.peer: str = (scope.get("client") or ("", 0))[0]
        self.started = False
        self.gone = False
        self._transport: asyncio.Transport | None = scope.get(TRANSPORT)
        self._watcher: asyncio.Task[None] | None = None

    def header(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def request_id(self, fallback: str) -> str:
        return sane_id(self.header(b"x-request-id"), fallback)

    def forwarded_headers(self) -> Headers:
        named = self.header(b"connection") or b""
        dropped = {token.strip().lower() for token in named.split(b",")} if named else ()
        return [(k, v) for k, v in self.headers if k not in NOT_FORWARDED and k not in dropped]

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
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def watch(self) -> None:
        """From now on a hang-up cancels the current task, so that its work at an instance ends at once."""
        task = asyncio.current_task()
        assert task is not None
        self._watcher = asyncio.create_task(self._await_hangup(task))

    def unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    async def _await_hangup(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        task.cancel()

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self.send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes) -> None:
        await self._send_within({"type": "http.response.body", "body": data, "more_body": True}, self._stall_timeout_s)

    async def end(self, data: bytes = b"") -> None:
        self.unwatch()  # a connection that ends with its answer is no hang-up
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def reply(self, status: int, headers: Headers, body: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.end(body)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """For an application that writes its answer itself."""
        await self._send_within(message, self._stall_timeout_s)

    async def _send_within(self, message: MutableMapping[str, Any], timeout_s: float) -> None:
        """ClientGone, and the end of the connection, when the client makes no room for `message`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(message)
        except TimeoutError:
            self.gone = True
            if self._transport is not None:
                self._transport.abort()
            raise ClientGone from None
