"""Made-up traces with the shape of a real one. Owns the fit, whose few numbers are printed, and the generator.

Arrivals: a Poisson process whose rate follows the hour of the week and, within it, is multiplied each second by a gamma
variable, so that counts per second have the fitted ratio of variance to mean. Lengths: the fitted quantiles of prompt
and answer, drawn together through a Gaussian copula with their rank correlation.
"""

from __future__ import annotations

import csv
import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

from simulator.trace import Arrival, TraceError

QUANTILES = (0.0, 0.01, 0.02, 0.05, *(n / 20 for n in range(2, 19)), 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)
WINDOW_S = 60  # burstiness is judged inside windows of this length, so that the slow shape does not count as bursts
HOUR_S = 3600.0
WEEK_H = 168
FLAT = (1.0,) * WEEK_H
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Shape:
    """`week`: rate of each hour over the mean rate. `dispersion`: variance / mean of the counts of one second.
    Lengths at QUANTILES; `rank_correlation` of prompt and answer."""

    rate_rps: float
    dispersion: float
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    rank_correlation: float
    week: tuple[float, ...] = FLAT

    def scaled(self, factor: float) -> Shape:
        """That many times the requests; as with copies laid over each other, counts stay as dispersed as they are."""
        return replace(self, rate_rps=self.rate_rps * factor)


def fit(trace: Iterable[Arrival], week: tuple[float, ...] = FLAT) -> Shape:
    """Needs two requests at least. `week` comes from elsewhere: few traces last one."""
    arrivals = list(trace)
    if len(arrivals) < 2 or arrivals[-1].at_s <= 0:
        raise ValueError("a shape is fitted to at least two requests at different times")
    prompts, answers = [a.input_tokens for a in arrivals], [a.output_tokens for a in arrivals]
    rate_rps = (len(arrivals) - 1) / arrivals[-1].at_s
    together = rank_correlation(prompts, answers)
    return Shape(rate_rps, dispersion(arrivals), _quantiles(prompts), _quantiles(answers), together, week)


def generate(shape: Shape, duration_s: float, seed: int, start_hour: int = 0) -> Iterator[Arrival]:
    """Starts at `start_hour` of the week. Memory does not grow."""
    rng = random.Random(f"synthetic {seed}")
    slope = 2 * math.sin(math.pi * shape.rank_correlation / 6)  # of the normals, for this rank correlation
    rest = math.sqrt(max(0.0, 1 - slope * slope))
    for second in range(math.ceil(duration_s)):
        rate = shape.rate_rps * shape.week[(start_hour + int(second / HOUR_S)) % len(shape.week)]
        extra = (shape.dispersion - 1) / rate if rate > 0 else 0.0  # variance of the gamma variable, its mean 1
        if extra > 1e-9:
            rate *= rng.gammavariate(1 / extra, extra)
        at_s = second + (rng.expovariate(rate) if rate > 0 else math.inf)
        while at_s < min(second + 1, duration_s):
            first = rng.gauss(0, 1)
            second_normal = slope * first + rest * rng.gauss(0, 1)
            yield Arrival(at_s, _at(shape.input_tokens, first), _at(shape.output_tokens, second_normal))
            at_s += rng.expovariate(rate)


def read_week(path: Path, column: str = "requests") -> tuple[float, ...]:
    """Hourly totals (a CSV with one row per hour) as rates over their mean."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if column not in (rows.fieldnames or ()):
            raise TraceError(f"{path}:1: no column {column}")
        try:
            counts = [float(row[column]) for row in rows]
        except (ValueError, TypeError) as error:
            raise TraceError(f"{path}: {error}") from None
    if not counts or min(counts) < 0 or sum(counts) == 0:
        raise TraceError(f"{path}: column {column} holds no totals")
    mean = sum(counts) / len(counts)
    return tuple(count / mean for count in counts)


def dispersion(arrivals: Sequence[Arrival]) -> float:
    """Variance / mean of the counts of one second, inside windows of a minute; never below 1, the Poisson process'."""
    counts = [0] * (int(arrivals[-1].at_s) + 1)
    for arrival in arrivals:
        counts[int(arrival.at_s)] += 1
    squares = total = 0.0
    for start in range(0, max(1, len(counts) - WINDOW_S + 1), WINDOW_S):
        window = counts[start : start + WINDOW_S]
        mean = sum(window) / len(window)
        squares += sum((count - mean) ** 2 for count in window) * len(window) / max(1, len(window) - 1)
        total += sum(window)
    return max(1.0, squares / total) if total else 1.0


def rank_correlation(one: Sequence[int], other: Sequence[int]) -> float:
    """Spearman's, ties at their mean rank."""
    a, b = _ranks(one), _ranks(other)
    middle = (len(a) - 1) / 2
    squares_a = sum((x - middle) ** 2 for x in a)
    squares_b = sum((x - middle) ** 2 for x in b)
    if not squares_a or not squares_b:
        return 0.0
    return sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True)) / math.sqrt(squares_a * squares_b)


def _ranks(values: Sequence[int]) -> list[float]:
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            ranks[order[place]] = (start + end) / 2
        start = end + 1
    return ranks


def _quantiles(values: Sequence[int]) -> tuple[int, ...]:
    ordered = sorted(values)
    return tuple(ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))] for q in QUANTILES)


def _at(quantiles: Sequence[int], normal: float) -> int:
    """The length at a standard normal's place, on a straight line between quantiles."""
    q = NORMAL.cdf(normal)
    right = min(len(QUANTILES) - 1, bisect_right(QUANTILES, q))
    low, high = QUANTILES[right - 1], QUANTILES[right]
    share = (q - low) / (high - low)
    return max(1, round(quantiles[right - 1] + share * (quantiles[right] - quantiles[right - 1])))
