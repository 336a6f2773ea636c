"""The stage of a chaos run: three instances, a misbehaving relay before each, the gateway. Ends all of it by ids."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any, Protocol

import httpx

from tests.chaos.proxy import Proxy
from tests.e2e.engines import Engine
from tests.e2e.process import LOOSE, Gateway, write_config

ENGINES = 3
LIMITS = {"stall_timeout_s": 1.0, "first_byte_timeout_s": 10.0, "max_wait_s": 90.0, "connect_timeout_s": 1.0}


class Instance(Protocol):
    port: int

    def signal(self, number: int) -> None: ...

    def running(self) -> bool: ...

    def kill(self) -> None: ...

    def start(self) -> None: ...

    def healthy(self) -> bool: ...

    def end(self) -> None: ...


class Emulated(Engine):
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class World:
    """`gateway` is replaced when it is killed."""

    def __init__(self, instances: list[Instance], proxies: list[Proxy], folder: Path, context_tokens: int) -> None:
        self.instances = instances
        self.proxies = proxies
        self.folder = folder
        self._context_tokens = context_tokens
        self.gateway = self.start_gateway(0)
        self.port = self.gateway.port

    def start_gateway(self, port: int) -> Gateway:
        urls = [proxy.url for proxy in self.proxies]
        pool = {"name": "all", "serves": ["S", "M", "L"], "slots": 16, "urls": urls}
        tree: dict[str, Any] = {"model": "tiny", "slo": LOOSE, "pools": [pool], "context_tokens": self._context_tokens}
        tree["launcher"] = {"kind": "static"}
        config = write_config(
            self.folder,
            {"tiny": tree},
            limits=LIMITS,
            listen={"port": port},
            health={"interval_s": 0.2, "timeout_s": 1.0, "fall": 3},
            breaker={"failures": 5, "backoff_s": 0.2, "backoff_max_s": 1.0},
        )
        return Gateway(config)

    async def restart_gateway(self) -> None:
        """Killed, and started again on its port."""
        self.gateway.http.close()
        self.gateway.kill()
        self.gateway = await asyncio.to_thread(self.start_gateway, self.port)

    def ready(self) -> list[int]:
        """Instances that the gateway holds for ready."""
        with contextlib.suppress(httpx.HTTPError):
            shown = self.gateway.instances()
            return [n for n, proxy in enumerate(self.proxies) if shown[proxy.url]["state"] == "ready"]
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
    return await _world(list(instances), folder, 4096)


async def vllm_world(folder: Path) -> World:
    from tests.chaos.vllm_instance import VllmInstance  # imports what only its own run needs

    instances = [VllmInstance(str(n)) for n in range(ENGINES)]
    for instance in instances:
        await asyncio.to_thread(instance.wait_ready)
    return await _world(list(instances), folder, 4096)


async def _world(instances: list[Instance], folder: Path, context_tokens: int) -> World:
    proxies = [Proxy(instance.port) for instance in instances]
    for proxy in proxies:
        await proxy.open()
    world = World(instances, proxies, folder, context_tokens)
    await asyncio.to_thread(world.gateway.wait_ready)
    while len(world.ready()) < ENGINES:
        await asyncio.sleep(0.1)
    return world


STOP, GO, TERM = signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM
