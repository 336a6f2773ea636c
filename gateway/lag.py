"""How late the event loop is. All of the gateway runs in one: when it cannot keep up, every stream gets slower at once,
and a new request only makes it worse.

Owns the measurement; who refuses what because of it is decided in gateway/serve.py."""

from __future__ import annotations

from collections import deque

from core.clock import Clock
from core.histogram import SHORT_SECONDS, Histogram

INTERVAL_S = 0.1
SUSTAINED = 5  # measurements in a row: one long step (a large body, a reload) is no overload


class LoopLag:
    """`run` is a task for ever. `sustained_s` is the least lag of the last half second, `last_s` the newest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[float] = deque([0.0] * SUSTAINED, SUSTAINED)
        self.sustained_s = 0.0
        self.histogram = Histogram(SHORT_SECONDS)

    @property
    def last_s(self) -> float:
        return self._recent[-1]

    def note(self, lag_s: float) -> None:
        self._recent.append(lag_s)
        self.sustained_s = min(self._recent)  # every request asks for it
        self.histogram.add(lag_s)

    async def run(self) -> None:
        while True:
            due_s = self._clock.now_s() + INTERVAL_S
            await self._clock.sleep_until(due_s)
            self.note(max(0.0, self._clock.now_s() - due_s))
