"""Stand-ins for vLLM servers: raw HTTP on 127.0.0.1 that answers each POST with a script the test chose.

Owns sockets, scripts and the record of what arrived. Judges nothing, and knows no more of HTTP than one request at a
time on a keep-alive connection. The answers are bytes that vLLM sent (tests/vllm/samples)."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pools.ports import free_ports

SAMPLES = Path(__file__).parent / "vllm" / "samples"
APART_S = 0.1  # between the good part of an answer and its failure: the client has seen the first by then
NAMES = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages_count_tokens",
    "/tokenize": "tokenize",
    "/detokenize": "detokenize",
}


@cache
def sample(name: str) -> bytes:
    """The body of an answer that vLLM gave, its chunks joined."""
    whole = (SAMPLES / f"{name}.txt").read_bytes()
    return whole.partition(b"\r\n\r\n" if b"\r\n\r\n" in whole else b"\n\n")[2]


def events(name: str) -> list[bytes]:
    return [part + b"\n\n" for part in sample(name).split(b"\n\n") if part.strip()]


@dataclass
class Request:
    """One POST as it arrived. `gone`: the other side hung up before the script was through."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    gone: threading.Event = field(default_factory=threading.Event)

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def streams(self) -> bool:
        return bool(self.json.get("stream"))

    @property
    def sample(self) -> str:
        """Which recorded answer fits this request."""
        name = NAMES[self.path.partition("?")[0]]
        if not self.streams or name not in ("chat", "completions", "responses", "messages"):
            return name
        usage = (self.json.get("stream_options") or {}).get("include_usage") and name in ("chat", "completions")
        return f"{name}_stream_usage" if usage else f"{name}_stream"

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


class Talk:
    """What a script may do with the connection its request came on."""

    def __init__(self, request: Request, transport: asyncio.Transport, gate: asyncio.Event) -> None:
        self.request = request
        self.transport = transport
        self.gate = gate

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def head(self, status: int = 200, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items())]
        self.write("\r\n".join(lines).encode() + b"\r\n\r\n")

    def whole(self, status: int, body: bytes, content_type: str = "application/json", **headers: str) -> None:
        self.head(status, content_type=content_type, content_length=str(len(body)), **headers)
        self.write(body)

    def stream_head(self) -> None:
        self.head(content_type="text/event-stream; charset=utf-8", transfer_encoding="chunked")

    def chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> None:
        self.write(b"0\r\n\r\n")

    def close(self) -> None:
        """A clean end of the connection, after what was written."""
        self.transport.close()

    def reset(self) -> None:
        """A TCP reset, as when the server's machine or process dies."""
        linger = struct.pack("ii", 1, 0)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.abort()

    async def for_ever(self) -> None:
        await asyncio.Event().wait()


Script = Callable[[Talk], Awaitable[None]]


async def good(talk: Talk) -> None:
    """What vLLM answers to this route, streaming or not."""
    if not talk.request.streams:
        talk.whole(200, sample(talk.request.sample))
        return
    talk.stream_head()
    for event in events(talk.request.sample):
        talk.chunk(event)
        await asyncio.sleep(0)
    talk.end()


async def bytewise(talk: Talk) -> None:
    """A good answer, one byte per write."""
    said = bytearray()
    write, talk.write = talk.write, said.extend  # type: ignore[method-assign]
    await good(talk)
    for at in range(len(said)):
        write(bytes(said[at : at + 1]))
        await asyncio.sleep(0)


async def drip(talk: Talk) -> None:
    """Content every 20 ms until the gate opens, then the rest; without streaming, nothing until then."""
    if not talk.request.streams:
        await talk.gate.wait()
        await good(talk)
        return
    first, second, *_ = parts = events(talk.request.sample)
    talk.stream_head()
    talk.chunk(first + second)
    content = next(event for event in parts[1:] if b"delta" in event or b'"text"' in event)
    while not talk.gate.is_set():
        talk.chunk(content)
        await asyncio.sleep(0.02)
    for event in parts[2:]:
        talk.chunk(event)
    talk.end()


def status(code: int, body: bytes, content_type: str = "application/json", **headers: str) -> Script:
    async def play(talk: Talk) -> None:
        talk.whole(code, body, content_type, **headers)

    return play


def raw(data: bytes) -> Script:
    """These bytes, whatever they are, and the end of the connection."""

    async def play(talk: Talk) -> None:
        talk.write(data)
        talk.close()

    return play


async def refuse(talk: Talk) -> None:
    """The connection closes before a byte of an answer."""
    talk.close()


async def reset(talk: Talk) -> None:
    talk.reset()


async def stall(talk: Talk) -> None:
    await talk.for_ever()


async def half_head(talk: Talk) -> None:
    talk.write(b"HTTP/1.1 200 OK\r\ncontent-ty")
    talk.close()


async def garbage_200(talk: Talk) -> None:
    """An answer in good HTTP with a body that nobody asked for."""
    kind = "text/event-stream" if talk.request.streams else "application/json"
    talk.whole(200, b"<html>it works</html>", kind)


