"""A crowd: thousands of slow streams at once, and more connections than the gateway serves.

    .venv/bin/python -m bench.crowd --streams 5000 --connections 10000

Tells the gateway's memory per stream, and what became of every connection: a whole answer, or a polite 429. Exit status
1 if any ended otherwise. Client and stub share one core, the gateway has the other."""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from bench.gateways import HERE, KEY, MODEL, Place, joulegate, joulegate_config
from bench.processes import build, start_gateway, start_stub
from pools.ports import free_ports

BURST = 200  # connections opened at once


@dataclass(frozen=True, slots=True)
class Crowd:
    """What was seen. Memory is RSS of the gateway's process, in kB."""

    streams: int
    connections: int
    ends: dict[str, int]
    rss_before_kb: int
    rss_full_kb: int
    kb_per_stream: float


def rss_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise ValueError(f"process {pid} has no memory")


def request(events: int, interval_ms: int) -> bytes:
    body = json.dumps({
        "model": MODEL, "stream": True,
        "messages": [{"role": "user", "content": f"bench:n={events},i={interval_ms}"}],
    }).encode()  # fmt: skip
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


class Visitor(asyncio.Protocol):
    """One connection: sends its request, keeps the beginning and the end of what it gets."""

    def __init__(self, ask: bytes, over: asyncio.Future[str]) -> None:
        self._ask = ask
        self._over = over
        self._first = b""
        self._last = b""
        self.streaming = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._ask)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if len(self._first) < 16:
            self._first += data[:16]
        self.streaming = self._first.startswith(b"HTTP/1.1 200")
        self._last = (self._last + data)[-64:]
        if b"data: [DONE]" in self._last and self._last.endswith(b"0\r\n\r\n"):
            self._end("whole")
        elif self._first.startswith(b"HTTP/1.1 429"):
            self._end("429")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"cut after {self._first[9:12].decode() or 'nothing'}")

    def _end(self, how: str) -> None:
        if not self._over.done():
            self._over.set_result(how)
            self._transport.close()


async def visit(port: int, streams: int, connections: int, pid: int) -> Crowd:
    loop = asyncio.get_running_loop()
    before = rss_kb(pid)
    ask = request(events=40, interval_ms=1000)
    ends: list[asyncio.Future[str]] = []
    visitors: list[Visitor] = []

    async def enter(count: int) -> None:
        for _ in range(0, count, BURST):
            for _ in range(min(BURST, count)):
                over = loop.create_future()
                _, visitor = await loop.create_connection(lambda over=over: Visitor(ask, over), "127.0.0.1", port)
                ends.append(over)
                visitors.append(visitor)

    await enter(streams)
    async with asyncio.timeout(60):
        while not all(visitor.streaming for visitor in visitors):
            await asyncio.sleep(0.1)
    full = rss_kb(pid)
    await enter(connections - streams)
    async with asyncio.timeout(180):
        ended = Counter(await asyncio.gather(*ends))
    return Crowd(streams, connections, dict(ended), before, full, round((full - before) / streams, 1))


def measure(streams: int, connections: int) -> Crowd:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    build(HERE.parent / "build" / "bench")
    with TemporaryDirectory() as folder:
        one, two, port = free_ports(3)
        place = Place((one, two), Path(folder))
        stub = start_stub(HERE.parent / "build" / "bench" / "stub", (one, two), 0, place.folder / "stub.log")
        try:
            gateway = joulegate("joulegate", port, place, HERE.parent)
            config = joulegate_config(port, place.urls(), str(place.folder / "run.jsonl"))
            config["limits"] = {"max_streams": streams, "max_queue": 100}
            service = config["services"][MODEL]  # type: ignore[index]
            for pool in service["pools"]:
                pool.update(slots=streams, kv_tokens=0)
            service["profile"] = ""  # no model keeps thousands within its objectives: this is about connections
            place.write("joulegate.yaml", json.dumps(config))
            running = start_gateway(gateway, 1, place.folder)
            try:
                return uvloop.run(visit(port, streams, connections, running.process.pid))
            finally:
                running.stop()
        finally:
            stub.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "crowd.json")
    asked = parser.parse_args()
    seen = measure(asked.streams, asked.connections)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(asdict(seen), indent=1))
    print(json.dumps(asdict(seen)))
    wanted = {"whole": asked.streams, "429": asked.connections - asked.streams}
    return 0 if Counter(seen.ends) == Counter(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
