"""Keeps instances at the clocks that are wanted of them. Owns the writes and the books of what is set, and decides no
clock.

It is a task of its own: neither a tick nor a request waits for an agent. Where a knob is off, or its lease was lost,
the GPUs are at their default, which serves any load; what was wanted is set again when it can be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from core.clock import Clock
from core.instances import State
from pools.fleet import Fleet, Member
from pools.knobs import KnobRefused

KEEP_S = 1.0  # an agent looks at its own refusals as often


class ClockKeeper:
    """`wake` is set when somebody wants another clock."""

    def __init__(self, fleets: Callable[[], Iterable[Fleet]], clock: Clock) -> None:
        self.wake = asyncio.Event()
        self._fleets = fleets
        self._clock = clock

    async def run(self) -> None:
        while True:
            await self.once()
            await self._clock.sleep_until(self._clock.now_s() + KEEP_S, wake=self.wake)

    async def once(self) -> None:
        knobs = [fleet for fleet in self._fleets() if fleet.knobs.clock]
        await asyncio.gather(*(_keep(fleet, member) for fleet in knobs for member in list(fleet.members.values())))


async def _keep(fleet: Fleet, member: Member) -> None:
    knobs, instance = fleet.knobs, member.instance
    if instance.adopted or instance.state in (State.STOPPED, State.FAILED):
        return
    if instance.state is State.STARTING and not knobs.leased:  # its own server sets it, and is not up yet
        return
    off = knobs.off(instance)
    if knobs.leased and (off is not None or member.epoch != knobs.epoch):
        member.set_mhz, member.epoch = None, None
        instance.clock_mhz = instance.default_mhz
    if off is not None:
        fleet.clock_refused(member, off)
        return
    if member.set_mhz != member.wanted_mhz:
        await _write(fleet, member)
    elif member.knob_refused:
        fleet.clock_refused(member, "")


async def _write(fleet: Fleet, member: Member) -> None:
    instance, wanted_mhz, epoch = member.instance, member.wanted_mhz, fleet.knobs.epoch
    before_mhz = instance.clock_mhz
    after_mhz = wanted_mhz or instance.default_mhz
    instance.clock_mhz = min(before_mhz, after_mhz)  # until it is known, nobody counts on the faster one
    try:
        await fleet.knobs.set_clock(instance, wanted_mhz)
    except KnobRefused as refused:
        instance.clock_mhz = before_mhz
        fleet.clock_refused(member, str(refused))
        return
    instance.clock_mhz, member.set_mhz, member.epoch = after_mhz, wanted_mhz, epoch
    fleet.clock_refused(member, "")
    fleet.admission.pump()
