"""What every clock knob of the live cluster promises, on the node agent (with an emulated engine on its GPUs) and on the
emulated engine's own endpoint: what was set is what the engine runs at, and a refusal is a ClockRefused."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from bench.agent_rig import UUIDS, Agent, Process, until
from core.clock import SystemClock
from pools.agent_client import AgentClient, AgentClocks
from pools.clocks import ClockRefused, Clocks, EngineClocks, GpuGroup
from pools.ports import free_ports
from tests.gpus import library

TP = 4
GPUS = tuple(UUIDS[:TP])


class Engine(Process):
    def __init__(self, folder: Path, *flags: str) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        argv = ["-m", "simulator.serve", "--port", str(port), "--profile", "llama-3.1-70b", "--tp", str(TP), *flags]
        super().__init__(argv, folder / "engine.log")
        assert until(self.answers) is not None, self.log.read_text()

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def work(self) -> dict[str, float]:
        """An answer of 20 tokens; the engine's state after it."""
        body = {"model": "llama-3.1-70b", "prompt": "some words", "max_tokens": 20, "ignore_eos": True}
        assert httpx.post(f"{self.url}/v1/completions", json=body, timeout=30).status_code == 200
        return httpx.get(f"{self.url}/emulated/state").json()


@pytest.fixture(scope="module", params=["agent", "engine"])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, Agent | None]]:
    folder = tmp_path_factory.mktemp(request.param)
    agent = None
    flags: list[str] = []
    if request.param == "agent":
        library()
        agent = Agent(folder)
        flags = ["--nvml-state", str(agent.state.path), "--gpus", ",".join(GPUS)]
    engine = Engine(folder, *flags)
    yield engine, agent
    for process in (engine, agent):
        if process is not None:
            process.end()


@asynccontextmanager
async def knob(engine: Engine, agent: Agent | None) -> AsyncIterator[Clocks]:
    if agent is None:
        async with httpx.AsyncClient() as http:
            yield EngineClocks(http, default_mhz=1980)
        return
    clocks = AgentClocks(AgentClient(agent.address), SystemClock(), "contract", GPUS)
    renewing = asyncio.create_task(clocks.run())
    await clocks.leased.wait()
    yield clocks
    renewing.cancel()
    await clocks.close()


def test_the_engine_runs_at_the_clock_that_was_set(world: tuple[Engine, Agent | None]) -> None:
    engine, agent = world
    group = GpuGroup(GPUS, engine.url)

    async def story() -> None:
        async with knob(engine, agent) as clocks:
            assert clocks.off(group) is None
            done = await clocks.set_clock(group, 990)
            assert (done.mhz, done.changed, len(done.states)) == (990, True, TP)
            assert (await clocks.set_clock(group, 990)).changed is False
            assert (await asyncio.to_thread(engine.work))["clock_mhz"] == 990
            await clocks.reset(group)
            assert (await asyncio.to_thread(engine.work))["clock_mhz"] == 1980

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_reading_is_of_the_whole_group_and_only_grows(world: tuple[Engine, Agent | None]) -> None:
    engine, agent = world
    group = GpuGroup(GPUS, engine.url)

    async def story() -> None:
        async with knob(engine, agent) as clocks:
            before = await clocks.read(group)
            await asyncio.to_thread(engine.work)
            after = await clocks.read(group)
            assert after.joules > before.joules and after.at_s > before.at_s
            assert after.watts > TP * 50  # four H100 that hold a model

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_refusal_is_typed(world: tuple[Engine, Agent | None]) -> None:
    engine, agent = world

    async def story() -> None:
        async with knob(engine, agent) as clocks:
            elsewhere = GpuGroup(("GPU-elsewhere",), "http://127.0.0.1:9")
            for call in (clocks.set_clock(elsewhere, 990), clocks.read(elsewhere)):
                with pytest.raises(ClockRefused) as refused:
                    await call
                assert refused.value.code in ("engine_unreachable", "lease_lost", "not_found")

    asyncio.run(asyncio.wait_for(story(), 60))


def test_an_engine_on_gpus_leaves_its_clock_to_the_agent(world: tuple[Engine, Agent | None]) -> None:
    engine, agent = world
    answer = httpx.post(f"{engine.url}/emulated/clock", json={"clock_mhz": 1200})
    assert answer.status_code == (200 if agent is None else 400)
