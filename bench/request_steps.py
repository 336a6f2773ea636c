"""What one request costs without sockets: from its bytes on the client's connection to its row in the run log.

    .venv/bin/python -m bench.request_steps [--profile]

A gateway as the bench configures it, its instances answering at once out of memory. CPU microseconds per request, least
and median of several rounds; `--profile` tells which functions have them, cProfile's own cost included."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState

from bench.gateways import KEY, MODEL, joulegate_config
from core.clock import SystemClock
from core.recorder import NullRecorder
from gateway.config_file import load_config
from gateway.events import Events
from gateway.protocol import GatewayProtocol, gateway_protocol
from gateway.run import spare_collections
from gateway.wiring import Running, build
from pools.connection import Wire

ROUNDS, PER_ROUND, AT_ONCE, VARIANTS, EVENTS = 15, 400, 16, 64, 128
WORDS = ("plain", "river", "engine", "deadline", "token", "queue", "joule", "answer", "window", "stone", "copper")
HEAD = b"HTTP/1.1 200 OK\r\nserver: stub\r\n"
SAID = {"index": 0, "message": {"role": "assistant", "content": "x" * 800}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 120, "total_tokens": 248, "completion_tokens": EVENTS}
EVENT = (
    b'data: {"id":"chatcmpl-89d3c389fd0e03d6","object":"chat.completion.chunk","created":1795247508,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":[1669]}]}\n\n'
)
LAST = (
    b'data: {"id":"chatcmpl-89d3c389fd0e03d6","object":"chat.completion.chunk","created":1795247508,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop","token_ids":[]}]}\n\n'
)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole_answer() -> list[bytes]:
    body = json.dumps({"id": "chatcmpl-1", "object": "chat.completion", "choices": [SAID], "usage": USAGE}).encode()
    return [HEAD + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)]


def streamed_answer() -> list[bytes]:
    usage = b'data: {"id":"chatcmpl-1","choices":[],"usage":%b}\n\n' % json.dumps(USAGE).encode()
    begin = HEAD + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + framed(EVENT)
    end = framed(LAST) + framed(usage) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return [begin, *[framed(EVENT)] * (EVENTS - 2), end]


class FromMemory(asyncio.Transport):
    """An instance's connection: whatever is asked, the answer arrives piece by piece in the next turns of the loop."""

    def __init__(self, arrivals: list[bytes]) -> None:
        super().__init__()
        self.wire = Wire()
        self.wire.connection_made(self)
        self._arrivals = arrivals
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._loop.call_soon(self._arrive, 0)

    def _arrive(self, at: int) -> None:
        self.wire.data_received(self._arrivals[at])
        if at + 1 < len(self._arrivals):
            self._loop.call_soon(self._arrive, at + 1)

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        raise AssertionError("the gateway gave an answer up")

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return


class Visitor(asyncio.Transport):
    """A client's connection: it asks again as soon as its answer has ended, until all have asked enough."""

    def __init__(self, make: Callable[[], GatewayProtocol], requests: list[bytes], stream: bool) -> None:
        super().__init__()
        self._requests = requests
        self._end = b"0\r\n\r\n" if stream else b"}"
        self.protocol = make()
        self.protocol.connection_made(self)
        self.left = 0
        self.over: asyncio.Future[None] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not bytes(data).endswith(self._end):
            return
        self.left -= 1
        if self.left > 0:
            self.ask()
        elif self.over is not None:
            self.over.set_result(None)

    def ask(self) -> None:
        asyncio.get_running_loop().call_soon(self.protocol.data_received, self._requests[self.left % VARIANTS])

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return


def requests(stream: bool) -> list[bytes]:
    """As the bench's load client asks."""
    made = []
    for n in range(VARIANTS):
        words = " ".join(WORDS[(n * 7 + k * k) % len(WORDS)] for k in range(60))
        body = {"model": MODEL, "messages": [
            {"role": "system", "content": f"Be brief. {words}"}, {"role": "user", "content": "bench:n=128,i=20"},
        ], "max_tokens": 128, "temperature": 0.7, **({"stream": True} if stream else {})}  # fmt: skip
        text = json.dumps(body, separators=(",", ":")).encode()
        made.append(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: bench\r\nAccept: */*\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
            % (KEY.encode(), len(text), text)
        )
    return made


def make_gateway(folder: Path, arrivals: list[bytes]) -> Running:
    path = folder / "joulegate.yaml"
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    path.write_text(json.dumps(joulegate_config(8080, urls, str(folder / "run.jsonl"))))
    config = load_config(path, {})
    running = build(config, SystemClock(), Events(NullRecorder()), {})
    for service in running.gateway.services.values():
        for name, member in service.fleet.members.items():
            service.fleet.probed(name, True)
            for _ in range(AT_ONCE):
                wire = FromMemory(arrivals).wire
                wire.complete = wire.keep_alive = True
                member.wires.give_back(wire)
    return running


async def no_app(scope: Any, receive: Any, send: Any) -> None:
    """Nothing that is measured here goes through ASGI."""


async def measure(stream: bool, profile: cProfile.Profile | None, rounds: int = ROUNDS) -> list[float]:
    with TemporaryDirectory() as folder:
        running = make_gateway(Path(folder), streamed_answer() if stream else whole_answer())
        gateway = running.gateway
        config = uvicorn.Config(no_app, http="httptools", ws="none", lifespan="off", log_config=None)
        config.load()
        make = gateway_protocol(gateway.serve, lambda: gateway.limits)
        state, asked = ServerState(), requests(stream)
        visitors = [Visitor(lambda: make(config, state, {}), asked, stream) for _ in range(AT_ONCE)]
        spare_collections()
        found = []
        for number in range(rounds + 1):
            if profile is not None and number == 1:
                profile.enable()
            began_s = thread_time()
            await everyone(visitors, PER_ROUND // AT_ONCE // (4 if stream else 1))
            found.append((thread_time() - began_s) / (PER_ROUND // (4 if stream else 1)) * 1e6)
            await running.ledger.read()
        if profile is not None:
            profile.disable()
        assert not gateway.metrics.faults.counts, gateway.metrics.faults.counts
        running.ledger.store.close()
        return found[1:]


async def everyone(visitors: list[Visitor], times: int) -> None:
    loop = asyncio.get_running_loop()
    for visitor in visitors:
        visitor.left, visitor.over = times, loop.create_future()
        visitor.ask()
    for visitor in visitors:
        assert visitor.over is not None
        await visitor.over


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=("whole", "streamed"))
    asked = parser.parse_args()
    for name, stream in (("whole", False), ("streamed", True)):
        if asked.only in (None, name):
            profile = cProfile.Profile() if asked.profile else None
            found = uvloop.run(measure(stream, profile, asked.rounds))
            print(f"{min(found):7.1f} us least, {statistics.median(found):7.1f} us median: an answer {name}"
                  f"{f', {EVENTS} events' if stream else ''}")  # fmt: skip
            if profile is not None:
                pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(45)
    return 0


if __name__ == "__main__":
    sys.exit(main())
