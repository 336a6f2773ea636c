"""A streamed answer on its way from an instance to the client: what runs once per arrival.

`Pipe` is the sink of an exchange. It is called with the bytes as they arrive and writes to the client at once: no task
is woken, nothing is parsed. It holds back what comes before the first content, so that an instance that fails early can
still be replaced by another one, and it judges when an instance has been silent for too long."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import ceil, inf

from core.clock import Clock
from core.errors import UpstreamTimeout
from gateway.client import Client, Headers
from gateway.config import Limits
from gateway.joined_stream import StreamEnded
from gateway.sse import EventStream, StreamBroken
from gateway.timing import Timing
from gateway.token_stream import FOLD_AT
from pools.shortcut import Passed, Shortcut

WATCH_S = 0.5  # between two looks at whether a stream has to leave its instance
HELD_LIMIT_BYTES = 1024 * 1024  # of events before the first content; more is handed on, and ends the chance of a retry


class Pipe:
    """`on_content` is called at the first content, `head` when the answer goes to the client, each at most once. The
    first content has to come by `begin_by_s`. `watch` is asked at every look whether the stream may stay where it is,
    and told whether it went on since; it raises what ends it here. `on_edge` is called when `edge` events have come,
    with their number, and says when it wants to be called again."""

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
        watch: Callable[[bool], None] | None = None,
        on_edge: Callable[[int], float] | None = None,
        edge: float = inf,
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
        self._watch = watch
        self._on_edge = on_edge
        self._edge = edge
        self._progress: int | None = None
        self._begun = False
        self._held = b""

    @property
    def look_s(self) -> float:
        """When `check` is worth calling: a stall is then noticed within a quarter of its time-out, an answer that does
        not begin at once, and within a second that the instance is to be left."""
        look_s = min(self._limits.stall_timeout_s, self._limits.first_byte_timeout_s) / 4
        if self._watch is not None and look_s > WATCH_S:
            look_s = WATCH_S
        return look_s if self._begun else max(0.0, min(look_s, self._begin_by_s - self._now_s()))

    def __call__(self, data: bytes) -> None:
        events = self._events
        before = events.events
        try:
            out = events.feed(data)
        except (StreamBroken, StreamEnded) as over:
            self._last_words(over)
            raise
        if not self._begun:
            self._first(out, before)
        elif out:
            self._timing.chunk(self._now_s(), events.events - before)
            self._client.write(out)
            if events.events >= self._edge and self._on_edge is not None and not events.done:
                self._edge = self._on_edge(events.events)

    def ease(self, shortcut: Shortcut) -> None:
        """Arrivals of text and nothing else may pass by the shortcut, as far as the next edge: it does with them what
        `__call__` does. `passed` has to be called before anything else is."""
        events, timing, write = self._events, self._timing, self._client.chunk_writer
        if not self._begun or timing.first_s is None or write is None:
            return
        plain = events.plain
        if plain is None:
            return
        answer, mark = plain
        asks = self._on_edge is not None and self._edge < inf
        room = ceil(self._edge) - events.events if asks else sys.maxsize
        bounds, total_s = tuple(timing.gap_times.bounds), timing.gap_times.total
        shortcut.open(
            write, self._now_s, answer, mark, bounds, room, FOLD_AT, timing.last_s, timing.tbt_limit_s, total_s
        )  # fmt: skip

    def passed(self, passed: Passed) -> None:
        self._events.events += passed.events
        self._timing.passed(passed)

    def check(self, heard: bool) -> float:
        """UpstreamTimeout when the answer should have begun, or gone on, by now; else seconds until it is worth asking
        again. `heard`: something came since the last call, or nothing could."""
        now_s = self._now_s()
        progress = self._events.progress
        if progress is not None and not self._client.full:  # comments keep a connection alive and are no answer
            heard, self._progress = heard and progress != self._progress, progress
        if heard:
            self._heard_s = now_s
        if not self._begun:
            if now_s >= self._begin_by_s:
                limit_s = self._limits.first_byte_timeout_s
                raise UpstreamTimeout(f"the instance did not begin its answer within {limit_s:g} s")
        elif now_s - self._heard_s >= self._limits.stall_timeout_s:
            raise UpstreamTimeout(f"the instance sent nothing for {self._limits.stall_timeout_s:g} s")
        if self._watch is not None and not self._events.done:
            self._watch(heard)
        return self.look_s

    def finish(self) -> None:
        """The body is complete: the client's answer ends too. StreamBroken if the answer is not whole."""
        try:
            rest = self._events.finish()
        except (StreamBroken, StreamEnded) as over:
            self._last_words(over)
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

    def _last_words(self, over: StreamBroken | StreamEnded) -> None:
        if self._client.started and over.before:
            self._client.write(over.before)
