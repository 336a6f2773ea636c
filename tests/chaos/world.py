"""The stage of a chaos run: three instances, a misbehaving relay before each, the gateway. Ends all of it by ids."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

import httpx

from pools.ports import free_ports
from tests.chaos.proxy import Proxy
from tests.e2e.engines import Engine
from tests.e2e.process import LOOSE, Gateway, write_config

ENGINES = 3
ENDS_S = 60.0  # a gateway after SIGTERM; what runs has 30 s to end
LIMITS = {"stall_timeout_s": 1.0, "max_wait_s": 90.0, "connect_timeout_s": 1.0}


class Instance(Protocol):
    port: int

    def signal(self, number: int) -> None: ...

    def running(self) -> bool: ...

    def kill(self) -> None: ...

    def kill_engine(self) -> None:
        """The engine dies under its server, which tells its clients and then ends."""
        ...

    def sequences(self) -> int:
        """That it still computes."""
        ...

    def start(self) -> None: ...

    def healthy(self) -> bool: ...

    def end(self) -> None: ...


class Emulated(Engine):
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_engine(self) -> None:
        with contextlib.suppress(httpx.TransportError):
            self.http.post("/emulated/die")

    def sequences(self) -> int:
        state = self.state()
        return int(state["running"] + state["waiting"])


class HookedGateway(Gateway):
    PROGRAM = ("-m", "tests.chaos.gateway_process")


class World:
    """`gateway` is replaced when it is killed."""

    def __init__(
        self, instances: list[Instance], proxies: list[Proxy], folder: Path, context_tokens: int, whole_s: float
    ) -> None:
        self.instances = instances
        self.proxies = proxies
        self.folder = folder
        self._context_tokens = context_tokens
        self._limits = {**LIMITS, "first_byte_timeout_s": whole_s}  # an answer that is not streamed begins with its end
        self._reloads = 0
        self.numbers: dict[str, int] = {}  # of instances by the ids that gateways gave them
        (folder / "faults").mkdir()
        self.urls = [f"http://instance-{n}.chaos:{proxy.port}" for n, proxy in enumerate(proxies)]
        (self.port,) = free_ports(1)
        self.gateway = self._start_gateway()

    def _start_gateway(self) -> Gateway:
        return HookedGateway(self._configure())

    def _configure(self) -> Path:
        pool = {"name": "all", "serves": ["S", "M", "L"], "slots": 16, "urls": self.urls}
        tree: dict[str, Any] = {"model": "tiny", "slo": LOOSE, "pools": [pool], "context_tokens": self._context_tokens}
        tree["launcher"] = {"kind": "static"}
        return write_config(
            self.folder,
            {"tiny": tree},
            limits={**self._limits, "max_queue": 512 + self._reloads % 2},
            listen={"port": self.port},
            health={"interval_s": 0.2, "timeout_s": 1.0, "fall": 3},
            controller={"interval_s": 0.2},
            breaker={"failures": 5, "backoff_s": 0.2, "backoff_max_s": 1.0},
        )

    async def restart_gateway(self, *, gently: bool) -> int:
        """Killed, or ended by SIGTERM and waited for, and started again on its port. Its exit status."""
        self.gateway.http.close()
        if gently:
            self.gateway.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.gateway.process.wait, ENDS_S)
        self.gateway.kill()
        status = self.gateway.process.returncode
        self.gateway = await asyncio.to_thread(self._start_gateway)
        return int(status)

    def reload(self) -> int:
        """Another configuration, taken over by the running gateway. The status of its answer."""
        self._reloads += 1
        self._configure()
        return self.gateway.http.post(f"{self.gateway.url}/admin/reload").status_code

    def drain(self, number: int, within_s: float) -> None:
        """Returns when nothing runs there any more; a gateway that is killed meanwhile has forgotten it."""
        with contextlib.suppress(httpx.TransportError, RuntimeError, KeyError):
            name = self.gateway.instances()[self.urls[number]]["id"]
            self.gateway.http.post(f"{self.gateway.url}/admin/instances/{name}/drain", params={"move": "true"})
            due_s = time.monotonic() + within_s
            while self.gateway.instances()[self.urls[number]]["requests"] and time.monotonic() < due_s:
                time.sleep(0.1)

    def resume(self, number: int) -> None:
        with contextlib.suppress(httpx.TransportError, RuntimeError, KeyError):
            name = self.gateway.instances()[self.urls[number]]["id"]
            self.gateway.http.post(f"{self.gateway.url}/admin/instances/{name}/resume")

    def ready(self) -> list[int]:
        """Instances that the gateway holds for ready."""
        with contextlib.suppress(httpx.HTTPError, RuntimeError):  # its client is closed while it is away
            shown = self.gateway.instances()
            self.numbers |= {shown[url]["id"]: n for n, url in enumerate(self.urls)}
            return [n for n, url in enumerate(self.urls) if shown[url]["state"] == "ready"]
        return []

    async def close(self) -> None:
        with contextlib.suppress(AssertionError):
            self.gateway.stop()
        for proxy in self.proxies:
            await proxy.close()
        for instance in self.instances:
            instance.end()


def fds_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def rss_bytes_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def leftovers(instances: list[Instance]) -> int:
    return sum(instance.running() for instance in instances)


async def emulated_world(folder: Path, speed: float) -> World:
    instances = [Emulated("--speed", str(speed), "--max-num-seqs", "64") for _ in range(ENGINES)]
    for instance in instances:
        await asyncio.to_thread(instance.wait_ready)
    return await _world(list(instances), folder, 4096, whole_s=10.0)


async def vllm_world(folder: Path, model: Path | None) -> World:
    from tests.chaos.vllm_instance import VllmInstance  # imports what only its own run needs

    instances = [VllmInstance(str(n), model) for n in range(ENGINES)]
    for instance in instances:
        await asyncio.to_thread(instance.wait_ready)
    return await _world(list(instances), folder, 4096, whole_s=120.0)


async def _world(instances: list[Instance], folder: Path, context_tokens: int, whole_s: float) -> World:
    proxies = [Proxy(instance.port) for instance in instances]
    for proxy in proxies:
        await proxy.open()
    world = World(instances, proxies, folder, context_tokens, whole_s)
    await asyncio.to_thread(world.gateway.wait_ready)
    while len(world.ready()) < ENGINES:
        await asyncio.sleep(0.1)
    return world


STOP, GO, TERM = signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM
