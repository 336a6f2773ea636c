"""The clock of a simulation: a sleep runs the world until it is over. One sleeper at a time, the controller's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

from simulator.world import SimulationOver, World


class SimClock:
    """A `core.clock.Clock` of simulated seconds. `epoch_s` is the Unix time of second 0."""

    def __init__(self, world: World, epoch_s: float = 0.0) -> None:
        self._world = world
        self._epoch_s = epoch_s

    def now_s(self) -> float:
        return self._world.now_s

    def wall_s(self) -> float:
        return self._epoch_s + self._world.now_s

    async def sleep(self, seconds: float) -> None:
        self._world.run_until(self._world.now_s + max(0.0, seconds), lambda: False)

    async def sleep_until(self, due_s: float, wake: asyncio.Event | None = None) -> None:
        if wake is None:
            self._world.run_until(due_s, lambda: False)
        else:
            self._world.run_until(due_s, wake.is_set)
            wake.clear()


def run_simulated(loop: Coroutine[object, object, None]) -> None:
    """Runs a coroutine that waits for nothing but a `SimClock`, to the end of its world. Needs no event loop."""
    try:
        with suppress(SimulationOver, StopIteration):
            loop.send(None)
            raise RuntimeError("a simulated coroutine waited for something other than its clock")
    finally:
        loop.close()
