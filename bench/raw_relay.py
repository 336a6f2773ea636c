"""A reference point: the least that Python can do as a relay. The body's JSON is parsed, the backend with the fewest
requests is taken, bytes are copied. No keys, no queue, no prediction, no metrics, no retries: a floor, not a peer.

    python raw_relay.py PORT BACKEND_PORT [BACKEND_PORT...]
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import httptools
import uvloop


class Backend:
    """One engine: its idle connections and how many requests it has."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.idle: list[Upstream] = []
        self.running = 0


class Upstream(asyncio.Protocol):
    """A connection to an engine; copies what it reads to the client that has it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.client: Downstream | None = None
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def begin(self, client: Downstream, request: bytes) -> None:
        self.client, self.ended = client, False
        self.parser = httptools.HttpResponseParser(self)
        self.transport.write(request)

    def on_message_complete(self) -> None:
        self.ended = True

    def data_received(self, data: bytes) -> None:
        client = self.client
        if client is None:
            self.transport.close()
            return
        self.parser.feed_data(data)
        client.transport.write(data)
        if self.ended:
            self.client = None
            self.backend.running -= 1
            self.backend.idle.append(self)
            client.upstream = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.client is not None:
            self.backend.running -= 1
            self.client.transport.close()
        elif self in self.backend.idle:
            self.backend.idle.remove(self)


class Downstream(asyncio.Protocol):
    """A connection of a client, one request at a time."""

    def __init__(self, backends: list[Backend]) -> None:
        self.backends = backends
        self.upstream: Upstream | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self.path, self.body = b"", b""
        self.headers: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in (b"host", b"connection", b"content-length", b"transfer-encoding"):
            self.headers.append(name + b": " + value + b"\r\n")

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        json.loads(self.body)
        backend = min(self.backends, key=lambda one: one.running)
        backend.running += 1
        head = b"POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\n%s" % (self.path, b"".join(self.headers))
        request = b"%scontent-length: %d\r\n\r\n%s" % (head, len(self.body), self.body)
        if backend.idle:
            self.upstream = backend.idle.pop()
            self.upstream.begin(self, request)
        else:
            task = asyncio.get_running_loop().create_task(self.connect(backend, request))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def connect(self, backend: Backend, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, self.upstream = await loop.create_connection(lambda: Upstream(backend), "127.0.0.1", backend.port)
        self.upstream.begin(self, request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.upstream is not None and self.upstream.client is self:
            self.upstream.client = None
            self.upstream.backend.running -= 1
            self.upstream.transport.abort()


async def serve(port: int, backends: list[Backend]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Downstream(backends), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), [Backend(int(port)) for port in sys.argv[2:]]))
