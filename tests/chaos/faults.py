"""What breaks, when, and how it is mended: seeded. At least one instance is left alone at any time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import httpx

from gateway.retry import POISON_S
from tests.chaos.world import GO, STOP, TERM, World

# (kind, weight); how long those last that last. A gateway that dies takes every stream along, so that it is rare.
INSTANCE_FAULTS = (("kill9", 5), ("engine_kill", 3), ("sigterm", 2), ("sigstop", 1), ("stall", 1), ("slow", 2),
                   ("garbage", 2), ("half_close", 2), ("cut", 4), ("refuse", 2), ("dns_gone", 1), ("dns_silent", 1))  # fmt: skip
ELSEWHERE_FAULTS = (("disk_full", 1), ("gateway_kill", 1), ("gateway_sigterm", 1), ("rolling", 1), ("reload", 1),
                    ("controller_dead", 1), ("controller_hung", 1))  # fmt: skip
ALL_KINDS = frozenset(kind for kind, _ in (*INSTANCE_FAULTS, *ELSEWHERE_FAULTS))
LASTS_S = {"sigstop": 2.0, "stall": 1.8, "slow": 1.5, "refuse": 1.0, "dns": 1.5, "disk_full": 1.5, "controller": 3.0}
DIES_S = 2.0  # a server whose engine is gone ends within
DEATHS = ("kill9", "engine_kill")
APART_S = POISON_S + 0.2  # two deaths that meet one new request make it poison, which is not tried a third time
EMPTIES_S = 5.0  # a drain that moves what runs is over within


class Strike(NamedTuple):
    """`t`: Unix time just before it was done."""

    t: float
    kind: str
    number: int


class Faults:
    """`counts` of what was done, `strikes` of what was done to which instance, in order. `every_s`: mean time from one
    fault to the next. `kills` and `ends` of the gateway: by SIGKILL, by SIGTERM."""

    def __init__(
        self, world: World, seed: int, every_s: float, kinds: frozenset[str], apart_s: float = APART_S
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.strikes: list[Strike] = []
        self.kills = 0
        self.ends = 0
        self.failed: list[str] = []  # what the gateway should have done and did not
        self._world = world
        self._draw = random.Random(seed)
        self._every_s = every_s
        self._apart_s = apart_s
        self._kinds = [(k, w) for k, w in (*INSTANCE_FAULTS, *ELSEWHERE_FAULTS) if k in kinds]
        self._broken: set[int] = set()
        self._died_s = 0.0  # when an instance was killed last
        self._running: dict[asyncio.Task[None], str] = {}
        self._gateway_up = asyncio.Event()
        self._gateway_up.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._draw.uniform(0.3, 1.7) * self._every_s)
            kind = self._draw.choices([k for k, _ in self._kinds], [w for _, w in self._kinds])[0]
            if kind.startswith("gateway"):
                self.counts[kind] += 1
                await self._end_gateway(kind)
            elif kind in dict(INSTANCE_FAULTS):
                await self._on_some_instance(kind)
            elif kind not in self._running.values():
                work = {"disk_full": self._fill_disk, "rolling": self._roll, "reload": self._reload}
                self._begin(kind, work[kind]() if kind in work else self._mark(kind, kind, LASTS_S["controller"]))

    async def mended(self) -> None:
        """Everything that was broken works again."""
        await asyncio.gather(*self._running)

    async def gateway_up(self) -> None:
        await self._gateway_up.wait()

    def lately(self) -> str:
        """What was struck in the last seconds, for whoever has to explain an answer."""
        now_t = time.time()
        return ", ".join(f"{s.kind} {s.number} {now_t - s.t:.1f} s ago" for s in self.strikes if now_t - s.t < 5)

    # --- instances

    async def _on_some_instance(self, kind: str) -> None:
        ready = await self._whole()
        if kind in DEATHS and time.monotonic() < self._died_s + self._apart_s:
            return
        if len(ready) >= 2:
            number = self._draw.choice(ready)
            self._broken.add(number)
            self._begin(kind, self._break(number, kind))

    async def _whole(self) -> list[int]:
        return [n for n in await asyncio.to_thread(self._world.ready) if n not in self._broken]

    def _begin(self, kind: str, work: object) -> None:
        self.counts[kind] += 1
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self._running[task] = kind
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def _break(self, number: int, kind: str) -> None:
        instance, proxy = self._world.instances[number], self._world.proxies[number]
        self.strikes.append(Strike(time.time(), kind, number))
        try:
            if kind in ("kill9", "sigterm", "engine_kill"):
                await self._restart(number, kind)
            elif kind == "sigstop":
                instance.signal(STOP)
                await asyncio.sleep(LASTS_S[kind])
                instance.signal(GO)
            elif kind.startswith("dns"):
                await self._mark(f"dns-{number}", kind.removeprefix("dns_"), LASTS_S["dns"])
            else:
                await proxy.strike(kind)
                await asyncio.sleep(LASTS_S.get(kind, 0.0))
                await proxy.heal()
        finally:
            self._broken.discard(number)

    async def _restart(self, number: int, kind: str) -> None:
        instance = self._world.instances[number]
        if kind in DEATHS:
            self._died_s = time.monotonic()
        if kind == "kill9":
            await asyncio.to_thread(instance.kill)
        elif kind == "engine_kill":
            await asyncio.to_thread(instance.kill_engine)
            await asyncio.sleep(DIES_S)
        else:
            instance.signal(TERM)
            await asyncio.sleep(0.5)
        await self._start_anew(number)

    async def _start_anew(self, number: int) -> None:
        instance = self._world.instances[number]
        await asyncio.to_thread(instance.end)  # what a crash has left behind
        instance.start()
        while not await asyncio.to_thread(instance.healthy):
            await asyncio.sleep(0.1)

    async def _roll(self) -> None:
        """Every instance is emptied, ended and started anew, one after the other, as for a new version of it."""
        for number in range(len(self._world.instances)):
            while True:
                whole = await self._whole()
                if number in whole and len(whole) >= 2:
                    break
                await asyncio.sleep(0.1)
            self._broken.add(number)
            try:
                await asyncio.to_thread(self._world.drain, number, EMPTIES_S)
                await self._start_anew(number)
                await asyncio.to_thread(self._world.resume, number)
            finally:
                self._broken.discard(number)

    async def _mark(self, name: str, text: str, lasts_s: float) -> None:
        """A file that the gateway's process looks for (tests/chaos/gateway_process.py)."""
        mark = self._world.folder / "faults" / name.replace("_", "-")
        mark.write_text(text)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            mark.unlink()

    # --- the gateway and what is beside it

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

    async def _reload(self) -> None:
        with contextlib.suppress(httpx.TransportError):  # the gateway may just be away
            status = await asyncio.to_thread(self._world.reload)
            if status != 200:
                self.failed.append(f"a reload was answered {status}")

    async def _end_gateway(self, kind: str) -> None:
        self._gateway_up.clear()
        if kind == "gateway_kill":
            self.kills += 1
        else:
            self.ends += 1
        status = await self._world.restart_gateway(gently=kind == "gateway_sigterm")
        if kind == "gateway_sigterm" and status:
            self.failed.append(f"SIGTERM ended the gateway with status {status}")
        self._gateway_up.set()
