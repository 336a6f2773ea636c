"""What starts, stops, re-shards, sleep and wakes cost, as they are recorded: emulated engines on the fake NVML chain.

    .venv/bin/python -m bench.transition_costs --rounds 3

One node agent on 16 emulated H100, and a gateway's own fleet, prober, clocks and record, with the controller's actions
given by hand: an instance of TP2 is re-sharded to TP4, TP8 and back, make before break, then with the old one drained
first; and one is put to sleep and woken. The joules are the agent's counters (modelled: the GPUs are emulated); an
emulated engine loads no weights, so its start is Python's. Writes the record, and prints it as `joulegate transitions`
does."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from bench.agent_rig import Agent
from commands.transitions import table
from core.clock import SystemClock
from core.instances import Action, Park, Shape, Start, State, Stop, Wake
from core.service import Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from pools.admission import Admission
from pools.agent_client import AgentClient, AgentClocks
from pools.cluster import LiveCluster
from pools.fleet import Fleet, FleetLimits
from pools.gpu_book import GpuBook, islands_of
from pools.knobs import EngineKnobs
from pools.launcher import ProcessLauncher
from pools.transitions import Transitions
from profiles.engine_model import load_engine_model

PATIENCE_S = 240.0
TPS = (2, 4, 8, 4)
MODEL = "llama-3.1-70b"
Told = Callable[[str, dict[str, object]], None]


def service(folder: Path) -> ServiceSpec:
    pool = PoolSpec("all", ("S", "M", "L"), 1, TPS[0], 1980, InstanceLimits(64))
    launcher = LauncherSpec("emulated", start_timeout_s=PATIENCE_S, log_dir=str(folder))
    return ServiceSpec("m", "m", 8192, Slo(), Edges(), (pool,), launcher, profile=MODEL)


class World:
    def __init__(self, folder: Path, agent: Agent, out: Path) -> None:
        self.clock = SystemClock()
        spec, model, numbers = service(folder), load_engine_model(MODEL), count(1)
        uuids = [gpu.uuid for gpu in agent.state.gpus()]
        self.agent_clocks = AgentClocks(AgentClient(agent.address), self.clock, "bench", uuids)
        self.http = httpx.AsyncClient(trust_env=False, timeout=30)
        self.transitions = Transitions(self.clock, out)
        launcher = ProcessLauncher(
            spec, os.environ, GpuBook(islands_of(uuids, 8)), emulated_gpus=lambda: str(agent.state.path)
        )
        self.fleet = Fleet(
            spec, launcher, Admission(spec, self.clock, max_queue=10, max_wait_s=1.0), model, self.clock,
            FleetLimits(probe_fall=5), lambda *_: None, lambda pool: f"{pool}-{next(numbers)}",
            EngineKnobs(self.http, self.agent_clocks), self.transitions,
        )  # fmt: skip
        self.cluster = LiveCluster([self.fleet], self.clock, probe_interval_s=0.5, probe_timeout_s=10)

    async def watch(self) -> None:
        while True:
            await self.cluster.observe()
            await self.clock.sleep(0.1)

    async def do(self, action: Action, *wanted: tuple[int, State]) -> None:
        """Until there are these instances, by TP and state, and no others."""
        await self.cluster.apply(action)
        async with asyncio.timeout(PATIENCE_S):
            while sorted(self.there()) != sorted(wanted):
                await self.clock.sleep(0.05)
        await self.cluster.sleepers.settled()
        await self.transitions.settled()
        print(f"{type(action).__name__}: {wanted}", file=sys.stderr)

    def there(self) -> list[tuple[int, State]]:
        return [(member.instance.tp, member.instance.state) for member in self.fleet.members.values()]

    def oldest(self) -> str:
        return next(iter(self.fleet.members))

    async def end(self) -> None:
        await self.cluster.close(10.0)
        await self.agent_clocks.close()
        await self.http.aclose()


def start(tp: int) -> Start:
    return Start("m", "all", "bench", Shape(tp=tp))


async def story(world: World, rounds: int) -> None:
    ready = State.READY
    await world.do(start(TPS[0]), (TPS[0], ready))
    tp = TPS[0]
    for number in range(1, rounds * len(TPS) + 1):  # make before break
        old, tp = tp, TPS[number % len(TPS)]
        await world.do(start(tp), (old, ready), (tp, ready))
        await world.do(Stop(world.oldest(), "bench"), (tp, ready))
    for _ in range(rounds):
        await world.do(Park(world.oldest(), "bench"), (tp, State.PARKED))
        await world.do(Wake(world.oldest(), "bench"), (tp, ready))
    for number in range(1, rounds * len(TPS) + 1):  # no GPUs for both
        await world.do(Stop(world.oldest(), "bench"))
        tp = TPS[number % len(TPS)]
        await world.do(start(tp), (tp, ready))


async def measure(folder: Path, rounds: int, out: Path) -> str:
    agent = Agent(folder, gpus=16)
    try:
        world = World(folder, agent, out)
        runs = (world.watch, world.cluster.probe_forever, world.agent_clocks.run, world.transitions.run)
        tasks = [asyncio.create_task(run()) for run in (*runs, world.cluster.clocks.run)]
        try:
            await world.agent_clocks.leased.wait()
            await story(world, rounds)
        finally:
            for task in tasks:
                task.cancel()
            await world.end()
        return table(world.transitions.costs())
    finally:
        agent.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("build/transition-costs.json"))
    asked = parser.parse_args()
    asked.out.unlink(missing_ok=True)
    with TemporaryDirectory(prefix="jg-") as name:
        print(asyncio.run(measure(Path(name), asked.rounds, asked.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
