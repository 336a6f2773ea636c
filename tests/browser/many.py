"""A hundred instances that cost next to nothing: one server that answers on a hundred loopback addresses."""

from __future__ import annotations

import asyncio
import socket
import threading

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"


class Talk(asyncio.Protocol):
    """Answers whatever is asked. Every request of a probe comes in one piece."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER)


class Many:
    """`urls` are ready when it is made; `close` ends it."""

    def __init__(self, count: int) -> None:
        first = socket.create_server(("127.0.1.1", 0))
        port = first.getsockname()[1]
        self._sockets = [first, *(socket.create_server((f"127.0.1.{k}", port)) for k in range(2, count + 1))]
        self.urls = [f"http://127.0.1.{k}:{port}" for k in range(1, count + 1)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        for one in self._sockets:
            self._loop.run_until_complete(self._loop.create_server(Talk, sock=one))
        self._loop.run_forever()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        for one in self._sockets:
            one.close()
