"""Time as a dependency. Owns every read of a clock and every sleep in the project; nothing else may import `time`."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. `now_s` is monotonic and for durations; `wall_s` is Unix time and for records."""

    def now_s(self) -> float: ...

    def wall_s(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    async def sleep_until(self, due_s: float, wake: asyncio.Event | None = None) -> None: ...


class SystemClock:
    """The machine's clock. With `speed` its seconds pass faster than real ones, from the moment it is made: for replays
    in which everything that goes by this clock is to happen sooner."""

    speed = 1.0
    _from_s = 0.0

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._from_s = time.time()
        if speed == 1.0:  # read at every arrival of every stream: straight from the machine, in a third of the time
            self.now_s = time.monotonic  # type: ignore[method-assign]

    def now_s(self) -> float:
        return time.monotonic() * self.speed

    def wall_s(self) -> float:
        now_s = time.time()
        return now_s if self.speed == 1.0 else self._from_s + (now_s - self._from_s) * self.speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self.speed)

    async def sleep_until(self, due_s: float, wake: asyncio.Event | None = None) -> None:
        """Returns at `due_s` (monotonic seconds) or as soon as `wake` is set, and clears `wake`."""
        wait_s = max(0.0, due_s / self.speed - time.monotonic())
        if wake is None:
            await asyncio.sleep(wait_s)
            return
        try:
            await asyncio.wait_for(wake.wait(), wait_s)
        except TimeoutError:
            return
        wake.clear()
