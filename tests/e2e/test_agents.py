"""The node agent in the gateway: clocks that engines really run at, an agent that dies, a gateway that is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from bench.agent_rig import Agent
from tests.e2e.process import Gateway, Tree, write_config
from tests.fakes import until
from tests.gpus import library

MHZ = 1200
LEASE_S = 1.0
POOLS = [
    {"name": name, "serves": list(sizes), "instances": 1, "tp": 2, "clock_mhz": MHZ, "slots": 64, "kv_tokens": 100_000}
    for name, sizes in (("short", "S"), ("long", "ML"))
]
BODY = {"model": "m", "prompt": "some words", "max_tokens": 20, "ignore_eos": True}


class World:
    """An agent on eight emulated GPUs, and a gateway whose engines run on four of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = Agent(folder, "--lease", str(LEASE_S))
        launcher = {"kind": "emulated", "start_timeout_s": 60, "log_dir": str(folder), "agent": "node"}
        service = {"model": "m", "profile": "llama-3.1-8b", "pools": POOLS, "launcher": launcher}
        agents = {"node": {"url": self.agent.address}}
        self.config = write_config(folder, {"m": service}, agents=agents)
        self.gateway = Gateway(self.config)

    def clocks(self) -> list[int]:
        """What is locked on the GPUs that engines run on."""
        return sorted(clock for clock in self.agent.locks() if clock)

    def readiness(self) -> Tree:
        return self.gateway.http.get(f"{self.gateway.url}/readiness").json()

    def knob(self) -> Tree:
        return self.readiness()["agents"]["node"]

    def asks(self) -> int:
        return self.gateway.http.post(f"{self.gateway.url}/v1/completions", json=BODY).status_code

    def engines(self) -> list[Tree]:
        return [httpx.get(f"{url}/emulated/state").json() for url in self.gateway.instances()]

    def shown(self) -> dict[str, tuple[int, str]]:
        return {i["id"]: (i["clock_mhz"], i["knob"]) for i in self.gateway.instances().values()}

    def set_again(self) -> bool:
        return self.clocks() == [MHZ] * 4 and {clock for clock, _ in self.shown().values()} == {MHZ}

    def end(self) -> None:
        self.gateway.kill_all()
        self.agent.end()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    library()
    with TemporaryDirectory(prefix="jg-") as folder:  # the path of a socket has to be short
        made = World(Path(folder))
        try:
            assert until(lambda: made.gateway.logged("ready"), 60), made.gateway.log()
            yield made
        finally:
            made.end()


def test_engines_run_at_the_clock_that_the_agent_has_set(world: World) -> None:
    assert until(world.set_again), (world.agent.locks(), world.shown())
    assert world.knob()["ready"] and "stand-in" in world.knob()["emulated"]
    assert world.asks() == 200
    engines = world.engines()
    assert {tuple(engine["gpus"]) for engine in engines} == {
        tuple(i["gpus"]) for i in world.gateway.instances().values()
    }
    assert len({gpu for engine in engines for gpu in engine["gpus"]}) == 4, "no GPU is shared"
    assert MHZ in {engine["clock_mhz"] for engine in engines}


def test_a_dead_agent_takes_the_knob_and_not_the_service(world: World) -> None:
    world.agent.send(signal.SIGKILL)
    world.agent.end()
    assert until(lambda: not world.knob()["ready"]), world.knob()
    assert world.knob()["why"] == "agent_unreachable"
    assert world.readiness()["ready"] and world.asks() == 200
    assert until(lambda: set(world.shown().values()) == {(1980, "agent_unreachable")}), world.shown()
    assert until(lambda: world.agent.at_default()), "its watchdog has undone the clocks"
    world.agent = Agent(world.folder, "--lease", str(LEASE_S))
    assert until(world.set_again), "the agent is back: what was wanted is set again"
    assert world.knob()["ready"] and world.asks() == 200


def test_a_refusal_shows_and_goes(world: World) -> None:
    gpu = next(iter(world.gateway.instances().values()))["gpus"][0]
    world.agent.state.put([gpu], read_error=15)
    assert until(lambda: world.knob()["off"] == {gpu: "gpu_lost"}), world.knob()
    assert world.asks() == 200
    world.agent.state.put([gpu], read_error=0)
    assert until(world.set_again), world.shown()


def test_what_a_start_and_a_stop_cost_is_counted_and_shown(world: World) -> None:
    def costs() -> dict[tuple[str, int], Tree]:
        shown = world.gateway.http.get(f"{world.gateway.url}/admin/transitions").json()
        return {(one["kind"], one["tp"]): one for one in shown}

    pool = f"{world.gateway.url}/admin/services/m/pools/short"
    for instances in (2, 1):
        assert world.gateway.http.patch(pool, json={"instances": instances}).status_code == 200
        assert until(
            lambda count=instances: len(world.gateway.instances()) == 1 + count and world.gateway.all_ready(), 30
        )
    assert until(lambda: ("stop", 2) in costs())
    start = costs()["start", 2]
    assert start["count"] == 3 and start["quality"] == "modelled", "emulated GPUs count what a model says"
    assert 20 < start["joules"] / start["seconds"] / 2 < 800, "watts of an H100"
    assert costs()["stop", 2]["joules"] > 0


def test_a_killed_gateway_leaves_instances_that_the_next_one_takes_over(world: World) -> None:
    before, children = world.shown(), sorted(world.gateway.children())
    os.kill(children[0], 0)
    world.gateway.kill()
    assert until(lambda: world.agent.at_default(), 5), "nobody renews the lease"
    world.gateway = Gateway(world.config)
    world.gateway.wait_ready()
    assert until(world.set_again), (world.agent.locks(), world.shown())
    assert world.shown().keys() == before.keys()
    for pid in children:
        os.kill(pid, 0)
    assert world.gateway.children() == [], "none was started twice"
    assert world.asks() == 200
    shown = world.gateway.http.get(f"{world.gateway.url}/admin/transitions").json()
    assert {one["kind"]: one["count"] for one in shown} == {"start": 3, "stop": 1}, "kept over the restart"
    world.gateway.stop()
    assert until(lambda: not any(Path(f"/proc/{pid}/stat").exists() and alive(pid) for pid in children))
    assert world.agent.at_default(), "a lease that is given back undoes"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
