"""A client's side of a request: one that makes no room for its answer is let go."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from gateway.client import TRANSPORT, Client, ClientGone

CALLS: dict[str, Callable[[Client], Awaitable[None]]] = {
    "start": lambda client: client.start(200, []),
    "write": lambda client: client.write(b"x"),
    "end": lambda client: client.end(b"x"),
    "reply": lambda client: client.reply(200, [], b"x"),
}


class Transport:
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("name", CALLS)
def test_a_client_that_reads_nothing_is_let_go(name: str) -> None:
    transport = Transport()

    async def full(message: MutableMapping[str, Any]) -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        scope = {"path": "/", "method": "POST", "headers": [], TRANSPORT: transport}
        client = Client(scope, lambda: asyncio.Future(), full, 0.01)
        with pytest.raises(ClientGone):
            await asyncio.wait_for(CALLS[name](client), 10)
        assert client.gone

    asyncio.run(story())
    assert transport.aborted
