"""Simulated time: a heap of what happens next. Owns now; knows nothing of requests or instances.

Order is by time, then by when it was scheduled, so the same calls give the same run. What changes several times at one
instant is settled once, after everything of that instant has happened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Happening = Callable[[], None]


class SimulationOver(Exception):
    """Nothing is left to simulate: raised out of a sleep, which ends whoever sleeps."""


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.over = False
        self.happened = 0
        self._heap: list[tuple[float, int, Happening]] = []
        self._order = 0
        self._unsettled: dict[Happening, None] = {}

    def at(self, due_s: float, happening: Happening) -> None:
        """Not before now: what is due earlier happens next."""
        self._order += 1
        heapq.heappush(self._heap, (max(due_s, self.now_s), self._order, happening))

    def settle_after(self, settle: Happening) -> None:
        """Calls `settle` once when this instant is done. It may schedule, but must change nothing at this instant."""
        self._unsettled[settle] = None

    def run_until(self, due_s: float, woken: Callable[[], bool]) -> None:
        """Runs to `due_s`, or to the end of the instant in which `woken` becomes true. SimulationOver at the end."""
        heap = self._heap
        self._settle()
        while not self.over:
            if woken():
                return
            if not heap or heap[0][0] > due_s:
                self.now_s = max(self.now_s, due_s)
                return
            now_s = self.now_s = heap[0][0]
            while heap and heap[0][0] <= now_s:
                heapq.heappop(heap)[2]()
                self.happened += 1
            self._settle()
        raise SimulationOver

    def _settle(self) -> None:
        if self._unsettled:
            unsettled, self._unsettled = self._unsettled, {}
            for settle in unsettled:
                settle()
