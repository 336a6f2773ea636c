"""HTTP/1.1 to one instance: a keep-alive pool and one exchange at a time per connection.

Owns sockets and framing. Body bytes are handed out as they came off the wire, de-chunked, never decoded: pulled with
`chunk` and `body`, or pushed to a sink with `pour`, which spares a turn of the event loop per arrival.
A failure is always `UpstreamFailed` or `UpstreamTimeout`; what to do about it is the caller's business."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools
from msgspec import Struct

from core.errors import UpstreamFailed, UpstreamTimeout
from pools.shortcut import Passed, Shortcut, Stream
from pools.watchdog import Watchdog

BUFFER_HIGH_BYTES = 256 * 1024  # reading pauses above this, so that a slow client does not fill the memory
IDLE_KEEP = 64  # idle connections kept per instance
Headers = list[tuple[bytes, bytes]]


def authority(host: str, port: int) -> str:
    """HOST:PORT as it stands in URLs and Host headers: an IPv6 address in brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ConnectionLost(UpstreamFailed):
    """The instance was there and cut the connection: it may have died."""


class Unreachable(UpstreamFailed):
    """Nobody listens there, or its name does not resolve: it saw nothing of the request."""


class Head(Struct, frozen=True):
    """Status line and headers of an answer; header names are lower case."""

    status: int
    headers: Headers

    def get(self, name: bytes) -> bytes | None:
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Wire(Shortcut, asyncio.Protocol):
    """One TCP connection. The parser's callbacks fill `head` and `chunks`; the reader is woken once per arrival. While
    a stream pours, its plain arrivals may pass by the shortcut; `arrived` gets the others."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.reused = False
        self.lost: str | None = None
        self._reset()

    def _reset(self) -> None:
        self.chunks: list[bytes] = []
        self.on_body = self.chunks.append  # the parser's callback for a piece of the body: no Python runs for it
        self.parser = httptools.HttpResponseParser(self)
        self.headers: Headers = []
        self.head: Head | None = None
        self.sink: Callable[[bytes], None] | None = None
        self.judge: Callable[[Head], bool] | None = None
        self.sink_error: Exception | None = None
        self.stream: Stream | None = None
        self.heard = self.at_boundary = False
        self.buffered = 0
        self.complete = False
        self.keep_alive = False
        self.paused = False
        self.bytes_in = 0
        self.garbage: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.request = b""

    def begin(self, request: bytes) -> None:
        self._reset()
        self.request = request  # until its answer begins: it may have to be sent again
        assert self.transport is not None
        self.transport.write(request)

    @property
    def stale(self) -> bool:
        return self.reused and self.lost is not None and not self.bytes_in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not its subclasses

    def arrived(self, data: bytes) -> None:
        self.settle()
        self.bytes_in += len(data)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.garbage = str(error) or type(error).__name__
            self.close()
        sink, chunks = self.sink, self.chunks
        if sink is None:
            self._hold_back(len(data))
            self._wake()
            return
        if chunks:
            self.heard = True
            try:
                sink(chunks.pop() if len(chunks) == 1 else self.take())
            except Exception as error:
                self.unwritten(error)
        if self.complete or self.garbage is not None:
            self._wake()
        elif self.at_boundary and self.stream is not None and self.sink is not None and data[-2:] == b"\r\n":
            self.stream.ease(self)

    def unwritten(self, error: Exception) -> None:
        """An arrival could not be handed on."""
        self.sink = None
        self.sink_error = error
        self._wake()

    def settle(self) -> None:
        """Nothing passes by the shortcut any more, and its stream knows of what did."""
        if self.stream is not None:
            passed = self.shut()
            if passed is not None:
                self.stream.passed(Passed(*passed))

    def take(self) -> bytes:
        """What arrived so far, in one piece, however the instance cut it into chunks."""
        data = b"".join(self.chunks)
        self.chunks.clear()
        return data

    def _hold_back(self, size: int) -> None:
        """Nobody takes what arrives yet: beyond a bound the instance has to wait."""
        self.buffered += size
        if self.buffered > BUFFER_HIGH_BYTES:
            self.hold()

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("a second answer to one request")  # the parser stops; the connection is not used again

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self.parser.get_status_code()
        if status < 200:  # interim: the answer is still to come
            self.headers = []
        else:
            self.head = Head(status, self.headers)
            self.keep_alive = self.parser.should_keep_alive()  # once the message is complete it always says no
            self.request = b""
            if self.judge is not None and not self.judge(self.head):
                self.sink = self.stream = None

    def on_message_complete(self) -> None:
        self.complete = self.head is not None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = str(exc) if exc else "connection closed"
        if exc is None and self.head is not None and not self.complete and self._ends_at_close():
            self.complete = True
        self._wake()

    def _ends_at_close(self) -> bool:
        """Without a length and without chunks the end of the connection is the end of the body (RFC 9112, 6.3)."""
        return not any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Until something new arrived or the connection ended; raises UpstreamTimeout after `timeout_s`."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, _expire, waiter, timeout_s)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None

    async def poured(
        self, sink: Callable[[bytes], None], check: Callable[[bool], float], look_s: float, stream: Stream | None,
        judge: Callable[[Head], bool],
    ) -> None:  # fmt: skip
        """Until the body is complete, the connection is lost, `judge` has refused the head, or `sink` or `check`
        raised."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self.sink, self.stream, self.judge = sink, stream, judge
        watchdog = Watchdog(self, waiter, check, look_s)
        try:
            if not self.complete and self.lost is None and self.garbage is None:
                await waiter
        finally:
            watchdog.timer.cancel()
            self.settle()
            self._waiter = None
            self.sink = self.stream = self.judge = None
        if self.sink_error is not None:
            raise self.sink_error

    def hold(self) -> None:
        """No more reading until `resume`: whoever reads the answer is slow."""
        if not self.paused and self.transport is not None and not self.transport.is_closing():
            self.paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.paused and self.transport is not None and not self.transport.is_closing():
            self.paused = False
            self.transport.resume_reading()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    @property
    def reusable(self) -> bool:
        return self.complete and not self.paused and self.lost is None and self.garbage is None and self.keep_alive


