"""Sleep and wake of a real vLLM server, as the gateway asks for them.

On a CPU vLLM frees no memory by it; what is shown is that it takes the calls of both levels in this order, tells that it
sleeps, and answers as before."""

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from core.service import InstanceLimits, PoolSpec
from pools.breaker import Breaker
from pools.instance import Instance
from pools.knobs import EngineKnobs, KnobRefused
from tests.vllm.servers import READY_S, Server, prepare, stop_all

pytestmark = pytest.mark.timeout(90, func_only=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One of its own: nobody else is to meet it asleep."""
    prepare()
    made = Server.start("sleeper")
    try:
        made.wait_ready(time.monotonic() + READY_S)
        yield made
    finally:
        stop_all([made])


async def said(http: httpx.AsyncClient, server: Server) -> str:
    body = {"model": "tiny", "prompt": "import os", "max_tokens": 16, "temperature": 0}
    return (await http.post(f"{server.url}/v1/completions", json=body)).json()["choices"][0]["text"]


@pytest.mark.parametrize("level", [1, 2])
def test_it_sleeps_wakes_and_answers_as_before(server: Server, level: int) -> None:
    async def story() -> None:
        pool = PoolSpec("all", ("S", "M", "L"), 1, 1, 0, InstanceLimits(4))
        instance = Instance("a-1", "127.0.0.1", server.port, pool, Breaker(3, 1.0, 30.0), None, now_s=0.0)
        async with httpx.AsyncClient(timeout=60) as http:
            knobs = EngineKnobs(http, None, level, 60.0)
            before = await said(http, server)
            await knobs.wake(instance)  # awake already: nothing happens
            await knobs.sleep(instance)
            assert (await http.get(f"{server.url}/is_sleeping")).json() == {"is_sleeping": True}
            assert (await http.get(f"{server.url}/health")).status_code == 200, "health does not tell"
            await knobs.wake(instance)
            assert (await http.get(f"{server.url}/is_sleeping")).json() == {"is_sleeping": False}
            assert await said(http, server) == before

    asyncio.run(story())


def test_a_level_that_it_does_not_know_is_refused(server: Server) -> None:
    async def story() -> None:
        pool = PoolSpec("all", ("S", "M", "L"), 1, 1, 0, InstanceLimits(4))
        instance = Instance("a-1", "127.0.0.1", server.port, pool, Breaker(3, 1.0, 30.0), None, now_s=0.0)
        async with httpx.AsyncClient(timeout=60) as http:
            with pytest.raises(KnobRefused):
                await EngineKnobs(http, None, 3, 60.0).sleep(instance)

    asyncio.run(story())
