"""Waiting for a slot, for asyncio callers. Owns the futures of those who wait; the decisions are the router's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from core.clock import Clock
from core.errors import NotFound, Overloaded, Unavailable
from core.request import Ask
from core.service import ServiceSpec
from pools.instance import Slot
from pools.queue import NONE, Ticket
from pools.router import Router


class Admitted:
    """One request's stay. A class of its own, because a generator-based context manager costs three times as much."""

    __slots__ = ("_admission", "_ask", "_max_wait_s", "_refused", "_slot")

    def __init__(
        self, admission: Admission, ask: Ask, refused: Mapping[str, float], max_wait_s: float | None
    ) -> None:  # fmt: skip
        self._admission = admission
        self._ask = ask
        self._refused = refused
        self._max_wait_s = max_wait_s
        self._slot: Slot | None = None

    async def __aenter__(self) -> Slot:
        self._slot = await self._admission.slot(self._ask, self._refused, self._max_wait_s)
        return self._slot

    async def __aexit__(self, *_: object) -> None:
        if self._slot is not None:
            self._slot.release()


class Admission:
    """The door of one service: `async with admission.admit(ask) as slot`."""

    def __init__(self, spec: ServiceSpec, clock: Clock, *, max_queue: int, max_wait_s: float, seed: int = 0) -> None:
        self._clock = clock
        self.max_wait_s = max_wait_s
        self._closed = False
        self.router = Router(spec, max_queue, seed, self._placed, self._failed, self._shed)
        self.router.bind(self.pump)

    def pump(self) -> None:
        """Call when an instance became ready or free."""
        if self.router.queued():
            self.router.pump(self._clock.now_s())

    def close(self) -> None:
        """The service is no more: nobody is let in, and whoever waits is told."""
        self._closed = True
        for ticket in self.router.waiting():
            self._failed(ticket, self._gone())

    def admit(self, ask: Ask, refused: Mapping[str, float] = NONE, max_wait_s: float | None = None) -> Admitted:
        """`async with admission.admit(ask) as slot`: waits for a slot, at most the service's `max_wait_s` or the one
        given, and gives it back whatever happens."""
        return Admitted(self, ask, refused, max_wait_s)

    async def slot(self, ask: Ask, refused: Mapping[str, float], max_wait_s: float | None) -> Slot:
        if self._closed:
            raise self._gone()
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        ticket = Ticket(ask, future, refused)
        slot = self.router.submit(ticket, self._clock.now_s())
        if slot is not None:
            return slot
        wait_s = self.max_wait_s if max_wait_s is None else max_wait_s
        try:
            async with asyncio.timeout(wait_s):
                return await future
        except BaseException as error:
            self.router.cancel(ticket)
            # The slot may have come in the same turn of the loop as the cancellation: it must not be lost.
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().release()
            if isinstance(error, TimeoutError):
                raise self._gave_up(wait_s) from None
            raise

    def _placed(self, ticket: Ticket, slot: Slot) -> None:
        future = ticket.waiter
        assert isinstance(future, asyncio.Future)
        if future.done():
            slot.release()
        else:
            future.set_result(slot)

    def _failed(self, ticket: Ticket, error: Exception) -> None:
        future = ticket.waiter
        assert isinstance(future, asyncio.Future)
        if not future.done():
            future.set_exception(error)

    def _shed(self, ticket: Ticket) -> None:
        late = f"{self.router.spec.name} is overloaded: the first token could not come in time"
        self._failed(ticket, Overloaded(late, code="shed_late", retry_after_s=2.0))

    def _gone(self) -> Exception:
        return NotFound(f"The model `{self.router.spec.name}` was removed.", param="model", code="model_not_found")

    def _gave_up(self, wait_s: float) -> Exception:
        waited = f"{wait_s:g} s"
        name = self.router.spec.name
        if not self.router.anyone_ready(self._clock.now_s()):
            return Unavailable(f"no instance of {name} became ready within {waited}", retry_after_s=5.0)
        return Unavailable(f"{name} had no free slot within {waited}", code="queue_timeout", retry_after_s=2.0)