def _expire(waiter: asyncio.Future[None], timeout_s: float) -> None:
    if not waiter.done():
        waiter.set_exception(UpstreamTimeout(f"the instance sent nothing for {timeout_s:g} s"))


class Exchange:
    """One request and its answer. `async with`; leaving early aborts the connection, which ends the engine's work."""

    def __init__(self, wires: Wires, wire: Wire) -> None:
        self._wires = wires
        self._wire = wire

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._wires.give_back(self._wire)

    async def head(self, timeout_s: float) -> Head:
        """Within `timeout_s` in all, however many pieces it comes in."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + timeout_s
        while self._wire.head is None:
            if self._wire.stale:
                self._wire = await self._wires.send_again(self._wire)
            self._check()
            left_s = due_s - loop.time()
            if left_s <= 0:
                raise UpstreamTimeout(f"the instance did not begin its answer within {timeout_s:g} s")
            await self._wire.wait(left_s)
        return self._wire.head

    @property
    def answered(self) -> Head:
        """The head, once it is here."""
        assert self._wire.head is not None
        return self._wire.head

    async def chunk(self, timeout_s: float) -> bytes:
        """The next bytes of the body, or b"" at its end."""
        wire = self._wire
        while not wire.chunks:
            if wire.complete:
                return b""
            self._check()
            await wire.wait(timeout_s)
        data = wire.take()
        wire.buffered = 0
        wire.resume()
        return data

    async def pour(
        self,
        sink: Callable[[bytes], None],
        check: Callable[[bool], float],
        look_s: float,
        judge: Callable[[Head], bool],
        stream: Stream | None = None,
    ) -> Head | None:
        """Hands every piece of the body to `sink` the moment it arrives, but for those that `stream` lets pass by the
        shortcut; returns None at its end. Called before the answer begins, so that its first bytes wait for no task:
        where `judge` refuses its head nothing is handed on, and the head is returned.
        What `sink` raises ends the exchange and is raised here, and so is what `check` raises, which is asked after
        `look_s`, told whether anything came since, and says when to ask again."""
        while True:
            wire = self._wire
            await wire.poured(sink, check, look_s, stream, judge)
            if wire.head is not None or not wire.stale:
                break
            self._wire = await self._wires.send_again(wire)
        if wire.head is not None and not judge(wire.head):
            return wire.head
        if not wire.complete:
            self._check()
        return None

    def hold(self, full: bool) -> None:
        """Stops reading from the instance while `full`, so that a slow reader does not fill the memory."""
        if full:
            self._wire.hold()
        else:
            self._wire.resume()

    async def body(self, timeout_s: float, limit: int) -> bytes:
        """The whole body; UpstreamFailed when it is larger than `limit` bytes."""
        if self._wire.complete and not self._wire.paused and self._wire.buffered <= limit:  # it came with its head
            return self._wire.take()
        parts: list[bytes] = []
        size = 0
        while part := await self.chunk(timeout_s):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise UpstreamFailed("the instance sent an answer that is too large")
        return b"".join(parts)

    def _check(self) -> None:
        if self._wire.garbage is not None:
            raise UpstreamFailed(f"the instance sent something that is not HTTP: {self._wire.garbage}")
        if self._wire.lost is not None:
            raise ConnectionLost(f"the instance cut the connection: {self._wire.lost}")


class Wires:
    """The connections to one instance."""

    def __init__(self, host: str, port: int, connect_timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._host_line = b" HTTP/1.1\r\nhost: " + authority(host, port).encode() + b"\r\n"
        self._timeout_s = connect_timeout_s
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()
        self._closed = False

    async def send(self, method: bytes, path: bytes, headers: Headers, body: bytes) -> Exchange:
        """Writes the request; the answer is read from the Exchange. UpstreamFailed if nobody listens there."""
        request = self._render(method, path, headers, body)
        wire = self._take_idle() or await self._connect()
        self._busy.add(wire)
        wire.begin(request)
        return Exchange(self, wire)

    async def send_again(self, stale: Wire) -> Wire:
        """The same request on a connection of its own, because `stale` turned out to be closed: a server may close an
        idle one just as it is used again. It never saw the request."""
        request = stale.request
        self.give_back(stale)
        wire = await self._connect()
        self._busy.add(wire)
        wire.begin(request)
        return wire

    def _render(self, method: bytes, path: bytes, headers: Headers, body: bytes) -> bytes:
        lines = [method, b" ", path, self._host_line]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        lines += (b"content-length: %d\r\n\r\n" % len(body), body)
        return b"".join(lines)

    def _take_idle(self) -> Wire | None:
        while self._idle:
            wire = self._idle.pop()
            if wire.reusable and wire.transport is not None and not wire.transport.is_closing():
                wire.reused = True
                return wire
        return None

    async def _connect(self) -> Wire:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                _, wire = await loop.create_connection(Wire, self._host, self._port)
        except TimeoutError:
            raise Unreachable(f"no connection to the instance within {self._timeout_s:g} s") from None
        except OSError as error:
            raise Unreachable(f"the instance cannot be reached: {error.strerror or error}") from None
        return wire

    def give_back(self, wire: Wire) -> None:
        self._busy.discard(wire)
        if wire.reusable and not self._closed and len(self._idle) < IDLE_KEEP:
            self._idle.append(wire)
        else:
            wire.close()

    def close(self) -> None:
        """Closes what is idle now and what is busy as soon as it is given back."""
        self._closed = True
        for wire in self._idle:
            wire.close()
        self._idle.clear()
