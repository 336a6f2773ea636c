"""Owns the recording of what one vLLM backend really sent: a byte-exact TCP relay.

A `Tee` stands between the gateway and a backend, forwards every byte unchanged in both
directions, and keeps them.  `exchanges` parses the recording into HTTP exchanges whose bodies
have their chunked framing taken off (with httptools), so that a test can demand that a client of
the gateway received the very bytes that the backend sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import httptools

READ_SIZE = 1 << 16


@dataclass(slots=True)
class Exchange:
    """One request and its response, as they passed through the relay."""

    request_head: bytes = b""
    request_body: bytes = b""
    response_status: int = 0
    response_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    response_body: bytes = b""
    complete: bool = False

    @property
    def method(self) -> str:
        return self.request_head.split(b" ", 1)[0].decode()

    @property
    def path(self) -> str:
        return self.request_head.split(b" ", 2)[1].decode()

    def request_header(self, name: str) -> str | None:
        for line in self.request_head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.lower().encode():
                return value.strip().decode()
        return None

    def response_header(self, name: str) -> str | None:
        for key, value in self.response_headers:
            if key.lower() == name.lower().encode():
                return value.decode()
        return None


class _Messages:
    """httptools callbacks that collect the messages of one direction as its bytes come."""

    def __init__(self) -> None:
        self.raw = bytearray()
        self.reads: list[int] = []
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.bodies: list[bytearray] = []
        self.finished = 0
        self.error: httptools.HttpParserError | None = None

    def feed(self, data: bytes) -> None:
        """Never raises: what cannot be parsed is still relayed, and `error` tells of it."""
        self.raw += data
        self.reads.append(len(data))
        if self.error is None:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserError as error:
                self.error = error

    def on_message_begin(self) -> None:
        self.url, self.headers = b"", []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body

    def on_message_complete(self) -> None:
        self.finished += 1


class _Requests(_Messages):
    def __init__(self) -> None:
        super().__init__()
        self.heads: list[bytes] = []
        self.parser = httptools.HttpRequestParser(self)

    def on_headers_complete(self) -> None:
        line = self.parser.get_method() + b" " + self.url
        line += b" HTTP/" + self.parser.get_http_version().encode()
        self.heads.append(b"\r\n".join([line, *(k + b": " + v for k, v in self.headers)]))
        self.bodies.append(bytearray())


class _Responses(_Messages):
    def __init__(self) -> None:
        super().__init__()
        self.heads: list[tuple[int, list[tuple[bytes, bytes]]]] = []
        self.parser = httptools.HttpResponseParser(self)

    def on_headers_complete(self) -> None:
        self.heads.append((self.parser.get_status_code(), self.headers))
        self.bodies.append(bytearray())


class Recording:
    """One TCP connection: its raw bytes and the messages in them, for both directions."""

    def __init__(self) -> None:
        self.sent = _Requests()
        self.received = _Responses()

    def exchanges(self) -> list[Exchange]:
        """Requests paired with their responses, in the order of the connection."""
        found = []
        for index, head in enumerate(self.sent.heads):
            exchange = Exchange(request_head=head, request_body=bytes(self.sent.bodies[index]))
            if index < len(self.received.heads):
                exchange.response_status, exchange.response_headers = self.received.heads[index]
                exchange.response_body = bytes(self.received.bodies[index])
                exchange.complete = index < self.received.finished
            found.append(exchange)
        return found


class Tee:
    """A relay on a free local port: `async with Tee(target_port) as tee: tee.port`."""

    def __init__(self, target_port: int, host: str = "127.0.0.1") -> None:
        self.target_port = target_port
        self.host = host
        self.port = 0
        self.recordings: list[Recording] = []
        self.cut_after = 0  # events of the next stream, then both connections break off; 0 = never
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task] = set()

    async def __aenter__(self) -> Tee:
        self._server = await asyncio.start_server(self._serve, self.host, 0, limit=READ_SIZE)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def exchanges(self) -> list[Exchange]:
        """All exchanges so far, connection by connection in the order they were opened."""
        return [exchange for recording in self.recordings for exchange in recording.exchanges()]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._connections.add(task)
        recording = Recording()
        self.recordings.append(recording)
        backend_writer = None
        try:
            backend_reader, backend_writer = await asyncio.open_connection(self.host, self.target_port, limit=READ_SIZE)
            upward = asyncio.create_task(self._pump(reader, backend_writer, recording.sent))
            downward = asyncio.create_task(self._pump_answers(backend_reader, writer, recording.received))
            # Either side's end is passed on at once: a client that leaves must be seen.
            try:
                await asyncio.wait({upward, downward}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                upward.cancel()
                downward.cancel()
                await asyncio.gather(upward, downward, return_exceptions=True)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            for side in (writer, backend_writer):
                if side is not None:
                    side.close()
                    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                        await side.wait_closed()

    async def _pump_answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: _Messages
    ) -> None:
        """As `_pump`, but breaks off where a test wants it."""
        passed = 0
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(READ_SIZE):
                if self.cut_after and b"text/event-stream" in data:
                    passed = 1
                if passed:
                    passed += data.count(b"\n\n")
                    if passed > self.cut_after:
                        self.cut_after = 0
                        writer.transport.abort()
                        return
                record.feed(data)
                writer.write(data)
                await writer.drain()

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: _Messages) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(READ_SIZE):
                record.feed(data)
                writer.write(data)
                await writer.drain()
