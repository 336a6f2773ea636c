"""One segment: the load client against one gateway while its CPU time is read before and after. Three steps, whose
shapes do not change with their length: 64 paced streams, 16 clients with small answers, 16 streams without pauses."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.counters import Counter
from bench.gateways import Gateway
from bench.machine import Span, between, read
from bench.processes import Running, pinned

STREAMS, EVENTS, INTERVAL_MS, CLIENTS = 64, 128, 20, 16
STREAM_S = EVENTS * INTERVAL_MS / 1000
SETTLE_S = 0.22  # work put off by the gateway, such as its log, still belongs to the segment
LIMIT_S = 30.0
FAULTS = ("errors", "unfinished", "no_end", "cut_short", "disorder")
PACED, REQUESTS, FLOOD = "paced", "requests", "flood"
STEPS = (PACED, REQUESTS, FLOOD)


def load_args(step: str, seconds: float) -> list[str]:
    """`seconds` is the length of the paced step; the other two need less for as many events."""
    if step == PACED:
        again = max(1, math.ceil(seconds / STREAM_S - 0.01))
        prompt = f"bench:n={EVENTS},i={INTERVAL_MS}"
        return ["-c", str(STREAMS), "-S", "-k", str(again), "-r", "640", "-b", prompt]
    short = str(round(seconds * 0.4, 2))
    if step == REQUESTS:
        return ["-c", str(CLIENTS), "-t", short, "-b", "bench:s=1024"]
    return ["-c", str(CLIENTS), "-S", "-t", short, "-b", f"bench:n={EVENTS},i=0"]


def faults(answer: Mapping[str, Any], exact: bool) -> dict[str, int]:
    """What is wrong with the answers of a segment; empty = nothing. No answer at all is a fault too."""
    names = (*FAULTS, "altered") if exact else FAULTS
    found = {name: int(answer[name]) for name in names if answer.get(name)}
    return found if answer.get("ok") else {**found, "nothing answered": 1}


@dataclass(slots=True)
class Segment:
    """`values` are the figures of the step; `noisy` = others used the gateway's core too much."""

    gateway: str
    step: str
    round: int
    values: dict[str, float]
    span: Span
    faults: dict[str, int]
    first_error: str
    noisy: bool
    ttft_us: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        return {
            "gateway": self.gateway,
            "step": self.step,
            "round": self.round,
            **{name: round(value, 6) for name, value in self.values.items()},
            "foreign": round(self.span.foreign, 4),
            "waited_s": round(self.span.waited, 4),
            "noisy": self.noisy,
            "faults": self.faults,
        }


def figures(step: str, answer: Mapping[str, Any], cpu: float, instructions: float | None) -> dict[str, float]:
    """The figures of a segment, as far as there is something to divide by."""
    events, answers = int(answer.get("events", 0)), int(answer.get("ok", 0))
    values: dict[str, float] = {}
    if step == REQUESTS and answers:
        values["cpu_s_per_1000"] = cpu / answers * 1000
        values["requests_per_s"] = answers / float(answer["elapsed_s"])
        if instructions:
            values["instructions_per_request"] = instructions / answers
    if step == PACED and events:
        values["cpu_us_per_chunk"] = cpu / events * 1e6
        values["ttft_p50_ms"] = answer["ttft_us"]["p50"] / 1000
        values["lag_p99_ms"] = answer["lag_us"]["p99"] / 1000
        if instructions:
            values["instructions_per_chunk"] = instructions / events
    if step == FLOOD and events and cpu > 0:
        values["chunks_per_cpu_s"] = events / cpu
        values["chunks_per_s"] = events / float(answer["elapsed_s"])
    return values


@dataclass(frozen=True, slots=True)
class Bench:
    """What every segment of a run shares."""

    load: Path
    gateway_core: int
    load_core: int
    seconds: float
    max_foreign: float
    count_instructions: bool

    def ask(self, port: int, headers: Sequence[str], args: Sequence[str]) -> dict[str, Any]:
        command = [str(self.load), "-u", f"127.0.0.1:{port}", "-L", str(LIMIT_S), *args]
        for header in headers:
            command += ["-H", header]
        try:
            done = subprocess.run(
                pinned(self.load_core, command), capture_output=True, text=True, timeout=LIMIT_S + 10, check=False
            )
            return dict(json.loads(done.stdout))
        except (ValueError, subprocess.TimeoutExpired) as error:
            return {"ok": 0, "first_error": f"the load client failed: {error}"}

    def direct(self, port: int, number: int) -> Segment:
        """The paced step without a gateway, to subtract."""
        answer = self.ask(port, (), load_args(PACED, self.seconds))
        values = figures(PACED, answer, 0.0, None)
        values.pop("cpu_us_per_chunk", None)
        span = Span(0.0, 0.0, 0.0, 0.0)
        wrong, said, times = faults(answer, True), str(answer.get("first_error", "")), answer.get("all_ttft_us", [])
        return Segment("direct", PACED, number, values, span, wrong, said, False, times)

    def segment(self, gateway: Gateway, running: Running, others: set[int], step: str, number: int) -> Segment:
        pids = running.pids()
        everyone = others | pids
        counter = Counter(pids) if self.count_instructions else None
        before = read(pids, everyone, self.gateway_core)
        answer = self.ask(gateway.port, gateway.headers, load_args(step, self.seconds))
        time.sleep(SETTLE_S)
        span = between(before, read(pids, everyone, self.gateway_core))
        instructions = counter.stop() if counter else None
        return Segment(
            gateway.name,
            step,
            number,
            figures(step, answer, span.cpu, instructions),
            span,
            faults(answer, gateway.exact),
            str(answer.get("first_error", "")),
            span.foreign > self.max_foreign,
            answer.get("all_ttft_us", []),
        )
