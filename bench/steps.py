"""What one arrival of a stream costs, step by step, without a socket.

    .venv/bin/python -m bench.steps

The least of several timings of each step, in microseconds. It tells what Python adds to a relay's two system calls;
`make bench` tells the whole."""

from __future__ import annotations

import asyncio
import timeit
from collections.abc import Callable

from core.clock import SystemClock
from gateway.client import Client
from gateway.config import Limits
from gateway.dialect import Dialect
from gateway.pipe import Pipe
from gateway.sse import EventStream
from gateway.timing import Timing
from gateway.token_stream import Answer, TokenStream
from pools.connection import Wire

NUMBER, REPEATS = 50_000, 7
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-89d3c389fd0e03d6","object":"chat.completion.chunk","created":1795247508,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
)
WITH_IDS = EVENT.replace(b'"token_ids":null', b'"token_ids":[1669]')


class Nowhere(asyncio.Transport):
    """Takes everything."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        return

    def is_closing(self) -> bool:
        return False


def least_us(work: Callable[[], object]) -> float:
    return min(timeit.repeat(work, number=NUMBER, repeat=REPEATS)) / NUMBER * 1e6


def steps() -> dict[str, Callable[[], object]]:
    client = Client(Nowhere(), "/v1/chat/completions", b"", [])
    events, timing, clock = EventStream(Dialect.OPENAI, strip_usage=True), Timing(0.0, 1.0, 1.0), SystemClock()
    kept, long = (TokenStream(Answer(chat=True), strip_usage=True) for _ in range(2))
    pipe = Pipe(
        events, timing, client, clock, Limits(), float("inf"), on_content=lambda: None, head=lambda: (200, [])
    )  # fmt: skip
    wire = Wire()
    wire.connection_made(Nowhere())
    wire.data_received(HEAD)
    wire.sink, wire.stream = pipe, pipe
    chunk = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
    wire.data_received(chunk)
    return {
        "all: parse, scan, time, frame, by the shortcut where there is one": lambda: wire.data_received(chunk),
        "all of it in Python": lambda: wire.arrived(chunk),
        "scan for what must be noticed": lambda: events.feed(EVENT),
        "the same, keeping the ids and taking them out": lambda: (kept.feed(WITH_IDS), kept.answer.raw.clear()),
        "the same in an answer beyond 256 chunks": lambda: long.feed(WITH_IDS),
        "time of the gap": lambda: timing.chunk(clock.now_s(), 1),
        "frame and hand over": lambda: client.write(EVENT),
    }


def main() -> None:
    for name, work in steps().items():
        print(f"{least_us(work):6.2f} us  {name}")


if __name__ == "__main__":
    main()
