"""Puts instances to sleep and wakes them, aside of the ticks: either takes as long as moving the weights does.

Owns the tasks. An instance sleeps or wakes by one call at a time, in the order that they were asked for; while one is
under way its health says nothing, because a server answers /health asleep too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from pools.fleet import Fleet, Member
from pools.knobs import KnobRefused


class Sleepers:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def park(self, fleet: Fleet, instance_id: str, reason: str) -> None:
        """It takes no request from now on; where sleep is refused it stays as it was."""
        member = fleet.park(instance_id, reason)
        if member is not None:
            self._aside(_sleep(fleet, member))

    def wake(self, fleet: Fleet, instance_id: str, reason: str) -> None:
        """READY when it is awake and answers."""
        member = fleet.wake(instance_id, reason)
        if member is not None:
            self._aside(_wake(fleet, member))

    def rouse(self, fleet: Fleet, instance_id: str) -> None:
        """One that an earlier gateway left: nobody remembers whether it sleeps, and most cannot."""
        self._aside(_rouse(fleet, fleet.members[instance_id]))

    async def settled(self) -> None:
        """Until all that was asked for is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _aside(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _sleep(fleet: Fleet, member: Member) -> None:
    async with member.turn:
        try:
            await fleet.knobs.sleep(member.instance)
        except KnobRefused as refused:
            fleet.sleep_failed(member, refused)
        else:
            fleet.asleep(member)


async def _wake(fleet: Fleet, member: Member) -> None:
    async with member.turn:
        try:
            await fleet.knobs.wake(member.instance)
        except KnobRefused as refused:
            fleet.wake_failed(member, refused)


async def _rouse(fleet: Fleet, member: Member) -> None:
    async with member.turn:
        try:
            await fleet.knobs.wake(member.instance)
        except KnobRefused:
            return
