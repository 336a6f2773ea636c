"""One client connection, on a transport to nowhere."""

import asyncio
import sys

import pytest
import uvicorn
from uvicorn.server import ServerState

from core.clock import SystemClock
from gateway.asgi_client import Receive, Scope, Send
from gateway.client import Client
from gateway.config import Limits
from gateway.dialect import Dialect
from gateway.pipe import Pipe
from gateway.protocol import GatewayProtocol, gateway_protocol
from gateway.sse import EventStream
from gateway.timing import Timing


class Unread(asyncio.Transport):
    """Its peer takes `per_look` bytes between two looks at the buffer."""

    def __init__(self, size: int, per_look: int) -> None:
        super().__init__()
        self.size = size
        self.per_look = per_look
        self.looks = 0
        self.ended = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        self.looks += 1
        self.size -= self.per_look
        if self.size <= 0:
            self.ended.set()
        return self.size

    def write(self, data: object) -> None:
        return

    def close(self) -> None:
        return

    def abort(self) -> None:
        self.ended.set()


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    return


async def never(client: object, route: object) -> None:
    raise AssertionError("nobody asked")


@pytest.mark.parametrize(("per_look", "looks"), [(0, 2), (10, 10)])
def test_an_answer_that_nobody_reads_is_not_kept_for_ever(per_look: int, looks: int) -> None:
    async def story() -> Unread:
        make = gateway_protocol(never, lambda: Limits(stall_timeout_s=0.001))
        protocol: GatewayProtocol = make(config=uvicorn.Config(nothing), server_state=ServerState(), app_state={})
        transport = Unread(100, per_look)
        protocol.connection_made(transport)
        protocol.pause_writing()
        await asyncio.wait_for(transport.ended.wait(), 10)
        protocol.connection_lost(None)
        return transport

    transport = asyncio.run(story())
    assert transport.looks == looks, "a slow reader is waited for, one that stands still is not"


class Socket:
    """Its kernel has `size` bytes, and the peer takes `per_look` of them between two looks."""

    def __init__(self, size: int, per_look: int) -> None:
        self.size = size
        self.per_look = per_look

    def fileno(self) -> int:
        return 0


@pytest.mark.parametrize(("per_look", "ended"), [(0, True), (10, False)])
def test_what_a_slow_reader_takes_from_the_kernel_counts(
    per_look: int, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer of the process shrinks only when much of the kernel's is gone."""
    sock = Socket(1000, per_look)

    def ioctl(fd: int, request: int, out: bytes) -> bytes:
        sock.size -= sock.per_look
        return sock.size.to_bytes(len(out), sys.byteorder)

    monkeypatch.setattr("gateway.protocol.fcntl.ioctl", ioctl)

    async def story() -> bool:
        make = gateway_protocol(never, Limits)
        protocol: GatewayProtocol = make(config=uvicorn.Config(nothing), server_state=ServerState(), app_state={})
        transport = Unread(100, 0)
        protocol.connection_made(transport)
        transport._extra = {"socket": sock}  # type: ignore[attr-defined]
        protocol.pause_writing()
        protocol._check_unread(1100 - per_look)
        protocol.connection_lost(None)
        return transport.ended.is_set()

    assert asyncio.run(story()) == ended


def test_a_stream_is_looked_at_when_it_must_have_begun_and_then_as_often_whenever_that_was() -> None:
    clock = SystemClock()
    limits = Limits(first_byte_timeout_s=300.0, stall_timeout_s=60.0)
    events = EventStream(Dialect.OPENAI, strip_usage=False)
    client = Client(Told(), "/v1/chat/completions", b"", [])
    timing = Timing(clock.now_s(), 1.0, 1.0)
    begin_by_s = clock.now_s() + 10.0
    late = Pipe(events, timing, client, clock, limits, begin_by_s, on_content=list, head=lambda: (200, []))
    assert late.look_s <= 10.0
    late(b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}\n\n')
    assert client.started
    assert late.look_s == late.check(True) == 15.0


class Told(Unread):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__(0, 0)
        self.said = b""

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.said += data

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("begin", [b"1\r\n{\r\n0\r\nx-late: ", b"1;name="])
def test_a_trailer_or_chunk_extension_that_never_ends_is_refused(begin: bytes) -> None:
    async def waits(client: object, route: object) -> None:
        await asyncio.Event().wait()

    async def story() -> bytes:
        make = gateway_protocol(waits, lambda: Limits(max_header_bytes=4000))
        protocol: GatewayProtocol = make(config=uvicorn.Config(nothing), server_state=ServerState(), app_state={})
        transport = Told()
        protocol.connection_made(transport)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        for piece in (head, begin, b"x" * 3000):
            protocol.data_received(piece)
        assert not transport.said
        protocol.data_received(b"x" * 3000)
        protocol.connection_lost(None)
        return transport.said

    assert asyncio.run(story()).startswith(b"HTTP/1.1 431 ")
