"""The clock knob of the live cluster: a protocol, and the emulated engine's own knob. The node agent's is in
`pools/agent_client.py`.

A knob sets whole groups (the GPUs of one instance) and says what was really set, or refuses with a reason and a code.
Where it refuses, the GPUs run at their default clock, which serves any load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from core.errors import JoulegateError


class ClockRefused(JoulegateError):
    """The clock is not set and the group is at its default. `code` says why: gpu_not_permitted, gpu_not_supported,
    gpu_lost, gpu_driver_reloaded, gpu_clock_not_obeyed, lease_lost, lease_held, agent_unreachable, ..."""

    status = 503
    code = "clock_refused"


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """The GPUs of one instance: by UUID for the agent, by the instance's URL for the emulated engine."""

    uuids: tuple[str, ...]
    url: str = ""


@dataclass(frozen=True, slots=True)
class ClockSet:
    """`mhz` is the highest clock that the group may run at now. `states` by UUID: at, idle, throttled or below."""

    mhz: int
    changed: bool
    states: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupReading:
    """Added up over the group, but the clock: the slowest member's. `joules` only counts up, but for a driver that was
    reloaded; `at_s` is on the clock of whoever read, so only differences mean anything."""

    at_s: float
    joules: float
    watts: float
    clock_mhz: int


class Clocks(Protocol):
    """`leased_anew`: what is set belongs to a lease, and an instance starts at whatever clock its GPUs have; else it
    starts at the clock that its command line names. `epoch`: of the lease; what was set under another is undone."""

    leased_anew: bool
    epoch: int | None

    @property
    def quality(self) -> str:
        """Of the joules and watts that `read` tells: measured, or modelled where GPUs are emulated."""
        ...

    async def set_clock(self, group: GpuGroup, mhz: int) -> ClockSet:
        """Idempotent; writes only on change. ClockRefused."""
        ...

    async def reset(self, group: GpuGroup) -> None:
        """Default clock. ClockRefused, and then the lease's end does it."""
        ...

    async def read(self, group: GpuGroup) -> GroupReading:
        """ClockRefused when something cannot be read."""
        ...

    def off(self, group: GpuGroup) -> str | None:
        """Why the knob of this group is off, as a code; None while it works."""
        ...


class EngineClocks:
    """The emulated engine's admin endpoint, for engines without emulated GPUs. `default_mhz` is what a reset sets."""

    leased_anew = False
    quality = "modelled"

    def __init__(self, http: httpx.AsyncClient, default_mhz: int) -> None:
        self.epoch: int | None = 0
        self._http = http
        self._default_mhz = default_mhz

    async def set_clock(self, group: GpuGroup, mhz: int) -> ClockSet:
        was = int((await self._ask(group, "GET", "/emulated/state"))["clock_mhz"])
        if was != mhz:
            await self._ask(group, "POST", "/emulated/clock", {"clock_mhz": mhz})
        return ClockSet(mhz, was != mhz, tuple((uuid, "at") for uuid in group.uuids))

    async def reset(self, group: GpuGroup) -> None:
        await self.set_clock(group, self._default_mhz)

    async def read(self, group: GpuGroup) -> GroupReading:
        state = await self._ask(group, "GET", "/emulated/state")
        return GroupReading(state["engine_s"], state["joules"], state["watts"], state["clock_mhz"])

    def off(self, group: GpuGroup) -> str | None:
        return None

    async def _ask(self, group: GpuGroup, method: str, path: str, body: object = None) -> Any:
        try:
            answer = await self._http.request(method, group.url + path, json=body)
        except httpx.HTTPError as error:
            why = f"{group.url} does not answer: {type(error).__name__}"
            raise ClockRefused(why, code="engine_unreachable") from None
        if answer.status_code != 200:
            raise ClockRefused(f"{group.url}{path} answered {answer.status_code}: {answer.text[:200]}")
        return answer.json()
