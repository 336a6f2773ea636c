"""What breaks, when, and how it is mended: seeded. At least one instance is left alone at any time."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

from tests.chaos.world import GO, STOP, TERM, World

# (kind, weight); how long those last that last. A gateway that dies takes every stream along, so that it is rare.
INSTANCE_FAULTS = (("kill9", 5), ("sigterm", 2), ("sigstop", 1), ("stall", 1), ("slow", 2), ("garbage", 2),
                   ("half_close", 2), ("cut", 4), ("refuse", 2))  # fmt: skip
ELSEWHERE_FAULTS = (("disk_full", 1), ("gateway_kill", 1))
LASTS_S = {"sigstop": 2.0, "stall": 1.8, "slow": 1.5, "refuse": 1.0, "disk_full": 1.5}


class Faults:
    """`counts` of what was done. `every_s`: mean time from one fault to the next."""

    def __init__(self, world: World, seed: int, every_s: float, kinds: frozenset[str]) -> None:
        self.counts: Counter[str] = Counter()
        self.deaths_of_gateway = 0
        self._world = world
        self._draw = random.Random(seed)
        self._every_s = every_s
        self._kinds = [(k, w) for k, w in (*INSTANCE_FAULTS, *ELSEWHERE_FAULTS) if k in kinds]
        self._broken: set[int] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._gateway_up = asyncio.Event()
        self._gateway_up.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._draw.uniform(0.3, 1.7) * self._every_s)
            kind = self._draw.choices([k for k, _ in self._kinds], [w for _, w in self._kinds])[0]
            if kind == "gateway_kill":
                self.counts[kind] += 1
                await self._kill_gateway()
            elif kind == "disk_full":
                self._begin(kind, self._fill_disk())
            else:
                await self._on_some_instance(kind)

    async def mended(self) -> None:
        """Everything that was broken works again."""
        await asyncio.gather(*self._running)

    async def gateway_up(self) -> None:
        await self._gateway_up.wait()

    async def _on_some_instance(self, kind: str) -> None:
        ready = [n for n in await asyncio.to_thread(self._world.ready) if n not in self._broken]
        if len(ready) >= 2:
            number = self._draw.choice(ready)
            self._broken.add(number)
            self._begin(kind, self._break(number, kind))

    def _begin(self, kind: str, work: object) -> None:
        self.counts[kind] += 1
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _break(self, number: int, kind: str) -> None:
        try:
            if kind in ("kill9", "sigterm"):
                await self._restart(number, kind)
            elif kind == "sigstop":
                self._world.instances[number].signal(STOP)
                await asyncio.sleep(LASTS_S[kind])
                self._world.instances[number].signal(GO)
            else:
                await self._world.proxies[number].strike(kind)
                await asyncio.sleep(LASTS_S.get(kind, 0.0))
                await self._world.proxies[number].heal()
        finally:
            self._broken.discard(number)

    async def _restart(self, number: int, kind: str) -> None:
        instance = self._world.instances[number]
        if kind == "kill9":
            await asyncio.to_thread(instance.kill)
        else:
            instance.signal(TERM)
            await asyncio.sleep(0.5)
        await asyncio.to_thread(instance.end)  # what a crash has left behind
        instance.start()
        while not await asyncio.to_thread(instance.healthy):
            await asyncio.sleep(0.1)

    async def _fill_disk(self) -> None:
        log: Path = self._world.folder / "run.jsonl"
        kept, full = log.with_suffix(".kept"), log.with_suffix(".full")
        if not log.exists() or log.is_symlink():
            return
        os.symlink("/dev/full", full)
        os.rename(log, kept)
        os.rename(full, log)
        await asyncio.sleep(LASTS_S["disk_full"])
        os.rename(kept, log)

    async def _kill_gateway(self) -> None:
        self._gateway_up.clear()
        self.deaths_of_gateway += 1
        await self._world.restart_gateway()
        self._gateway_up.set()
