"""Ratios of paired measurements: the median and how far it can be trusted. Pure arithmetic."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 4000
LEAST_PAIRS = 3


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of the ratios of n rounds; `low` to `high` holds 95 % of the medians of resampled rounds; `scatter` is the
    standard deviation of single rounds, as a share."""

    median: float
    low: float
    high: float
    scatter: float
    n: int

    def as_json(self) -> dict[str, float | int]:
        return {
            "median": round(self.median, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "scatter": round(self.scatter, 4),
            "n": self.n,
        }


def bootstrap(values: Sequence[float], seed: int = 1) -> tuple[float, float]:
    """The 95 % interval of the median, by drawing the values again with replacement."""
    draw = random.Random(seed)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def scatter(values: Sequence[float]) -> float:
    """Standard deviation of the logarithms: the typical relative deviation of one value."""
    if len(values) < 2:
        return math.nan
    logs = [math.log(value) for value in values]
    mean = sum(logs) / len(logs)
    return math.sqrt(sum((log - mean) ** 2 for log in logs) / (len(logs) - 1))


def paired(ours: dict[int, float], theirs: dict[int, float]) -> list[float]:
    """ours / theirs of every round that both have; a round without a positive value on both sides says nothing."""
    rounds = sorted(ours.keys() & theirs.keys())
    return [ours[r] / theirs[r] for r in rounds if ours[r] > 0 and theirs[r] > 0]


def ratio(ours: dict[int, float], theirs: dict[int, float]) -> Ratio | None:
    """None with no pair at all. With fewer than three the interval is no more than their range."""
    values = paired(ours, theirs)
    if not values:
        return None
    low, high = bootstrap(values) if len(values) >= LEAST_PAIRS else (min(values), max(values))
    return Ratio(median(values), low, high, scatter(values), len(values))


def tells_apart(check: Ratio) -> float:
    """From a comparison of a gateway with itself: the smallest relative difference that is more than noise."""
    return max(abs(1 - check.low), abs(check.high - 1))


def rank(values: Sequence[float], q: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan
