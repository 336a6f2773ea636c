"""Energy meters: joules of one instance since some moment, with the moment of the read. A meter differs nothing itself.

Counters of real GPUs are updated every 20 to 100 ms and their sensor sees a quarter of the time (arXiv 2312.02741), so
`spent` refuses two reads closer than a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psutil

from core.clock import Clock
from pools.gpu import Gpu

SHORTEST_S = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """`at_s` is on the clock of whoever read; only differences of two readings of one meter mean anything."""

    joules: float
    at_s: float


class TooClose(ValueError):
    """Two reads of a counter that say nothing about what lies between them."""


class EnergyMeter(Protocol):
    """`counter` is what a profile's provenance says: nvml-total-energy, emulated or cpu-seconds."""

    counter: str

    async def read(self) -> Reading: ...


def spent(before: Reading, after: Reading) -> float:
    """Joules between two readings; TooClose if they are less than a second apart."""
    if after.at_s - before.at_s < SHORTEST_S:
        raise TooClose(
            f"{after.at_s - before.at_s:.3f} s between two reads of an energy counter; at least 1 s is needed"
        )
    return after.joules - before.joules


class NvmlMeter:
    """The energy counters of an instance's GPUs, by UUID, added up.

    A counter restarts at zero when the driver is loaded anew; it is then taken to have counted from zero, and what was
    spent between the last read and the restart is lost, never invented."""

    counter = "nvml-total-energy"

    def __init__(self, gpu: Gpu, uuids: Sequence[str], clock: Clock) -> None:
        if not uuids:
            raise ValueError("an energy meter needs at least one GPU")
        self._gpu = gpu
        self._clock = clock
        self._last_j: dict[str, float] = dict.fromkeys(uuids, 0.0)
        self._total_j = 0.0

    async def read(self) -> Reading:
        for uuid, last_j in self._last_j.items():
            now_j = self._gpu.energy_j(uuid)
            self._total_j += now_j - last_j if now_j >= last_j else now_j
            self._last_j[uuid] = now_j
        return Reading(self._total_j, self._clock.now_s())


class EmulatedMeter:
    """What the emulated engine says it spent, in its own seconds: with --speed they pass faster than real ones."""

    counter = "emulated"

    def __init__(self, state: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        self._state = state

    async def read(self) -> Reading:
        state = await self._state()
        return Reading(float(state["joules"]), float(state["engine_s"]))


class CpuSecondsMeter:
    """CPU time of a process and its descendants, user and system: the stand-in where no energy counter exists.

    A descendant that ends keeps its last seen share. One that came and went between two reads is missed, except for
    what its parent was credited with; the processes of an engine live as long as it does."""

    counter = "cpu-seconds"

    def __init__(self, pid: int, clock: Clock) -> None:
        self._pid = pid
        self._clock = clock
        self._seen: dict[tuple[int, float], float] = {}
        try:
            self._root = psutil.Process(pid)
        except psutil.NoSuchProcess:
            raise ValueError(f"no process has the id {pid}") from None

    async def read(self) -> Reading:
        if not self._root.is_running():
            raise ValueError(f"the process {self._pid} has ended")
        for process in (self._root, *self._root.children(recursive=True)):
            try:
                times = process.cpu_times()
                self._seen[process.pid, process.create_time()] = times.user + times.system
            except psutil.NoSuchProcess:
                continue
        return Reading(sum(self._seen.values()), self._clock.now_s())
