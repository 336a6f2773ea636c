"""What the agent adds to a change of clock: NVML's own calls in this process, then the same through the agent's API.

    .venv/bin/python -m bench.agent_latency --changes 500

A change is TP1 or TP8, set and confirmed, alternately 990 and 1200 MHz, under load. The stand-in's driver takes no
time, or 4.5 ms a call as on an A800. What is printed is the difference of the percentiles, and the agent's
CPU time for a change, which a busy machine does not stretch; no timing is tested."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from bench.agent_rig import ROOT, UUIDS, Agent
from core.clock import SystemClock
from pools.agent_client import AgentClient, AgentClocks
from pools.clocks import GpuGroup
from pools.nvml import NvmlGpu
from simulator.gpu_library import NAME, build

CLOCKS_MHZ = (990, 1200)


def direct(gpu: NvmlGpu, uuids: Sequence[str], changes: int) -> list[float]:
    """Seconds of setting and reading back each GPU of the group."""
    seconds = []
    for number in range(changes):
        start_s = time.perf_counter()
        for uuid in uuids:
            gpu.lock_clock(uuid, 345, CLOCKS_MHZ[number % 2])
        for uuid in uuids:
            gpu.clock_mhz(uuid)
        seconds.append(time.perf_counter() - start_s)
    return seconds


async def through(agent: Agent, uuids: Sequence[str], changes: int) -> list[float]:
    clocks = AgentClocks(AgentClient(agent.address), SystemClock(), "bench", UUIDS)
    renewing = asyncio.create_task(clocks.run())
    await clocks.leased.wait()
    seconds = []
    for number in range(changes):
        start_s = time.perf_counter()
        await clocks.set_clock(GpuGroup(tuple(uuids)), CLOCKS_MHZ[number % 2])
        seconds.append(time.perf_counter() - start_s)
    renewing.cancel()
    await clocks.close()
    return seconds


def cpu_s(agent: Agent) -> float:
    times = psutil.Process(agent.child.pid).cpu_times()
    return times.user + times.system


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"p{share}": 1e3 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 99)}


def measure(changes: int) -> list[dict[str, object]]:
    ctypes.CDLL(str(build(ROOT / "build") / NAME))
    rows: list[dict[str, object]] = []
    with TemporaryDirectory(prefix="joulegate-latency-") as folder:
        agent = Agent(Path(folder))
        os.environ["FAKE_NVML_STATE"] = str(agent.state.path)
        try:
            with NvmlGpu() as gpu:
                for call_s in (0.0, 0.0045):
                    agent.state.put(UUIDS, load=1.0, call_s=call_s)
                    for tp in (1, 8):
                        alone = percentiles_ms(direct(gpu, UUIDS[:tp], changes))
                        before_s = cpu_s(agent)
                        served = percentiles_ms(asyncio.run(through(agent, UUIDS[:tp], changes)))
                        cpu_ms = 1e3 * (cpu_s(agent) - before_s) / changes
                        added = {name: served[name] - alone[name] for name in alone}
                        times = {"nvml_ms": alone, "agent_ms": served, "added_ms": added, "agent_cpu_ms": cpu_ms}
                        rows.append({"driver_call_ms": 1e3 * call_s, "tp": tp, **times})
        finally:
            agent.end()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=500)
    asked = parser.parse_args()
    for row in measure(asked.changes):
        print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
