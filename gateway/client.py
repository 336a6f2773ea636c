"""One client's side of a hot request: its head and body in, an answer out, and whether it is still there.

Owns the HTTP/1.1 framing of the answer and its place in the connection; the protocol (gateway/protocol.py) feeds it.
Writes go straight to the socket's buffer: nothing here waits for a slow reader, `full` tells of one instead."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from http import HTTPStatus

from core.errors import BodyTimeout, BodyTooLarge

Headers = list[tuple[bytes, bytes]]

SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
# RFC 9110, 7.6.1, and what this gateway answers for itself. accept-encoding: a compressed answer could not be read.
NOT_FORWARDED = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade", b"host", b"content-length", b"expect", b"accept-encoding",
    b"authorization", b"x-api-key", b"api-key", b"cookie", b"x-request-id", b"x-slo-ttft-ms", b"x-slo-tpot-ms",
    b"x-joulegate-migrate", b"x-joulegate-energy",
})  # fmt: skip
NOT_RETURNED = frozenset({
    b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"server", b"date", b"x-request-id",
    b"set-cookie", b"upgrade", b"trailer", b"proxy-authenticate",
})  # fmt: skip
STATUS_LINES = {s.value: b"HTTP/1.1 %d %s\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def sane_id(given: bytes | None, fallback: str) -> str:
    """The client's own request id, where it can go into logs and headers as it is."""
    return given.decode() if given and SANE_ID.fullmatch(given) else fallback


def _nothing() -> None:
    pass


class ClientGone(Exception):
    """The client hung up. Nobody is left to tell."""


