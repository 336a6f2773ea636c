#!/usr/bin/env python3
"""The controller on and off over the same minutes of a trace, live: joules, errors, what moved.

One `--speed` scales the trace, the engines, their start-ups, every period of the controller and the promises together:
the gateway's and the client's clocks run that many times as fast, and so do the emulated engines. What guards the host
(connect, first byte, loop lag, probes) stays in real seconds. Joules are the engines' counters as the ledger adds them
up, modelled. `off` keeps the configured pools at their clock; `on` plans for the fewest joules on as many GPUs. Beside
each run stands what the simulator foretells of it: where only the live run misses, the machine was too busy."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop
import yaml

from bench.live_foretold import foretold
from bench.machine import idle_s
from bench.replay import replay, summary, table, wait_ready
from core.clock import SystemClock
from simulator.trace import Arrival, read_azure, window
from simulator.trace_scale import thinned

POOLS = (("short", "S", 4), ("medium", "M", 4), ("long", "L", 8))
CLOCK_MHZ = 1980
TBT_ROOM = 0.9  # a host that is a millisecond late is late by --speed of them
RUNS = {"off": "configured", "on": "energy"}
LOOK_S = 5.0  # of the gateway's clock, between two looks at what there is
HOST = {"connect_timeout_s": 2.0, "first_byte_timeout_s": 300.0, "stall_timeout_s": 60.0, "max_loop_lag_s": 5.0,
        "body_timeout_s": 30.0, "header_timeout_s": 10.0}  # fmt: skip


@dataclass(slots=True)
class Watched:
    """What was there at each look: instances by pool and TP, and the clocks of those that served."""

    plans: dict[str, int] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def look(self, state: dict[str, Any]) -> None:
        serving = [i for s in state["services"] for i in s["instances"] if i["state"] in ("ready", "draining")]
        shape = sorted(f"{i['pool']} TP{i['tp']}" for i in serving)
        key = ", ".join(f"{shape.count(one)} x {one}" for one in dict.fromkeys(shape))
        self.plans[key] = self.plans.get(key, 0) + 1
        for instance in serving:
            self.clocks[instance["clock_mhz"]] = self.clocks.get(instance["clock_mhz"], 0) + 1
            self.seen.add(instance["id"])


def configuration(options: argparse.Namespace, folder: Path, plan: str) -> dict[str, Any]:
    pools = [
        {"name": name, "serves": [size], "instances": 1, "tp": tp, "clock_mhz": CLOCK_MHZ, "slots": 128}
        for name, size, tp in POOLS
    ]
    launcher = {
        "kind": "emulated", "log_dir": str(folder), "start_delay_s": options.start_s,
        "start_timeout_s": 3 * options.start_s + 60 * options.speed,
    }  # fmt: skip
    service = {
        "model": options.model,
        "profile": options.model,
        "pools": pools,
        "launcher": launcher,
        "context_tokens": 16_384,
    }
    kept = {"checkpoint": None, "transitions": None}
    return {
        "listen": {"port": options.port},
        "limits": {name: seconds * options.speed for name, seconds in HOST.items()},
        "health": {"interval_s": 2.0 * options.speed, "timeout_s": 5.0},
        "controller": {"plan": plan, "gpus": sum(tp for *_, tp in POOLS), "tbt_room": TBT_ROOM, **kept},
        "run_log": {"path": str(folder / "run.jsonl")},
        "energy": {"path": str(folder / "energy.sqlite"), "interval_s": options.speed},
        "services": {options.model: service},
    }


async def watch(url: str, clock: SystemClock, watched: Watched) -> None:
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        while True:
            watched.look((await client.get(f"{url}/admin/state")).json())
            await clock.sleep(LOOK_S)


async def one_run(options: argparse.Namespace, arrivals: list[Arrival], plan: str, folder: Path) -> dict[str, Any]:
    config = folder / "gateway.yaml"
    config.write_text(yaml.safe_dump(configuration(options, folder, plan)))
    argv = [sys.executable, "joulegate.py", "serve", str(config), "--speed", str(options.speed)]
    with (folder / "gateway.log").open("wb") as log:
        child = subprocess.Popen(argv, stderr=log, stdout=log)
    url, clock, watched = f"http://127.0.0.1:{options.port}", SystemClock(options.speed), Watched()
    watching: asyncio.Task[None] | None = None
    try:
        await wait_ready(url, options.start_s + 120)
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            watching = asyncio.create_task(watch(url, clock, watched))
            begun_s, idle_before_s, real_s = clock.now_s(), idle_of_all_s(), time.monotonic()
            results = await replay(url, options.model, arrivals, clock)
            busy = 1 - (idle_of_all_s() - idle_before_s) / (time.monotonic() - real_s) / (os.cpu_count() or 1)
            await clock.sleep(5 * options.speed)  # the last joules are read
            spent = (await client.get(f"{url}/admin/energy", params={"window_s": clock.now_s() - begun_s})).json()
    finally:
        if watching is not None:
            watching.cancel()
        child.send_signal(signal.SIGTERM)
        child.wait(120)
    rows = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    report = {
        "joules": spent["meter_j"] + spent["filled_j"], "meter_j": spent["meter_j"], "lines": spent["lines"],
        "good_tokens": spent["good_tokens"], "j_per_good_token": spent["j_per_good_token"],
        **summary(results), **moved(rows), "looks": watched.plans, "clocks": watched.clocks,
        "instances": len(watched.seen), "machine_busy": busy,
        "foretold": foretold(config, arrivals, options.start_s),
    }  # fmt: skip
    print(f"--- {plan}\n{table(report)}", file=sys.stderr)
    return report


def idle_of_all_s() -> float:
    return sum(idle_s(core) for core in range(os.cpu_count() or 1))


def moved(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Starts, drains and clock writes that the controller decided, and attainment as the gateway judged it."""
    acts = [act["action"] for row in rows if row["kind"] == "tick" for act in row.get("actions", ())]
    judged = [row["attained"] for row in rows if row["kind"] == "request" and "attained" in row]
    return {
        "starts": acts.count("start"), "stops": acts.count("stop"), "clock_writes": acts.count("setclock"),
        "attainment": sum(judged) / max(1, len(judged)),
        "plans": sum(row.get("note") == "plan" for row in rows if row["kind"] == "controller"),
    }  # fmt: skip


def lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"{'':4} {'joules':>12} {'J/good tok':>10} requests errors attained starts clocks   busy | foretold: MJ kept"
    for name in (name for name in RUNS if name in report):
        one = report[name]
        per_token = one["j_per_good_token"] or float("nan")
        yield (
            f"{name:4} {one['joules']:12.0f} {per_token:10.3f} {one['requests']:8} {one['errors']:6} "
            f"{one['attainment']:8.4f} {one['starts']:6} {one['clock_writes']:6} {one['machine_busy']:6.2f} | "
            f"{one['foretold']['joules'] / 1e6:12.2f} {one['foretold']['attainment']:8.4f}"
        )
    if "ratio" in report:
        foretold_ratio = report["on"]["foretold"]["joules"] / report["off"]["foretold"]["joules"]
        yield f"on / off: {report['ratio']:.3f}, foretold {foretold_ratio:.3f} (modelled by the emulated engines)"


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="Azure CSV")
    parser.add_argument("--speed", type=float, default=6.0, help="seconds of the replay in a real one")
    parser.add_argument("--minutes", type=float, default=60, help="of the trace")
    parser.add_argument("--start", type=float, default=0, help="minutes into the trace")
    parser.add_argument("--share", type=float, default=1.0, help="of the requests, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="llama-3.1-70b")
    parser.add_argument("--start-s", type=float, default=90.0, help="seconds of the replay that a start takes")
    parser.add_argument("--port", type=int, default=8086)
    parser.add_argument("--only", choices=tuple(RUNS), help="one of the two runs")
    parser.add_argument("--out", type=Path, default=Path("build/live.json"))
    options = parser.parse_args()
    arrivals = list(
        thinned(
            window(read_azure(options.trace), options.start * 60, options.minutes * 60), options.share, options.seed
        )
    )
    report: dict[str, Any] = {"options": {name: str(value) for name, value in vars(options).items()}}
    for name, plan in RUNS.items():
        if options.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="live-") as folder:
            report[name] = await one_run(options, arrivals, plan, Path(folder))
    if options.only is None:
        report["ratio"] = report["on"]["joules"] / report["off"]["joules"]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1))
    print("\n".join(lines(report)))
    return 1 if any(report[name]["errors"] for name in RUNS if name in report) else 0


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
