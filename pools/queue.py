"""The queue of one pool: earliest deadline first, with a limit. Synchronous; knows no clock and no network."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Protocol

from core.request import Ask


class Waiter(Protocol):
    """Whoever is told of the slot: a future, for asyncio callers. `done` once nobody waits any more."""

    def done(self) -> bool: ...


class Ticket:
    """A request that waits. `refused` are ids of instances it must not go to again."""

    __slots__ = ("ask", "gone", "refused", "waiter")

    def __init__(self, ask: Ask, waiter: Waiter | None, refused: frozenset[str] = frozenset()) -> None:
        self.ask = ask
        self.waiter = waiter
        self.refused = refused
        self.gone = False

    @property
    def abandoned(self) -> bool:
        """Its client has left or was told already; the ticket itself is taken out a moment later."""
        return self.waiter is not None and self.waiter.done()


class DeadlineQueue:
    """Removal marks a ticket as gone and lets the heap drop it later, so that it costs nothing."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Ticket]] = []
        self._order = count()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def push(self, ticket: Ticket) -> None:
        heapq.heappush(self._heap, (ticket.ask.deadline_s, next(self._order), ticket))
        self._waiting += 1

    def remove(self, ticket: Ticket) -> None:
        if not ticket.gone:
            ticket.gone = True
            self._waiting -= 1
            if len(self._heap) > 64 and self._waiting * 2 < len(self._heap):
                self._heap = [entry for entry in self._heap if not entry[2].gone]
                heapq.heapify(self._heap)

    def first(self, limit: int) -> list[Ticket]:
        """The `limit` tickets with the earliest deadlines, in order; they stay queued."""
        while self._heap and self._heap[0][2].gone:
            heapq.heappop(self._heap)
        if self._waiting <= 1 or limit == 1:
            return [self._heap[0][2]] if self._heap else []
        live = (entry for entry in self._heap if not entry[2].gone)
        return [entry[2] for entry in heapq.nsmallest(limit, live)]

    def __iter__(self) -> Iterator[Ticket]:
        return (entry[2] for entry in sorted(self._heap) if not entry[2].gone)
