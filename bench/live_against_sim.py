#!/usr/bin/env python3
"""The same minutes of a trace live through the gateway and in the simulator: TTFT, TBT and end to end side by side.

    python -m bench.live_against_sim CONFIG --trace FILE --minutes 5 --share 0.5 --lengths 0.25

Starts a gateway with CONFIG (one service with one pool of one instance; a real vLLM server that runs already, or the
emulated engine), replays the trace as streams of `completions` with random token ids and forced lengths, and simulates
the same arrivals with the service's engine model, router, queue and predictor. --share thins, --lengths shortens
every prompt and answer: a small server does not hold what eight GPUs do. A chunk of k tokens after a gap g is k gaps
of g/k in both worlds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from bench.machine import cpu_s
from bench.replay import nearest_rank, wait_ready
from core.clock import SystemClock
from core.errors import JoulegateError
from core.service import ServiceSpec
from gateway.config import to_services
from gateway.config_file import load_config
from pools.connection import Wires
from profiles.engine_model import load_engine_model
from simulator.case import make_case
from simulator.run import Ran
from simulator.trace import Arrival, read_azure, window

CLOCK = SystemClock()
SHARES = (0.5, 0.9, 0.99)
QUANTITIES = ("ttft", "tbt", "e2e")


@dataclass(slots=True)
class Heard:
    """Of all streams together, seconds by the client's clock."""

    ttft: list[float] = field(default_factory=list)
    tbt: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def arrivals_of(options: argparse.Namespace, context: int) -> list[Arrival]:
    draw = random.Random(options.seed)
    taken = []
    for one in window(read_azure(options.trace), options.start * 60, options.minutes * 60):
        kept = draw.random() < options.share
        prompt, answer = (max(1, round(n * options.lengths)) for n in (one.input_tokens, one.output_tokens))
        if kept and prompt + answer <= context:
            taken.append(Arrival(one.at_s, prompt, answer))
    return taken


async def ask(wires: Wires, model: str, arrival: Arrival, number: int, heard: Heard) -> None:
    draw = random.Random(number)
    body = {
        "model": model, "stream": True, "prompt": [draw.randrange(10, 2000) for _ in range(arrival.input_tokens)],
        "max_tokens": arrival.output_tokens, "ignore_eos": True, "return_token_ids": True, "temperature": 0,
    }  # fmt: skip
    payload, headers = json.dumps(body).encode(), [(b"content-type", b"application/json")]
    sent_s = last_s = CLOCK.now_s()
    tokens, rest = 0, b""
    try:
        async with await wires.send(b"POST", b"/v1/completions", headers, payload) as exchange:
            head = await exchange.head(120)
            while chunk := await exchange.chunk(120):
                now_s = CLOCK.now_s()
                rest += chunk
                *events, rest = rest.split(b"\n\n")
                came = sum(map(ids_in, events))
                if came and not tokens:
                    heard.ttft.append(now_s - sent_s)
                    came, tokens, last_s = came - 1, 1, now_s
                if came:
                    heard.tbt += [(now_s - last_s) / came] * came
                    tokens, last_s = tokens + came, now_s
        if head.status != 200 or tokens != arrival.output_tokens:
            raise ValueError(f"status {head.status}, {tokens} tokens of {arrival.output_tokens}")
        heard.e2e.append(last_s - sent_s)
    except (JoulegateError, OSError, ValueError) as error:
        heard.errors.append(f"{type(error).__name__}: {error}")


def ids_in(event: bytes) -> int:
    if not event.startswith(b"data: {"):
        return 0
    return sum(len(choice.get("token_ids") or ()) for choice in json.loads(event[6:])["choices"])


async def live(url: str, model: str, arrivals: Iterable[Arrival]) -> Heard:
    parts, heard, tasks = urlsplit(url), Heard(), []
    wires = Wires(parts.hostname or "127.0.0.1", parts.port or 80, 5.0)
    for number in range(3):  # the first requests of a process pay for what is loaded late
        await ask(wires, model, Arrival(0.0, 64, 16), 10**6 + number, Heard())
    started_s = CLOCK.now_s()
    for number, arrival in enumerate(arrivals):
        await CLOCK.sleep_until(started_s + arrival.at_s)
        tasks.append(asyncio.create_task(ask(wires, model, arrival, number, heard)))
    await asyncio.gather(*tasks)
    wires.close()
    return heard


def simulated(spec: ServiceSpec, arrivals: list[Arrival]) -> Ran:
    def opened() -> Iterator[Arrival]:
        return iter(arrivals)

    case = make_case(spec, load_engine_model(spec.profile), opened, predictor="live")
    return case.run(case.setup(spec.pools, sum(pool.instances * pool.tp for pool in spec.pools)))


def compared(heard: Heard, ran: Ran) -> dict[str, dict[str, float]]:
    ours = {"ttft": ran.tally.ttft(), "tbt": ran.tally.gaps.pooled(), "e2e": ran.tally.whole}
    rows = {}
    for name in QUANTITIES:
        for share in SHARES:
            seen, told = nearest_rank(getattr(heard, name), share), ours[name].quantile(share) or math.nan
            rows[f"{name}_p{share * 100:.0f}_s"] = {"live": seen, "simulated": told, "ratio": told / seen}
    return rows


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--trace", type=Path, required=True, help="Azure CSV")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--start", type=float, default=0, help="minutes into the trace")
    parser.add_argument("--share", type=float, default=1.0, help="of the requests")
    parser.add_argument("--lengths", type=float, default=1.0, help="of prompts and answers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=8086)
    parser.add_argument("--pids", default="", help="processes of the server: their CPU seconds are its load")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    (spec,) = to_services(load_config(options.config, dict(os.environ)))
    arrivals = arrivals_of(options, spec.context_tokens)
    pids = [int(pid) for pid in options.pids.split(",") if pid]
    url = f"http://127.0.0.1:{options.port}"
    command = [sys.executable, "joulegate.py", "serve", str(options.config), "--port", str(options.port)]
    gateway = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        await wait_ready(url, 120)
        before_s, began_s = cpu_s(pids), CLOCK.now_s()
        heard = await live(url, spec.name, arrivals)
        load = (cpu_s(pids) - before_s) / (CLOCK.now_s() - began_s)
    finally:
        gateway.send_signal(signal.SIGTERM)
        gateway.wait(60)
    ran = simulated(spec, arrivals)
    rows = compared(heard, ran)
    report = {
        "requests": len(arrivals), "errors": len(heard.errors), "first_errors": heard.errors[:3],
        "server_cores": round(load, 3) if pids else None, "rows": rows,
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(report, indent=1))
    print(f"{len(arrivals)} requests, {len(heard.errors)} errors, server {load:.2f} cores; ms, simulated / live")
    for name, row in rows.items():
        print(f"{name:12} live {1e3 * row['live']:9.2f}  simulated {1e3 * row['simulated']:9.2f}  {row['ratio']:.3f}")
    return 1 if heard.errors else 0


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