class Client:
    """Built per request. `started` is true once a byte of the answer may have reached the client."""

    __slots__ = (
        "_body", "_body_size", "_body_waiter", "_by_name", "_chunked", "_complete", "_date", "_done", "_expects",
        "_head", "_limit", "_task", "disconnected", "full", "gone", "headers", "keep_alive", "on_room",
        "path", "query", "response_complete", "started", "transport",
    )  # fmt: skip

    def __init__(
        self,
        transport: asyncio.Transport,
        path: str,
        query: bytes,
        headers: Headers,
        *,
        date: Iterable[tuple[bytes, bytes]] = (),
        keep_alive: bool = True,
        chunked: bool = True,
        expects: bool = False,
        full: bool = False,
        body_limit: int = 0,
        done: Callable[[], None] = _nothing,
    ) -> None:
        """`done` is called once the answer is complete, and closes what is not kept if the body is not all here.
        `chunked` is false for HTTP/1.0, where the end of an answer is the close."""
        self.transport = transport
        self.path = path
        self.query = query
        self.headers = headers
        self.keep_alive = keep_alive and chunked
        self.started = False
        self.gone = False
        self.full = full
        self.disconnected = False
        self.response_complete = False
        self.on_room: Callable[[bool], None] | None = None  # told when the socket's buffer fills (True) and empties
        self._by_name = dict(headers)
        self._date = date
        self._chunked = chunked
        self._expects = expects
        self._done = done
        self._head = b""
        self._body: list[bytes] = []
        self._body_size = 0
        self._limit = body_limit
        self._complete = False
        self._body_waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    # --- what came

    def header(self, name: bytes) -> bytes | None:
        return self._by_name.get(name)

    def request_id(self, fallback: str) -> str:
        given = self._by_name.get(b"x-request-id")
        return fallback if given is None else sane_id(given, fallback)

    def forwarded_headers(self) -> Headers:
        named = self._by_name.get(b"connection")
        if named is None or named.lower() in (b"keep-alive", b"close"):
            return [pair for pair in self.headers if pair[0] not in NOT_FORWARDED]
        dropped = {token.strip().lower() for token in named.split(b",")}
        return [(k, v) for k, v in self.headers if k not in NOT_FORWARDED and k not in dropped]

    async def body(self, limit: int, timeout_s: float) -> bytes:
        """The whole body. BodyTooLarge or BodyTimeout; a hang-up cancels the caller's task."""
        declared = self._by_name.get(b"content-length")
        if (declared and declared.isdigit() and int(declared) > limit) or self._body_size > limit:
            raise BodyTooLarge(f"the body is larger than {limit} bytes")
        if not self._complete:
            await self._arrived(timeout_s)
        if self._body_size > limit:
            raise BodyTooLarge(f"the body is larger than {limit} bytes")
        return self._body[0] if len(self._body) == 1 else b"".join(self._body)

    async def _arrived(self, timeout_s: float) -> None:
        if self._expects and not self.transport.is_closing():
            self._expects = False
            self.transport.write(CONTINUE)
        loop = asyncio.get_running_loop()
        waiter = self._body_waiter = loop.create_future()
        timer = loop.call_later(timeout_s, _expire, waiter, timeout_s)
        try:
            await waiter
        finally:
            timer.cancel()
            self._body_waiter = None

    # --- for the protocol

    @property
    def whole(self) -> bool:
        """Whether all of the body is here."""
        return self._complete

    def bind(self, task: asyncio.Task[None]) -> None:
        """The task that answers. A hang-up cancels it, so that its work at an instance ends at once."""
        self._task = task

    def feed(self, data: bytes) -> None:
        """A piece of the body. What exceeds the limit is counted and dropped: nobody will read it."""
        self._body_size += len(data)
        if self.response_complete:  # refused before it was all here
            return
        if self._body_size <= self._limit:
            self._body.append(data)
        else:
            self._body.clear()
            self._wake()

    def body_complete(self) -> None:
        self._complete = True
        self._wake()

    def hung_up(self) -> None:
        self.disconnected = True
        if not self.response_complete and not self.gone:
            self.gone = True
            if self._task is not None:
                self._task.cancel()

    def set_full(self, full: bool) -> None:
        """The socket's buffer went over its high mark, or under its low one."""
        self.full = full
        if self.on_room is not None:
            self.on_room(full)

    def _wake(self) -> None:
        if self._body_waiter is not None and not self._body_waiter.done():
            self._body_waiter.set_result(None)

    # --- the answer

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """A streamed answer begins. Its head leaves together with the first bytes."""
        self.started = True
        framing = ((b"transfer-encoding", b"chunked"),) if self._chunked else ()
        self._head = self._render(status, (*headers, *framing))

    def write(self, data: bytes) -> None:
        if self.disconnected or not data:
            return
        if not self._chunked:
            self.transport.write(self._head + data)
        elif self._head:
            self.transport.write(b"%b%x\r\n%b\r\n" % (self._head, len(data), data))
        else:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        self._head = b""

    @property
    def chunk_writer(self) -> Callable[[bytes], object] | None:
        """Takes chunks of the answer with their framing, as `write` would write them now; None where it would not."""
        ready = self._chunked and self.started and not (self._head or self.disconnected)
        return self.transport.write if ready else None

    def end(self, data: bytes = b"") -> None:
        if self.response_complete:  # a fault after the end is told to nobody: it would land in the next answer
            return
        if not self.disconnected:
            last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
            self.transport.write(self._head + (last if self._chunked else data))
        self._over()

    def reply(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole answer in one write."""
        if self.response_complete:
            return
        self.started = True
        if not self.disconnected:
            length = (b"content-length", b"%d" % len(body))
            self.transport.write(self._render(status, (*headers, length)) + body)
        self._over()

    def _over(self) -> None:
        self.response_complete = True
        if not self.keep_alive and self._complete:
            self.transport.close()
        self._done()

    def _render(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
        if self._expects and not self._complete:  # its sender may keep the body back, and what comes next is no body
            self.keep_alive = False
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        for name, value in (*self._date, *headers):
            lines += (name, b": ", value, b"\r\n")
            if name == b"connection" and value == b"close":
                self.keep_alive = False
        if not self.keep_alive and (b"connection", b"close") not in headers:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)


def _expire(waiter: asyncio.Future[None], timeout_s: float) -> None:
    if not waiter.done():
        waiter.set_exception(BodyTimeout(f"the body did not arrive within {timeout_s:g} s"))
