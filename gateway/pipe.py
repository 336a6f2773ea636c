"""A streamed answer on its way from an instance to the client: what runs once per arrival.

`Pipe` is the sink of an exchange. It is called with the bytes as they arrive and writes to the client at once: no task
is woken, nothing is parsed. It holds back what comes before the first content, so that an instance that fails early can
still be replaced by another one, and it judges when an instance has been silent for too long."""

from __future__ import annotations

from collections.abc import Callable

from core.clock import Clock
from core.errors import UpstreamTimeout
from gateway.client import Client, Headers
from gateway.config import Limits
from gateway.sse import EventStream, StreamBroken
from gateway.timing import Timing

HELD_LIMIT_BYTES = 1024 * 1024  # of events before the first content; more is handed on, and ends the chance of a retry


class Pipe:
    """`on_content` is called at the first content, `head` when the answer goes to the client, each at most once. The
    first content has to come by `begin_by_s`."""

    def __init__(
        self,
        events: EventStream,
        timing: Timing,
        client: Client,
        clock: Clock,
        limits: Limits,
        begin_by_s: float,
        *,
        on_content: Callable[[], None],
        head: Callable[[], tuple[int, Headers]],
    ) -> None:
        self._events = events
        self._timing = timing
        self._client = client
        self._now_s = clock.now_s
        self._limits = limits
        self._begin_by_s = begin_by_s
        self._heard_s = clock.now_s()
        self._on_content = on_content
        self._head = head
        self._begun = False
        self._held = b""

    @property
    def look_s(self) -> float:
        """How often `check` is worth calling: a time-out is then noticed within a quarter of it."""
        return min(self._limits.stall_timeout_s, self._limits.first_byte_timeout_s) / 4

    def __call__(self, data: bytes) -> None:
        events = self._events
        before = events.events
        try:
            out = events.feed(data)
        except StreamBroken as broken:
            self._last_words(broken)
            raise
        if not self._begun:
            self._first(out, before)
        elif out:
            self._timing.chunk(self._now_s(), events.events - before)
            self._client.write(out)

    def check(self, heard: bool) -> None:
        """UpstreamTimeout when the answer should have begun, or gone on, by now. `heard`: something came since the
        last call, or nothing could."""
        now_s = self._now_s()
        if heard:
            self._heard_s = now_s
        if not self._begun:
            if now_s >= self._begin_by_s:
                limit_s = self._limits.first_byte_timeout_s
                raise UpstreamTimeout(f"the instance did not begin its answer within {limit_s:g} s")
        elif now_s - self._heard_s >= self._limits.stall_timeout_s:
            raise UpstreamTimeout(f"the instance sent nothing for {self._limits.stall_timeout_s:g} s")

    def finish(self) -> None:
        """The body is complete: the client's answer ends too. StreamBroken if the answer is not whole."""
        try:
            rest = self._events.finish()
        except StreamBroken as broken:
            self._last_words(broken)
            raise
        if not self._client.started:
            self._client.start(*self._head())
            rest = self._held + rest
        self._client.end(rest)

    def _first(self, out: bytes, before: int) -> None:
        """An arrival before there was content."""
        arrived_s = self._now_s()
        out = self._hold(out)
        if out:
            self._timing.chunk(self._now_s(), self._events.events - before)
            self._client.write(out)
            self._timing.relay_s = self._now_s() - arrived_s

    def _hold(self, out: bytes) -> bytes:
        """What may go to the client now: nothing before there is content among it."""
        if self._events.content:
            self._begun = True
            self._on_content()
        if self._client.started:
            return out
        self._held += out
        if not self._held or not (self._begun or len(self._held) > HELD_LIMIT_BYTES):
            return b""
        self._client.start(*self._head())
        held, self._held = self._held, b""
        return held

    def _last_words(self, broken: StreamBroken) -> None:
        if self._client.started and broken.before:
            self._client.write(broken.before)
