"""Energy counters of running instances: the emulated engine's own, and those of GPUs by way of node agents.

Owns what a counter that falls means: it has restarted (a driver or an engine was loaded anew) and counts from zero;
what was spent between the last read and that moment is lost, at most one reading's interval, and is never invented."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, Protocol
from weakref import WeakSet

import httpx

from core.clock import Clock
from pools.clocks import ClockRefused
from pools.instance import Instance

Quality = Literal["measured", "modelled"]
MOST_AT_ONCE = 16
BARE = ""  # in place of an instance id: GPUs that nobody runs on


@dataclass(frozen=True, slots=True)
class Counted:
    """What an instance's counters say at `at_s` (monotonic seconds of this process). `parts`: one value per counter, by
    its name. `pace`: engine seconds per real one; `age_s`: for how long they have counted at all."""

    at_s: float
    parts: Mapping[str, float]
    pace: float = 1.0
    age_s: float = inf


class Counters(Protocol):
    """`quality` of what it reads: an emulated engine's counter is a model's. `from_zero`: a counter begins with its
    instance, so that its first value is what the start has cost, where it is no older than the instance is known."""

    quality: Quality
    from_zero: bool

    async def read(self, instances: Sequence[Instance]) -> dict[str, Counted]:
        """By instance id, BARE for GPUs without an instance; what cannot be read now is left out."""
        ...

    def covers(self, instance: Instance) -> bool:
        """Whether it may be read, now or later."""
        ...


class EngineCounters:
    """The emulated engine's joules, from its /emulated/state. A server that has no such page is asked no more."""

    quality: Quality = "modelled"
    from_zero = True

    def __init__(self, http: httpx.AsyncClient, clock: Clock, speed: float = 1.0) -> None:
        """`speed`: of the clock, in seconds per real one."""
        self._speed = speed
        self._http = http
        self._clock = clock
        self._none: WeakSet[Instance] = WeakSet()  # without such a page
        self._gate = asyncio.Semaphore(MOST_AT_ONCE)

    def covers(self, instance: Instance) -> bool:
        return instance not in self._none

    async def read(self, instances: Sequence[Instance]) -> dict[str, Counted]:
        asked = [one for one in instances if one not in self._none]
        found = await asyncio.gather(*map(self._one, asked))
        return {one.id: counted for one, counted in zip(asked, found, strict=True) if counted is not None}

    async def _one(self, instance: Instance) -> Counted | None:
        try:
            async with self._gate:
                asked_s = self._clock.now_s()
                answer = await self._http.get(f"{instance.url}/emulated/state")
                at_s = (asked_s + self._clock.now_s()) / 2
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError):
            return None
        if answer.status_code == 404:
            self._none.add(instance)
        if answer.status_code != 200:
            return None
        try:
            state: dict[str, Any] = answer.json()
            pace = float(state["speed"]) / self._speed
            parts = {f"engine {instance.id}": float(state["joules"])}
            return Counted(at_s, parts, pace, float(state["engine_s"]) / pace)
        except (ValueError, KeyError, TypeError):
            return None


class GpuReader(Protocol):
    """A node agent: `readings` answers with a row per GPU, each with `uuid` and `energy_j`."""

    async def readings(self, uuids: Sequence[str]) -> dict[str, Any]: ...


class GpuCounters:
    """NVML's energy counters through a node agent. `uuids_of` says on which GPUs an instance runs; those of nobody are
    read, too: bare GPUs draw power."""

    quality: Quality = "measured"
    from_zero = False

    def __init__(self, agent: GpuReader, uuids_of: Callable[[Instance], Sequence[str]], clock: Clock) -> None:
        self._agent = agent
        self._uuids_of = uuids_of
        self._clock = clock

    def covers(self, instance: Instance) -> bool:
        return bool(self._uuids_of(instance))

    async def read(self, instances: Sequence[Instance]) -> dict[str, Counted]:
        asked_s = self._clock.now_s()
        try:
            told = await self._agent.readings(())
        except ClockRefused:
            return {}
        at_s = (asked_s + self._clock.now_s()) / 2
        bare = {str(row["uuid"]): float(row["energy_j"]) for row in told["gpus"]}
        joules, found = dict(bare), {}
        for instance in instances:
            held = self._uuids_of(instance)
            if held and all(uuid in joules for uuid in held):
                found[instance.id] = Counted(at_s, {uuid: joules[uuid] for uuid in held})
                for uuid in held:
                    bare.pop(uuid, None)
        return {**found, BARE: Counted(at_s, bare)}


class Odometers:
    """Joules between two reads of a counter, by its name. `resets` counts those that fell."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self.resets = 0

    def passed(self, parts: Mapping[str, float], *, from_zero: bool) -> float:
        """Of all `parts` since each was read last. One that is new counts nothing, or all it says `from_zero`."""
        total = 0.0
        for name, now_j in parts.items():
            last_j = self._last.get(name, 0.0 if from_zero else now_j)
            self.resets += now_j < last_j
            total += now_j - last_j if now_j >= last_j else now_j
            self._last[name] = now_j
        return total

    def knows(self, parts: Mapping[str, float]) -> bool:
        return all(name in self._last for name in parts)

    def forget(self, name: str) -> None:
        self._last.pop(name, None)
