"""From a client's hang-up to the abort at the instance: `python -m bench.hang_up`.

The instance and its clients are one process here, so one clock tells both ends; the gateway is a process of its own, on
the other core, configured as in the bench. Two moments of hanging up: in the middle of a stream, and before the first
byte of an answer. `--beside` streams run all the while. Prints JSON, milliseconds; exit status 1 if an abort never
came."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import uvloop

from bench.crowd import request
from bench.gateways import HERE, Place, joulegate
from bench.processes import start_gateway
from bench.ratios import rank
from bench.request_steps import EVENT, framed
from pools.ports import free_ports

AIM_MS, PATIENCE_S, PACE_S = 50.0, 5.0, 0.02
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
SILENT, STREAMS = "mute", "talk"


@dataclass(slots=True)
class Aborts:
    """By the name that a request bears: when it came to an instance, and when its connection was seen to end."""

    came: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    waited: dict[str, asyncio.Future[float]] = field(default_factory=dict)

    def saw(self, name: str, at_s: float) -> None:
        future = self.waited.get(name)
        if future is not None and not future.done():
            future.set_result(at_s)


class Instance(asyncio.Protocol):
    """Streams for ever to whoever asks to `talk`, and never answers those who ask for `mute`."""

    def __init__(self, aborts: Aborts) -> None:
        self._aborts = aborts
        self._loop = asyncio.get_running_loop()
        self._name = ""
        self._talking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not data.startswith(b"POST"):
            self._transport.write(OK)  # type: ignore[attr-defined]
            return
        self._name = data.partition(b"bench:")[2].partition(b'"')[0].decode()
        if self._name.startswith(STREAMS):
            self._transport.write(HEAD)  # type: ignore[attr-defined]
            self._talk()
        elif not self._name.startswith(SILENT):  # whether the gateway has started
            self._transport.write(OK)  # type: ignore[attr-defined]
        self._aborts.came[self._name].set()

    def _talk(self) -> None:
        self._transport.write(framed(EVENT))  # type: ignore[attr-defined]
        self._talking = self._loop.call_later(PACE_S, self._talk)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._talking is not None:
            self._talking.cancel()
        self._aborts.saw(self._name, monotonic())


def ask(name: str) -> bytes:
    plain = request(1, 1)
    head, _, body = plain.partition(b"\r\n\r\n")
    body = body.replace(b"bench:n=1,i=1", b"bench:" + name.encode())
    head = head[: head.rindex(b" ") + 1] + b"%d" % len(body)
    return head + b"\r\n\r\n" + body


async def hang_up(port: int, name: str, aborts: Aborts, after_s: float) -> float:
    """Milliseconds from the close of the client's socket to the end of the instance's connection."""
    loop = asyncio.get_running_loop()
    seen = aborts.waited[name] = loop.create_future()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ask(name))
    await asyncio.wait_for(aborts.came[name].wait(), PATIENCE_S)
    if name.startswith(STREAMS):
        await reader.readuntil(b"data:")
    await asyncio.sleep(after_s)
    gone_s = monotonic()
    writer.transport.abort()
    return (await asyncio.wait_for(seen, PATIENCE_S) - gone_s) * 1000


async def read_on(port: int, name: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ask(name))
    while await reader.read(65536):
        pass


async def measure(folder: Path, times: int, beside: int) -> dict[str, object]:
    loop, aborts, order = asyncio.get_running_loop(), Aborts(), random.Random(1)
    one, two, port = free_ports(3)
    servers = [await loop.create_server(lambda: Instance(aborts), "127.0.0.1", at) for at in (one, two)]
    gateway = joulegate("joulegate", port, Place((one, two), folder), HERE.parent)
    core = max(os.sched_getaffinity(0))
    running = await asyncio.to_thread(start_gateway, gateway, core, folder)
    others = [asyncio.create_task(read_on(port, f"{STREAMS} beside {n}")) for n in range(beside)]
    told: dict[str, object] = {"times": times, "beside": beside}
    try:
        for what, kind in (("in_a_stream", STREAMS), ("before_an_answer", SILENT)):
            found = []
            for n in range(times):
                found.append(await hang_up(port, f"{kind} {n}", aborts, 0.01 + 0.04 * order.random()))
            told[what] = {f"p{q}": round(rank(sorted(found), q / 100), 2) for q in (50, 99, 100)}
    finally:
        for other in others:
            other.cancel()
        await asyncio.to_thread(running.stop)
        for server in servers:
            server.close()
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--beside", type=int, default=64)
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        try:
            print(json.dumps(uvloop.run(measure(Path(folder), asked.times, asked.beside))))
        except TimeoutError:
            print(f"an abort did not come within {PATIENCE_S:g} s", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
