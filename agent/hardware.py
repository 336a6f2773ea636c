"""The GPUs of a node and the one hand that writes to them. Owns which clock is set where and which knobs are off.

Synchronous and for one thread. Before a GPU is written to for the first time, the watchdog is told to undo it. A group
is set whole or not at all: when one member refuses, all go back to their default clocks, which serve any load.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.lease import LeaseLost
from core.errors import BadRequest
from pools.gpu import Device, DriverReloaded, GpuControl, GpuError, NoGpu, Watts

AT, IDLE, THROTTLED, BELOW, ABOVE = "at", "idle", "throttled", "below", "above"
NO_BRAKE = frozenset({"gpu_idle", "applications_clocks", "display"})  # reasons that are no slowing down under load


class NotObeyed(GpuError):
    """The driver agreed and the clock stayed above what was asked. Some cards and some hosts do that."""

    code = "gpu_clock_not_obeyed"


class Undoer(Protocol):
    """Who undoes clocks when this process cannot."""

    def will_change(self, uuids: Iterable[str]) -> None:
        """GpuError if nobody would undo them."""
        ...

    def undone(self, uuids: Iterable[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Member:
    """A GPU after it was set. Only ABOVE is a failure: an idle GPU is slow, and a hot one is slowed down."""

    uuid: str
    clock_mhz: int
    state: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Locked:
    """`changed`: something was written. `members` as they ran right after it."""

    mhz: int
    changed: bool
    members: list[Member]


@dataclass(frozen=True, slots=True)
class Reading:
    uuid: str
    energy_j: float
    watts: Watts
    temperature_c: float
    clock_mhz: int
    reasons: tuple[str, ...]


class Hardware:
    def __init__(self, gpu: GpuControl, undoer: Undoer, only: Sequence[str] = (), limit_w: float | None = None) -> None:
        self.devices: dict[str, Device] = {}
        self.tables: dict[str, list[int]] = {}
        self.off: dict[str, GpuError] = {}  # knobs that are off, and why
        self.applied: dict[str, int] = {}  # clocks that are set
        self._gpu = gpu
        self._undoer = undoer
        self._only = tuple(only)
        self._limit_w = limit_w

    def open(self) -> None:
        """Finds the GPUs and undoes what an earlier agent may have left, which shows too whether writes are allowed.
        NoGpu when one that was named is not here, ValueError when the power limit is not one of theirs."""
        found = {device.uuid: device for device in self._gpu.devices()}
        missing = sorted(set(self._only) - found.keys())
        if missing:
            raise NoGpu(f"no GPU here has the UUID {', '.join(missing)}")
        self.devices = {uuid: found[uuid] for uuid in self._only or found}
        for uuid in self.devices:
            self._guarded(uuid, self._prepare)

    def close(self) -> None:
        self.unlock(self.devices)

    def lock(self, uuids: Sequence[str], mhz: int, allowed: Callable[[], bool]) -> Locked:
        """Sets all of them to (lowest, f), where f is the highest clock of the table that is not above `mhz`. `allowed`
        is asked at the last moment. BadRequest, LeaseLost or the GpuError of the member that refused; then none is set.
        """
        for uuid in uuids:
            if uuid in self.off:
                raise self.off[uuid]
        target_mhz = min(self._snapped(uuid, mhz) for uuid in uuids)
        changes = [uuid for uuid in uuids if self.applied.get(uuid) != target_mhz]
        if not allowed():
            raise LeaseLost("the lease ended before the clock was set")
        self._undoer.will_change(changes)
        for uuid in changes:
            try:
                self._gpu.lock_clock(uuid, self.tables[uuid][0], target_mhz)
                self.applied[uuid] = target_mhz
            except GpuError as error:
                self.refuse(uuids, uuid, error)
                raise
        return Locked(target_mhz, bool(changes), self.look(uuids, target_mhz))

    def look(self, uuids: Iterable[str], mhz: int) -> list[Member]:
        """How they run with a lock at `mhz`. A GPU that cannot be read turns its knob off: GpuError."""
        members = []
        for uuid in uuids:
            try:
                members.append(self._member(uuid, mhz))
            except GpuError as error:
                self._turn_off(uuid, error)
                raise
        return members

    def refuse(self, uuids: Iterable[str], culprit: str, error: GpuError) -> None:
        """Turns the culprit's knob off and undoes the whole group."""
        self._turn_off(culprit, error)
        self.unlock(uuids)

    def unlock(self, uuids: Iterable[str]) -> None:
        """Default clocks for those that have another. One that fails keeps its mark at the watchdog and turns off."""
        for uuid in [uuid for uuid in uuids if uuid in self.applied]:
            try:
                self._gpu.unlock_clock(uuid)
            except GpuError as error:
                self._turn_off(uuid, error)
                continue
            del self.applied[uuid]
            self._undoer.undone([uuid])

    def recheck(self) -> None:
        """Turns knobs on again that work again: after a driver was reloaded, a permission was given, a GPU reset."""
        if any(isinstance(error, DriverReloaded) for error in self.off.values()):
            try:
                self._gpu.reopen()
            except GpuError:
                return
        for uuid, error in list(self.off.items()):
            if not isinstance(error, NotObeyed):
                self._guarded(uuid, self._prepare)

    def verify(self) -> list[str]:
        """Looks at every GPU, so that a lost one and a new driver are noticed while nothing is asked for. Returns those
        whose clock is above what is set: an idle GPU shows only under load whether it obeys."""
        above = []
        for uuid, table in list(self.tables.items()):
            try:
                member = self.look([uuid], self.applied.get(uuid, table[-1]))[0]
            except GpuError:
                continue
            if member.state == ABOVE:
                above.append(uuid)
        return above

    def read(self, uuids: Iterable[str]) -> list[Reading]:
        """Counters and gauges. GpuError if one of them cannot be read."""
        return [self._reading(uuid) for uuid in uuids]

    # --- one GPU

    def _prepare(self, uuid: str) -> None:
        gpu = self._gpu
        self.tables[uuid] = gpu.supported_clocks_mhz(uuid)
        if self._limit_w is not None:
            limit = gpu.power_limit(uuid)
            if not limit.lowest_w <= self._limit_w <= limit.highest_w:
                raise ValueError(f"a power limit of {uuid} is {limit.lowest_w:g} to {limit.highest_w:g} W")
            if limit.limit_w != self._limit_w:
                gpu.set_power_limit_w(uuid, self._limit_w)
        gpu.unlock_clock(uuid)
        self.applied.pop(uuid, None)
        self._undoer.undone([uuid])

    def _guarded(self, uuid: str, call: Callable[[str], None]) -> None:
        try:
            call(uuid)
        except GpuError as error:
            self._turn_off(uuid, error)
        else:
            self.off.pop(uuid, None)

    def _turn_off(self, uuid: str, error: GpuError) -> None:
        stale = self.devices if isinstance(error, DriverReloaded) else [uuid]
        for one in stale:
            self.off[one] = error

    def _snapped(self, uuid: str, mhz: int) -> int:
        table = self.tables[uuid]
        place = bisect_right(table, mhz)
        if place == 0:
            raise BadRequest(f"{uuid} runs at {table[0]} to {table[-1]} MHz, not {mhz}", param="mhz")
        return table[place - 1]

    def _member(self, uuid: str, mhz: int) -> Member:
        table = self.tables[uuid]
        clock_mhz = self._gpu.clock_mhz(uuid)
        reasons = self._gpu.throttled(uuid)
        one_bin_above = table[min(bisect_right(table, mhz), len(table) - 1)]
        if clock_mhz > one_bin_above:
            state = ABOVE
        elif clock_mhz >= mhz:
            state = AT
        elif reasons - NO_BRAKE:
            state = THROTTLED
        else:
            state = IDLE if "gpu_idle" in reasons else BELOW
        return Member(uuid, clock_mhz, state, tuple(sorted(reasons)))

    def _reading(self, uuid: str) -> Reading:
        gpu = self._gpu
        return Reading(
            uuid,
            gpu.energy_j(uuid),
            gpu.watts(uuid),
            gpu.temperature_c(uuid),
            gpu.clock_mhz(uuid),
            tuple(sorted(gpu.throttled(uuid))),
        )
