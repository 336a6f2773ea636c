"""The queue of one pool: earliest deadline first within each of three ranks. Synchronous; knows no clock and
no network."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import chain, count, islice
from types import MappingProxyType
from typing import Protocol

from core.request import Ask

Entry = tuple[float, int, "Ticket"]
FIRST, OVER_SHARE, LAST = range(3)  # LAST: who is late wherever it goes, and whoever is in no hurry
RANKS = (FIRST, OVER_SHARE, LAST)
NONE: Mapping[str, float] = MappingProxyType({})


class Waiter(Protocol):
    """Whoever is told of the slot: a future, for asyncio callers. `done` once nobody waits any more."""

    def done(self) -> bool: ...


class Ticket:
    """A request that waits. `refused`: the instances that failed it, by id, and when; it goes to one of them again only
    if that has passed a health probe which began later. `late`: it cannot be in time any more."""

    __slots__ = ("ask", "gone", "late", "rank", "refused", "waiter")

    def __init__(self, ask: Ask, waiter: Waiter | None, refused: Mapping[str, float] = NONE) -> None:
        self.ask = ask
        self.waiter = waiter
        self.refused = refused
        self.gone = False
        self.late = False
        self.rank = LAST if ask.batch and not refused else FIRST  # an answer that goes on waits behind nobody

    @property
    def abandoned(self) -> bool:
        """Its client has left or was told already; the ticket itself is taken out a moment later."""
        return self.waiter is not None and self.waiter.done()


class DeadlineQueue:
    """Removal marks a ticket as gone and lets its heap drop it later, so that it costs nothing."""

    def __init__(self) -> None:
        self._heaps: tuple[list[Entry], ...] = tuple([] for _ in RANKS)
        self._waiting = [0 for _ in RANKS]
        self._order = count()
        self.waiting = 0  # of all ranks

    def __len__(self) -> int:
        return self.waiting

    def push(self, ticket: Ticket) -> None:
        heapq.heappush(self._heaps[ticket.rank], (ticket.ask.deadline_s, next(self._order), ticket))
        self._waiting[ticket.rank] += 1
        self.waiting += 1

    def put_last(self, ticket: Ticket) -> None:
        """It is late wherever it goes: those who are not go first from now on."""
        left, ticket.rank, ticket.late = ticket.rank, LAST, True
        self._left(left)
        self.push(ticket)

    def remove(self, ticket: Ticket) -> None:
        if not ticket.gone:
            ticket.gone = True
            self._left(ticket.rank)

    def first(self, limit: int) -> list[Ticket]:
        """The `limit` next tickets, in order; they stay queued."""
        return list(islice(chain.from_iterable(self._first(rank, limit) for rank in RANKS), limit))

    def first_of(self, rank: int) -> Ticket | None:
        return next(iter(self._first(rank, 1)), None)

    def __iter__(self) -> Iterator[Ticket]:
        return chain.from_iterable((entry[2] for entry in sorted(self._live(rank))) for rank in RANKS)

    def _first(self, rank: int, limit: int) -> list[Ticket]:
        heap = self._heaps[rank]
        while heap and not _is_live(heap[0], rank):
            heapq.heappop(heap)
        if not heap or limit < 1:
            return []
        if self._waiting[rank] == 1 or limit == 1:
            return [heap[0][2]]
        return [entry[2] for entry in heapq.nsmallest(limit, self._live(rank))]

    def _live(self, rank: int) -> Iterator[Entry]:
        return (entry for entry in self._heaps[rank] if _is_live(entry, rank))

    def _left(self, rank: int) -> None:
        self._waiting[rank] -= 1
        self.waiting -= 1
        heap = self._heaps[rank]
        if len(heap) > 64 and self._waiting[rank] * 2 < len(heap):
            heap[:] = [*self._live(rank)]
            heapq.heapify(heap)


def _is_live(entry: Entry, rank: int) -> bool:
    ticket = entry[2]
    return not ticket.gone and ticket.rank == rank