def part(count: int, then: Script) -> Script:
    """The first `count` events of a good stream (without streaming: half the body), then `then`."""

    async def play(talk: Talk) -> None:
        if talk.request.streams:
            talk.stream_head()
            for event in events(talk.request.sample)[:count]:
                talk.chunk(event)
        else:
            body = sample(talk.request.sample)
            talk.head(content_type="application/json", content_length=str(len(body)))
            talk.write(body[: len(body) // 2])
        await asyncio.sleep(APART_S)
        await then(talk)

    return play


def saying(*data: bytes) -> Script:
    """More chunks and a proper end, for use after `part`."""

    async def play(talk: Talk) -> None:
        for piece in data:
            talk.chunk(piece)
        talk.end()

    return play


async def torn_event(talk: Talk) -> None:
    """Half an event, then the reset; for use after `part`."""
    talk.chunk(b'data: {"id":"torn","choices":[{"index":0,"delta":{"cont')
    await asyncio.sleep(0.02)
    talk.reset()


async def aborted(talk: Talk) -> None:
    """vLLM's way to give up: a well-formed answer that says abort."""
    name = NAMES[talk.request.path]
    if talk.request.streams:
        talk.stream_head()
        first, second, *rest = events(f"{name}_stream_abort")
        talk.chunk(first + second)
        await asyncio.sleep(APART_S)
        talk.chunk(b"".join(rest))
        talk.end()
    else:
        talk.whole(200, sample(name).replace(b'"finish_reason":"length"', b'"finish_reason":"abort"'))


class Connection(asyncio.Protocol):
    """One connection to a backend: reads a request, plays its script, reads the next."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.buffer = b""
        self.served = 0
        self.request: Request | None = None
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.backend.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.backend.connections.discard(self)
        if self.request is not None and self.task is not None:
            self.request.gone.set()
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        if self.served and self.backend.closes_reused:
            self.backend.closed_reused += 1
            self.transport.close()
            return
        self.buffer += data
        if self.request is None:
            self.next_request()

    def next_request(self) -> None:
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = [(k.lower(), v.strip()) for k, _, v in (line.partition(":") for line in lines)]
        length = int(dict(headers).get("content-length", "0"))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        if method == "GET":
            Talk(Request(method, path, headers, b""), self.transport, self.backend.stage.gate).whole(
                200 if self.backend.healthy else 500, b""
            )
            return
        self.request = Request(method, path, headers, rest[:length])
        self.backend.requests.append(self.request)
        self.task = asyncio.get_running_loop().create_task(self.play(self.request))

    async def play(self, request: Request) -> None:
        stage = self.backend.stage
        script = stage.scripts.popleft() if stage.scripts else self.backend.script
        await script(Talk(request, self.transport, stage.gate))
        self.served += 1
        self.request = None
        if self.buffer:
            self.next_request()


class Backend:
    """One server. `down` and `up` close and reopen its port."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.script: Script = good
        self.healthy = True
        self.closes_reused = False
        self.closed_reused = 0
        self.requests: list[Request] = []
        self.connections: set[Connection] = set()
        (self.port,) = free_ports(1)
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), "127.0.0.1", self.port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.transport.abort()

    def up(self) -> None:
        self.stage.run(self.open())

    def down(self) -> None:
        self.stage.run(self.close())


class Stage:
    """Several backends in an event loop of their own thread. `scripts` are played first, one per POST, whichever
    backend it reaches; after them each backend plays its own."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="backends", daemon=True)
        self._thread.start()
        self.scripts: deque[Script] = deque()
        self.gate = asyncio.Event()
        self.backends = [Backend(self) for _ in range(count)]
        for backend in self.backends:
            backend.up()

    def run(self, work: Awaitable[None]) -> None:
        async def whole() -> None:
            await work

        asyncio.run_coroutine_threadsafe(whole(), self._loop).result(10)

    def open_gate(self) -> None:
        self._loop.call_soon_threadsafe(self.gate.set)

    def reset(self) -> None:
        """Everyone is good again, nothing was seen, the gate is shut, and idle connections are closed."""
        self.run(self._reset())

    async def _reset(self) -> None:
        self.scripts.clear()
        self.gate.clear()
        for backend in self.backends:
            backend.script, backend.healthy, backend.closes_reused, backend.closed_reused = good, True, False, 0
            backend.requests.clear()
            for connection in [c for c in backend.connections if c.served and c.request is None]:
                connection.transport.close()

    def play(self, script: Script) -> None:
        for backend in self.backends:
            backend.script = script

    @property
    def requests(self) -> list[Request]:
        return [request for backend in self.backends for request in backend.requests]

    def close(self) -> None:
        self.gate.set()
        for backend in self.backends:
            backend.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def until(holds: Callable[[], object], within_s: float = 10.0) -> bool:
    """Asks until the answer is yes; False when it never was within the bound."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def sse(data: bytes) -> Iterator[bytes]:
    """The events of a finished stream, each without its blank line."""
    return (event for event in data.split(b"\n\n") if event.strip())
