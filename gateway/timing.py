"""What one request's times were, as the run log and the metrics want them. Owns the definitions of TTFT, TBT and
"attained" (docs/figures.md); reads no clock, it is told."""

from __future__ import annotations

import math
from bisect import bisect_left

from core.histogram import Histogram
from pools.shortcut import Passed

STAGES = ("parse", "predict", "queue", "connect", "relay")


class Timing:
    """Monotonic seconds. `received_s` = body fully received."""

    def __init__(self, received_s: float, ttft_limit_s: float, tbt_limit_s: float) -> None:
        self.received_s = received_s
        self.ttft_limit_s = ttft_limit_s
        self.tbt_limit_s = tbt_limit_s
        self.parse_s = 0.0  # reading what routing needs from the body
        self.predict_s = 0.0  # token count, prediction, class, what the instance is to be told
        self.queue_s = 0.0
        self.connect_s = 0.0  # handing the request to a connection, a new one or one kept alive
        self.relay_s = 0.0  # from the arrival of the first content, or of a whole answer, to its way out
        self.own_s = 0.0
        self.first_s: float | None = None
        self.last_s = received_s
        self.gaps = 0
        self.gaps_late = 0
        self.gap_times = Histogram()

    def chunk(self, now_s: float, events: int) -> None:
        """`events` whole events were handed to the client: after a gap g they count as `events` gaps of g / events."""
        if self.first_s is None:
            self.first_s = now_s
        elif events > 0:
            gap_s = (now_s - self.last_s) / events
            times = self.gap_times  # its `add`, without the call: this runs once per arrival of every stream
            times.counts[bisect_left(times.bounds, gap_s)] += events
            times.total += gap_s * events
            self.gaps += events
            if gap_s > self.tbt_limit_s:
                self.gaps_late += events
        self.last_s = now_s

    def passed(self, passed: Passed) -> None:
        """What `chunk` was not called for, because it passed by the shortcut."""
        times = self.gap_times
        times.counts = [a + b for a, b in zip(times.counts, passed.counts, strict=True)]
        times.total, self.last_s = passed.total_s, passed.last_s
        self.gaps += passed.gaps
        self.gaps_late += passed.late

    def stages(self) -> tuple[float, ...]:
        """The gateway's own seconds by STAGES. Queue: waiting for a slot, which is policy rather than cost."""
        return self.parse_s, self.predict_s, self.queue_s, self.connect_s, self.relay_s

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.received_s

    def attained(self, *, stream: bool, output_tokens: int, ended_s: float) -> bool:
        """Whether a completed request kept its objectives."""
        if not stream:
            return ended_s - self.received_s <= self.ttft_limit_s + output_tokens * self.tbt_limit_s
        ttft_s = self.ttft_s
        return ttft_s is not None and ttft_s <= self.ttft_limit_s and self.gaps_late <= math.ceil(0.01 * self.gaps)
