"""A hot request's client: what it sends in pieces, what it is sent, and its leaving."""

import asyncio

import pytest

from core.errors import BodyTimeout, BodyTooLarge
from gateway.asgi_client import AsgiClient
from gateway.client import Client, ClientGone


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def make(transport: Transport, **more: object) -> Client:
    return Client(transport, "/v1/completions", b"", [(b"expect", b"100-continue")], **{"body_limit": 10, **more})


def test_a_streamed_answer_is_one_write_per_piece_and_its_head_goes_with_the_first() -> None:
    transport = Transport()
    client = make(transport)
    client.start(200, [(b"content-type", b"text/event-stream")])
    assert not transport.sent
    client.write(b"data: 1\n\n")
    client.write(b"x" * 255)
    client.end(b"last")
    head, _, first = transport.sent[0].partition(b"\r\n\r\n")
    assert head == b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
    assert (first, transport.sent[1]) == (b"9\r\ndata: 1\n\n\r\n", b"ff\r\n" + b"x" * 255 + b"\r\n")
    assert transport.sent[2] == b"4\r\nlast\r\n0\r\n\r\n"
    assert client.response_complete and not transport.closed


def test_http_1_0_gets_plain_bytes_and_the_close() -> None:
    transport = Transport()
    client = make(transport, chunked=False, keep_alive=False)
    client.body_complete()
    client.start(200, [])
    client.write(b"ab")
    client.end(b"c")
    assert transport.sent == [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nab", b"c"]
    assert transport.closed


def test_a_whole_answer_is_one_write() -> None:
    transport, over = Transport(), []
    client = make(transport, done=lambda: over.append(1))
    client.body_complete()
    client.reply(404, [(b"connection", b"close")], b"{}")
    assert transport.sent == [b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"]
    assert transport.closed and over == [1]


def test_nothing_follows_an_answer_that_is_over() -> None:
    transport, over = Transport(), []
    client = make(transport, done=lambda: over.append(1))
    client.reply(200, [], b"{}")
    client.end(b"data: error")
    client.reply(500, [], b"{}")
    assert (len(transport.sent), over) == (1, [1])


def test_an_answer_before_the_body_was_asked_for_ends_the_connection() -> None:
    """The client may keep the body back: what comes next would be taken for it."""
    transport = Transport()
    client = make(transport, expects=True)
    client.reply(413, [], b"{}")
    assert b"connection: close" in transport.sent[0] and not client.keep_alive


def test_a_first_piece_beyond_the_limit_is_refused_at_once() -> None:
    async def story() -> None:
        client = make(Transport())
        reading = asyncio.ensure_future(client.body(10, 5))
        await asyncio.sleep(0)
        client.feed(b"x" * 11)
        with pytest.raises(BodyTooLarge):
            await reading

    asyncio.run(story())


def test_a_body_in_pieces() -> None:
    async def story() -> tuple[bytes, Transport]:
        transport = Transport()
        client = make(transport, expects=True)
        reading = asyncio.ensure_future(client.body(10, 5))
        await asyncio.sleep(0)
        client.feed(b"abc")
        client.feed(b"def")
        client.body_complete()
        return await reading, transport

    body, transport = asyncio.run(story())
    assert body == b"abcdef"
    assert transport.sent == [b"HTTP/1.1 100 Continue\r\n\r\n"]


def test_a_body_beyond_its_limit_is_refused_before_it_ends_and_takes_no_memory() -> None:
    async def story() -> Client:
        client = make(Transport())
        reading = asyncio.ensure_future(client.body(10, 5))
        await asyncio.sleep(0)
        for _ in range(1000):
            client.feed(b"12345678")
        with pytest.raises(BodyTooLarge):
            await reading
        return client

    assert not asyncio.run(story())._body


def test_a_body_that_does_not_end() -> None:
    async def story() -> None:
        with pytest.raises(BodyTimeout):
            await make(Transport()).body(10, 0.001)

    asyncio.run(story())


def test_a_hang_up_cancels_the_answer_and_silences_what_is_still_written() -> None:
    async def story() -> Transport:
        transport = Transport()
        client = make(transport)
        answering = asyncio.ensure_future(asyncio.Event().wait())
        client.bind(answering)  # type: ignore[arg-type]
        client.hung_up()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert client.gone
        client.start(200, [])
        client.write(b"x")
        client.end(b"y")
        return transport

    assert not asyncio.run(story()).sent


def test_a_full_connection_tells_whoever_fills_it() -> None:
    client, told = make(Transport()), []
    client.set_full(True)
    client.on_room = told.append
    client.set_full(False)
    assert (client.full, told) == (False, [False])


def test_a_cold_client_that_makes_no_room_is_let_go() -> None:
    async def story() -> None:
        async def stuck(message: object) -> None:
            await asyncio.Event().wait()

        client = AsgiClient({"path": "/", "method": "GET", "headers": []}, lambda: asyncio.Future(), stuck, 0.01)
        with pytest.raises(ClientGone):
            await asyncio.wait_for(client.reply(200, [], b"x"), 10)

    asyncio.run(story())
