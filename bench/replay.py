#!/usr/bin/env python3
"""Replays a window of a trace live through a gateway on loopback: real arrival times, real lengths, streaming chat.

Starts its own gateway on the emulated pools unless --url names one. The emulated engine ends each answer after the
trace's number of tokens (its body field `emulated_output_tokens`, which the gateway does not know), so that the
predictor has no more knowledge than it would have live. TTFT and TBT are the client's own clock readings."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from core.clock import SystemClock
from core.errors import JoulegateError
from core.service import Edges
from pools.connection import Wires
from simulator.tokens import Tokenizer
from simulator.trace import Arrival, read_azure, window

CLOCK = SystemClock()
EDGES = Edges()
TOKENIZER = Tokenizer()


@dataclass(slots=True)
class Result:
    """One request as its client saw it."""

    size_class: str
    pool: str = ""
    predicted: str = ""
    ttft_s: float = math.nan
    gaps_s: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str = ""


def nearest_rank(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan


async def ask(wires: Wires, model: str, arrival: Arrival, number: int, clock: SystemClock) -> Result:
    result = Result(EDGES.input_size(arrival.input_tokens) + EDGES.output_size(arrival.output_tokens))
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": TOKENIZER.filler(max(1, arrival.input_tokens - 5), number)}],
        "stream_options": {"include_usage": True},
        "emulated_output_tokens": arrival.output_tokens,
    }
    sent_s = last_s = clock.now_s()
    # A stream that went on elsewhere would get the trace's number of tokens once more from there.
    headers = [(b"content-type", b"application/json"), (b"x-joulegate-migrate", b"off")]
    try:
        async with await wires.send(b"POST", b"/v1/chat/completions", headers, json.dumps(body).encode()) as exchange:
            head = await exchange.head(120)
            result.pool = (head.get(b"x-joulegate-pool") or b"").decode()
            result.predicted = (head.get(b"x-joulegate-class") or b"").decode()
            text = b""
            while chunk := await exchange.chunk(120):
                now_s = clock.now_s()
                tokens = chunk.count(b'"content":"') - chunk.count(b'"content":""')
                if tokens > 0:
                    if math.isnan(result.ttft_s):
                        result.ttft_s = now_s - sent_s
                    else:
                        result.gaps_s += [(now_s - last_s) / tokens] * tokens
                    last_s = now_s
                text = (text + chunk)[-4096:]
            if head.status != 200 or not text.endswith(b"data: [DONE]\n\n"):
                result.error = f"status {head.status}: {text[-200:].decode(errors='replace')}"
            else:
                result.tokens = json.loads(text.split(b'"usage":')[-1].split(b"}")[0] + b"}")["completion_tokens"]
                if result.tokens != arrival.output_tokens:
                    result.error = f"{result.tokens} tokens instead of {arrival.output_tokens}"
    except (JoulegateError, OSError, ValueError) as error:
        result.error = f"{type(error).__name__}: {error}"
    return result


async def replay(url: str, model: str, arrivals: list[Arrival], clock: SystemClock = CLOCK) -> list[Result]:
    parts = urlsplit(url)
    wires = Wires(parts.hostname or "127.0.0.1", parts.port or 80, 5.0)
    started_s = clock.now_s()
    tasks = []
    for number, arrival in enumerate(arrivals):
        await clock.sleep_until(started_s + arrival.at_s)
        tasks.append(asyncio.create_task(ask(wires, model, arrival, number, clock)))
        if number % 200 == 199:
            print(f"{number + 1} of {len(arrivals)} sent", file=sys.stderr)
    results = await asyncio.gather(*tasks)
    wires.close()
    return list(results)


def summary(results: list[Result]) -> dict[str, object]:
    by_class: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_class[result.size_class].append(result)
    return {
        "requests": len(results),
        "errors": sum(1 for r in results if r.error),
        "first_errors": [r.error for r in results if r.error][:5],
        "output_tokens": sum(r.tokens for r in results),
        "pools": dict(Counter(r.pool for r in results)),
        "output_size_right": sum(r.predicted[1:] == r.size_class[1:] for r in results) / max(1, len(results)),
        "classes": {name: times(by_class[name]) for name in sorted(by_class)},
        "all": times(results),
    }


def times(results: list[Result]) -> dict[str, float | int]:
    ttft = [r.ttft_s for r in results if not r.error and not math.isnan(r.ttft_s)]
    gaps = [gap for r in results if not r.error for gap in r.gaps_s]
    return {
        "requests": len(results),
        "ttft_p50_s": round(nearest_rank(ttft, 0.5), 4),
        "ttft_p99_s": round(nearest_rank(ttft, 0.99), 4),
        "tbt_p50_s": round(nearest_rank(gaps, 0.5), 4),
        "tbt_p99_s": round(nearest_rank(gaps, 0.99), 4),
    }


def table(report: dict[str, object]) -> str:
    classes = report["classes"]
    assert isinstance(classes, dict)
    lines = ["class  requests  TTFT p50  TTFT p99  TBT p50  TBT p99 (ms)"]
    for name, row in [*classes.items(), ("all", report["all"])]:
        ms = [1000 * row[k] for k in ("ttft_p50_s", "ttft_p99_s", "tbt_p50_s", "tbt_p99_s")]
        lines.append(f"{name:5}  {row['requests']:8}  {ms[0]:8.0f}  {ms[1]:8.0f}  {ms[2]:7.1f}  {ms[3]:7.1f}")
    return "\n".join(lines)


async def wait_ready(url: str, timeout_s: float) -> None:
    deadline_s = CLOCK.now_s() + timeout_s
    while CLOCK.now_s() < deadline_s:
        try:
            with urllib.request.urlopen(f"{url}/readiness", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            await CLOCK.sleep(0.2)
    raise SystemExit(f"{url} did not become ready within {timeout_s:g} s")


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="Azure CSV")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--start", type=float, default=0, help="minutes into the trace")
    parser.add_argument("--url", help="a gateway that already runs; default: start one")
    parser.add_argument("--config", default="configs/dev.yaml")
    parser.add_argument("--model", default="llama-3.1-70b")
    parser.add_argument("--port", type=int, default=8085)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    arrivals = window(read_azure(options.trace), options.start * 60, options.minutes * 60)
    child = None
    url = options.url or f"http://127.0.0.1:{options.port}"
    if not options.url:
        command = [sys.executable, "joulegate.py", "serve", options.config, "--port", str(options.port)]
        child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        await wait_ready(url, 60)
        cpu_before = os.times()
        results = await replay(url, options.model, arrivals)
        cpu = os.times()
    finally:
        if child is not None:
            child.send_signal(signal.SIGTERM)
            child.wait(60)
    report = summary(results) | {"client_cpu_s": round(cpu.user + cpu.system - cpu_before.user - cpu_before.system, 2)}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1))
    print(table(report))
    print(f"errors {report['errors']} of {report['requests']}; pools {report['pools']}; "
          f"output size predicted right {report['output_size_right']:.2f}")  # fmt: skip
    return 1 if report["errors"] else 0


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
