"""Times pooled into bins of equal ratio, so that memory does not grow with the trace. Owns counts only.

A quantile is the nearest rank's bin, answered by the bin's upper edge: at most 0.25 % above the true value, never
below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

RATIO = 1.0025
SMALLEST_S = 1e-5
LARGEST_S = 1e6
PER_LOG = 1 / math.log(RATIO)
BINS = math.ceil(math.log(LARGEST_S / SMALLEST_S) * PER_LOG) + 1


def bin_of(seconds: float) -> int:
    if seconds <= SMALLEST_S:
        return 0
    return min(BINS - 1, math.ceil(math.log(seconds / SMALLEST_S) * PER_LOG - 1e-9))


def upper_edge_s(index: int) -> float:
    return SMALLEST_S * math.exp(index / PER_LOG)


@dataclass(slots=True)
class Sketch:
    """Counts per bin. Values below 10 us count as 10 us."""

    counts: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def add(self, seconds: float, times: int = 1) -> None:
        index = bin_of(seconds)
        self.counts[index] = self.counts.get(index, 0) + times
        self.count += times

    def merge(self, other: Sketch) -> None:
        for index, times in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + times
        self.count += other.count

    def quantile(self, q: float) -> float | None:
        """Nearest rank; None of nothing."""
        if not self.count:
            return None
        rank = max(1, math.ceil(q * self.count))
        for index in sorted(self.counts):
            rank -= self.counts[index]
            if rank <= 0:
                return upper_edge_s(index)
        raise AssertionError("counts and count disagree")


class GapSketches:
    """Gaps between output tokens, pooled per group of requests (a group is a class). One run of decode steps gives the
    same gaps to everybody in the batch, so it costs one bin however many sequences there are."""

    def __init__(self, groups: int) -> None:
        self.count = groups
        self._bins: dict[int, list[int]] = {}  # counts of each group

    def add(self, seconds: float, group: int) -> None:
        self._row(bin_of(seconds))[group] += 1

    def add_run(self, first_s: float, last_s: float, steps: int, members: Sequence[int]) -> None:
        """`steps` gaps that rise evenly from `first_s` to `last_s`, for `members[g]` sequences of each group g."""
        low = bin_of(first_s)
        high = low if last_s == first_s else bin_of(last_s)
        if low == high:
            self._add(low, steps, members)
            return
        slope_s, done = (last_s - first_s) / (steps - 1), 0
        for index in range(low, high):
            until = min(steps, math.floor((upper_edge_s(index) - first_s) / slope_s) + 1)
            if until > done:
                self._add(index, until - done, members)
                done = until
        if steps > done:
            self._add(high, steps - done, members)

    def group(self, group: int) -> Sketch:
        counts = {index: row[group] for index, row in self._bins.items() if row[group]}
        return Sketch(counts, sum(counts.values()))

    def pooled(self) -> Sketch:
        counts = {index: sum(row) for index, row in self._bins.items()}
        return Sketch(counts, sum(counts.values()))

    def _add(self, index: int, times: int, members: Sequence[int]) -> None:
        row = self._row(index)
        for group, count in enumerate(members):
            if count:
                row[group] += count * times

    def _row(self, index: int) -> list[int]:
        row = self._bins.get(index)
        if row is None:
            row = self._bins[index] = [0] * self.count
        return row
