"""When the wait for an instance has lasted too long, asked now and then: one timer per arrival would cost more than the
arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Heard(Protocol):
    """A connection: `heard` is set when something comes, `paused` while it is not read from."""

    heard: bool
    paused: bool


class Watchdog:
    """Asks `check` after `look_s`, and again when that says, and ends the wait with what it raises. A connection that
    is not read from, for a slow client's sake, counts as heard."""

    def __init__(
        self, wire: Heard, waiter: asyncio.Future[None], check: Callable[[bool], float], look_s: float
    ) -> None:
        self._wire = wire
        self._waiter = waiter
        self._check = check
        self._loop = asyncio.get_running_loop()
        self.timer = self._loop.call_later(look_s, self._look)

    def _look(self) -> None:
        heard, self._wire.heard = self._wire.heard or self._wire.paused, False
        try:
            look_s = self._check(heard)
        except Exception as error:
            if not self._waiter.done():
                self._waiter.set_exception(error)
            return
        self.timer = self._loop.call_later(look_s, self._look)
