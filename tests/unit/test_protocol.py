"""One client connection, on a transport to nowhere."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.asgi_client import Receive, Scope, Send
from gateway.config import Limits
from gateway.protocol import GatewayProtocol, gateway_protocol


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
