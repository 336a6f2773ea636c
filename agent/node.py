"""The agent's life: leases over hardware, and what happens by itself. Owns the thread that calls the driver, the expiry
of leases, the watchdog's beat, and looking again at knobs that are off.

Driver calls take 5 to 13 ms and are serialised by the driver, so one thread makes them; renewing a lease needs no
driver and is never behind one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import structlog

from agent.hardware import ABOVE, Hardware, Locked, Member, NotObeyed, Reading
from agent.lease import Lease, Leases
from agent.link import Link, NoWatchdog
from core.clock import Clock
from core.errors import NotFound
from pools.gpu import GpuError

SETTLE_S = 0.3  # a lock acts within a millisecond or so (A800: 0.9 ms); later than this it does not act
LOOK_S = 0.005
TICK_S = 0.05
SLOW_TICK_S = 1.0
WATCHDOG_START_S = 20.0
log = structlog.get_logger("joulegate.agent")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A group that runs at no more than `mhz` (one bin of tolerance), member by member. `changed` is False when all of
    them had this clock already and nothing was written."""

    mhz: int
    changed: bool
    members: tuple[Member, ...]


class Node:
    """`async with Node(...) as node`: opened GPUs, a watchdog, leases. Leaves default clocks behind."""

    def __init__(self, hardware: Hardware, link: Link, clock: Clock, lease_s: float) -> None:
        self.hardware = hardware
        self.link = link
        self.leases = Leases((), lease_s, 0)
        self._clock = clock
        self._lease_s = lease_s
        self._driver = ThreadPoolExecutor(1, thread_name_prefix="driver")
        self._overdue = False  # a lease has ended and its clocks are not undone yet
        link.undone_elsewhere = self.undone_elsewhere

    async def __aenter__(self) -> Node:
        self.link.start()
        await self._call(self.hardware.open)
        self.leases = Leases(self.hardware.devices, self._lease_s, int(self._clock.wall_s() * 1000))
        try:
            async with asyncio.timeout(WATCHDOG_START_S):
                await self.link.ready.wait()
        except TimeoutError:
            raise NoWatchdog("the watchdog does not start") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.undo()
        self.link.stop()
        self._driver.shutdown()

    async def undo(self) -> None:
        """Ends all leases, and default clocks for what they had set."""
        self.leases.revoke()
        await self._call(self.hardware.close)

    def off(self, uuids: Iterable[str] = ()) -> dict[str, GpuError]:
        """Knobs that are off, of these GPUs or of all."""
        wanted = set(uuids) or self.hardware.devices.keys()
        return {uuid: error for uuid, error in dict(self.hardware.off).items() if uuid in wanted}

    # --- what a client asks for

    async def acquire(self, holder: str, uuids: Sequence[str], lease_s: float | None) -> Lease:
        await self._expire()
        return self.leases.acquire(self._clock.now_s(), holder, uuids, lease_s)

    def renew(self, epoch: int) -> Lease:
        return self.leases.renew(self._clock.now_s(), epoch)

    async def release(self, epoch: int) -> None:
        await self._call(self.hardware.unlock, self.leases.release(epoch))

    async def reset(self, epoch: int, uuids: Sequence[str]) -> None:
        """Default clocks, the lease stays."""
        self.leases.check(self._clock.now_s(), epoch, uuids)
        await self._call(self.hardware.unlock, uuids)

    async def set_clock(self, epoch: int, uuids: Sequence[str], mhz: int) -> Confirmed:
        """Sets all members, then confirms all. LeaseLost, BadRequest, or the GpuError that turned a knob off."""
        self.leases.check(self._clock.now_s(), epoch, uuids)

        def allowed() -> bool:
            return self.leases.allows(self._clock.now_s(), epoch)

        locked = await self._call(self.hardware.lock, uuids, mhz, allowed)
        members = await self._confirm(uuids, locked)
        self.leases.check(self._clock.now_s(), epoch, uuids)  # it may have ended meanwhile, and the clocks with it
        return Confirmed(locked.mhz, locked.changed, tuple(members))

    async def read(self, uuids: Sequence[str]) -> list[Reading]:
        unknown = sorted(set(uuids) - self.hardware.devices.keys())
        if unknown:
            raise NotFound(f"no GPU here has the UUID {', '.join(unknown)}")
        return await self._call(self.hardware.read, uuids or tuple(self.hardware.devices))

    # --- what happens by itself

    async def run(self) -> None:
        """Until cancelled: the beat, expiry, and once a second the slower looks."""
        slow_due_s = self._clock.now_s() + SLOW_TICK_S
        disobeying: set[str] = set()
        while True:
            if not self._overdue:
                self.link.beat()  # clocks that this process cannot undo are the watchdog's to undo
            await self._expire()
            if self._clock.now_s() >= slow_due_s:
                slow_due_s = self._clock.now_s() + SLOW_TICK_S
                disobeying = await self._look_again(disobeying)
            await self._clock.sleep(TICK_S)

    def undone_elsewhere(self) -> None:
        """The watchdog has undone all clocks: what was leased is over. Undoing once more is for a clock that was set
        after it, before this process heard of it."""
        self.leases.revoke()
        self._driver.submit(self.hardware.close)

    async def _expire(self) -> None:
        ended = self.leases.expire(self._clock.now_s())
        if ended:
            log.warning("a lease ended without renewal; its clocks go to default", gpus=sorted(ended))
            self._overdue = True
            await self._call(self.hardware.unlock, ended)
            self._overdue = False

    async def _look_again(self, disobeyed_before: set[str]) -> set[str]:
        was_off = set(self.hardware.off)
        await self._call(self.hardware.recheck)
        above = set(await self._call(self.hardware.verify))
        for uuid in above & disobeyed_before:
            await self._call(self.hardware.refuse, [uuid], uuid, _not_obeyed(uuid))
        for uuid in was_off ^ set(self.hardware.off):
            error = self.hardware.off.get(uuid)
            log.warning("clock knob off" if error else "clock knob on again", gpu=uuid, why=str(error or ""))
        return above - disobeyed_before

    async def _confirm(self, uuids: Sequence[str], locked: Locked) -> list[Member]:
        members = locked.members
        deadline_s = self._clock.now_s() + SETTLE_S
        while True:
            culprit = next((member.uuid for member in members if member.state == ABOVE), None)
            if culprit is None:
                return members
            if self._clock.now_s() >= deadline_s:
                error = _not_obeyed(culprit)
                await self._call(self.hardware.refuse, uuids, culprit, error)
                raise error
            await self._clock.sleep(LOOK_S)
            members = await self._call(self.hardware.look, uuids, locked.mhz)

    def _call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        return asyncio.wrap_future(self._driver.submit(call, *args, **kwargs))


def _not_obeyed(uuid: str) -> NotObeyed:
    return NotObeyed(f"{uuid} runs faster than it was told to")
