"""A process that holds a lease on GPUs and keeps a clock set, as a gateway does: what the kill matrix kills.

    python -m bench.clock_holder ADDRESS HOLDER LEASE_S MHZ UUID[,UUID...]

Prints `set MHZ` each time that the clock has been set and confirmed, anew after every loss of the lease."""

import asyncio
import contextlib
import sys

from core.clock import SystemClock
from pools.agent_client import AgentClient, AgentClocks
from pools.clocks import ClockRefused, GpuGroup


async def hold(address: str, holder: str, lease_s: float, mhz: int, group: GpuGroup) -> None:
    clock = SystemClock()
    clocks = AgentClocks(AgentClient(address), clock, holder, group.uuids, lease_s)
    renewing = asyncio.create_task(clocks.run())
    epoch: int | None = None
    while not renewing.done():
        await clocks.leased.wait()
        if clocks.epoch != epoch:
            with contextlib.suppress(ClockRefused):
                done = await clocks.set_clock(group, mhz)
                epoch = clocks.epoch
                print(f"set {done.mhz}", flush=True)
        await clock.sleep(0.02)


if __name__ == "__main__":
    where, who, seconds, clock_mhz, names = sys.argv[1:]
    asyncio.run(hold(where, who, float(seconds), int(clock_mhz), GpuGroup(tuple(names.split(",")))))
