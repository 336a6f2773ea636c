"""The way of an answer from the engine to its HTTP writer. Owns text assembly, stop strings and what is not yet taken.

The engine loop pushes tokens (synchronously, at a step's end); the request's task takes what has gathered. So a slow
client gets several tokens in one chunk, as from the real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.engine import Ask
from simulator.tokens import TextDecoder


@dataclass(frozen=True, slots=True)
class Delta:
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: str | int | None
    count: int  # tokens of the answer so far


class Outlet:
    """One sequence's answer."""

    __slots__ = (
        "_closed",
        "_decoder",
        "_hold",
        "_ids",
        "_include_stop",
        "_parts",
        "_sent",
        "_stops",
        "_text",
        "arrived_s",
        "ask",
        "count",
        "finish_reason",
        "first_s",
        "index",
        "last_s",
        "max_tokens",
        "stop_reason",
    )

    def __init__(
        self, index: int, ask: Ask, decoder: TextDecoder, stops: Sequence[str], include_stop: bool, arrived_s: float
    ) -> None:
        self.index = index
        self.ask = ask
        self.arrived_s = arrived_s
        self.first_s = 0.0
        self.last_s = 0.0
        self.count = 0
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._decoder = decoder
        self._stops = stops
        self._include_stop = include_stop
        # As the real server: what might become a stop string is held back, one character less than the longest.
        self._hold = max(map(len, stops)) - 1 if stops and not include_stop else 0
        self._ids: list[int] = []
        self._parts: list[str] = []
        self._text = ""
        self._sent = 0
        self._closed = False  # the last delta was taken

    def push(self, token: int, finish_reason: str | None, stop_reason: int | None) -> bool:
        """Takes a token over; True when a stop string ends the answer here although the engine would go on."""
        self.count += 1
        self._ids.append(token)
        stopped_by_id = stop_reason is not None and not self._include_stop
        text = "" if stopped_by_id else self._decoder.push(token)
        if self._stops:
            self._text += text
            if self.count > self.ask.min_tokens and self._cut_at_stop(len(text)):
                return finish_reason is None
        elif text:
            self._parts.append(text)
        self.finish_reason, self.stop_reason = finish_reason, stop_reason
        return False

    def end(self, finish_reason: str) -> None:
        if self.finish_reason is None:
            self.finish_reason = finish_reason

    @property
    def waiting(self) -> bool:
        """Something was pushed, or the answer was ended, since the last `take`."""
        return bool(self._ids) or (self.finish_reason is not None and not self._closed)

    def take(self) -> Delta | None:
        """What came since the last call; None if nothing."""
        if self._stops:
            end = len(self._text) if self.finish_reason else max(self._sent, len(self._text) - self._hold)
            text, self._sent = self._text[self._sent : end], end
        else:
            text = self._parts[0] if len(self._parts) == 1 else "".join(self._parts)
            self._parts.clear()
        if not self.waiting:
            return None
        self._closed = self.finish_reason is not None
        ids, self._ids = self._ids, []
        return Delta(text, ids, self.finish_reason, self.stop_reason, self.count)

    def _cut_at_stop(self, new_characters: int) -> bool:
        for stop in self._stops:
            at = self._text.find(stop, max(0, len(self._text) - new_characters - len(stop) + 1))
            if at >= 0:
                self._text = self._text[: at + len(stop) if self._include_stop else at]
                self.finish_reason, self.stop_reason = "stop", stop
                return True
        return False


@dataclass(slots=True, eq=False)
class Ticket:
    """One HTTP request in the engine: its answers, and the bell that says that something came."""

    outlets: list[Outlet]
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False
    dead: bool = False  # the engine died under it

    @property
    def finished(self) -> bool:
        return all(outlet.finish_reason is not None for outlet in self.outlets)
