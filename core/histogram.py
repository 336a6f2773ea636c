"""Histograms with fixed buckets, cheap to add to: one bisect per value and no lock. Read by /metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
SHORT_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class Histogram:
    """Counts per bucket (the last is +Inf) and the sum of values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def merge(self, other: Histogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    @property
    def count(self) -> int:
        return sum(self.counts)
