"""What the dashboard remembers of the past: series of samples at three resolutions, and sums over a sliding window.
Owns no clock; it is told the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil

from msgspec import Struct

Row = tuple[float, ...]  # Unix time, then one value per column
RESOLUTIONS = ((1.0, 600), (10.0, 720), (120.0, 720))  # ten minutes, two hours, a day


class Tier:
    """Means over `step_s`, the newest `keep` of them."""

    def __init__(self, step_s: float, keep: int) -> None:
        self.step_s = step_s
        self.rows: deque[Row] = deque(maxlen=keep)
        self._sums: list[float] = []
        self._count = 0
        self._slot = 0

    def add(self, t: float, values: Sequence[float]) -> None:
        slot = int(t // self.step_s)
        if self._count and slot != self._slot:
            self.rows.append((self._slot * self.step_s, *(total / self._count for total in self._sums)))
            self._count = 0
        self._slot = slot
        self._sums = [a + b for a, b in zip(self._sums, values, strict=True)] if self._count else list(values)
        self._count += 1


class Series:
    """One service's past."""

    def __init__(self) -> None:
        self.tiers = tuple(Tier(step_s, keep) for step_s, keep in RESOLUTIONS)

    def add(self, t: float, values: Sequence[float]) -> None:
        for tier in self.tiers:
            tier.add(t, values)

    def of(self, window_s: float) -> Tier:
        """The finest tier that reaches back so far."""
        return next((tier for tier in self.tiers if tier.step_s * (tier.rows.maxlen or 0) >= window_s), self.tiers[-1])


class Tally(Struct):
    """Requests that ended: how many were judged and kept their objectives, their output tokens; and the joules of
    requests whose bills were closed, about a second later."""

    ended: int = 0
    judged: int = 0
    attained: int = 0
    tokens: int = 0
    good_tokens: int = 0
    joules: float = 0.0


NOTHING = Tally()


class Window:
    """Sums of the last `length_s` seconds, and the newest TTFTs among them."""

    def __init__(self, length_s: float = 300.0, ttfts: int = 1000) -> None:
        self._length_s = length_s
        self._parts: deque[tuple[float, Tally]] = deque()
        self._ttfts: deque[tuple[float, float]] = deque(maxlen=ttfts)
        self.sum = Tally()
        self.modelled_t: float | None = None  # when joules without a counter behind them were added last

    def add(self, t: float, part: Tally, ttfts_s: Sequence[float] = ()) -> None:
        if part != NOTHING:
            self._parts.append((t, part))
            self.sum = _joined(self.sum, part, 1)
        self._ttfts.extend((t, ttft_s) for ttft_s in ttfts_s)
        self.forget(t)

    def spent(self, t: float, joules: float, *, modelled: bool) -> None:
        """A bill was closed."""
        self.add(t, Tally(joules=joules))
        if modelled:
            self.modelled_t = t

    def forget(self, t: float) -> None:
        if self.modelled_t is not None and self.modelled_t <= t - self._length_s:
            self.modelled_t = None
        while self._parts and self._parts[0][0] <= t - self._length_s:
            self.sum = _joined(self.sum, self._parts.popleft()[1], -1)
        while self._ttfts and self._ttfts[0][0] <= t - self._length_s:
            self._ttfts.popleft()

    def ttft_s(self, share: float) -> float | None:
        """Nearest rank over the TTFTs in the window; None without any."""
        values = sorted(ttft_s for _, ttft_s in self._ttfts)
        return values[max(0, ceil(share * len(values)) - 1)] if values else None


def _joined(a: Tally, b: Tally, sign: int) -> Tally:
    return Tally(
        a.ended + sign * b.ended, a.judged + sign * b.judged, a.attained + sign * b.attained,
        a.tokens + sign * b.tokens, a.good_tokens + sign * b.good_tokens, a.joules + sign * b.joules,
    )  # fmt: skip
