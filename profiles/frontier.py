"""The time-energy frontier of one load: operating points that no other beats in TTFT, TBT, joules and GPUs at once.

Precomputed and sorted, so that "least energy under this deadline" is a lookup, and so are the costs of one more GPU and
of one looser millisecond. It judges rows as they were measured: nothing is smoothed, nothing lies between two rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from profiles.profile import UNKNOWN, Point
from profiles.profile_checks import held_rows
from profiles.query import Limits, NotFeasible

DEADLINES = {"ttft": "ttft_p99_s", "tbt": "tbt_p99_s"}


@dataclass(frozen=True, slots=True)
class Step:
    """A tread of the staircase: from `deadline_s` on, `point` is the cheapest."""

    deadline_s: float
    point: Point


@dataclass(frozen=True, slots=True)
class Looser:
    """The next saving that a looser deadline buys: `extra_s` more gives `point`, `saved_j` less per output token."""

    extra_s: float
    saved_j: float
    point: Point

    @property
    def j_per_ms(self) -> float:
        return self.saved_j / (self.extra_s * 1e3)


@dataclass(frozen=True, slots=True)
class GpuStep:
    """The cheapest point that `gpus` GPUs or fewer allow, and what it saves against the step before."""

    gpus: int
    point: Point
    saved_j: float
    j_per_gpu: float


@dataclass(frozen=True, slots=True)
class Frontier:
    """The Pareto set of one load, joules per output token ascending. `of`: how many points it was chosen from."""

    load: str
    points: tuple[Point, ...]
    of: int

    def cheapest(self, limits: Limits, gpus: float = math.inf) -> Point | NotFeasible:
        """The least joules per output token under these deadlines with at most so many GPUs."""
        for point in self.points:
            if point.tp <= gpus and _within(point, limits):
                return point
        return NotFeasible(self._why_not(limits, gpus))

    def staircase(self, deadline: str, limits: Limits, gpus: float = math.inf) -> tuple[Step, ...]:
        """How the least energy falls as one deadline ("ttft" or "tbt") grows while the other stays as in `limits`."""
        name = DEADLINES[deadline]
        others = _without(limits, deadline)
        allowed = [p for p in self.points if p.tp <= gpus and _within(p, others) and getattr(p, name) < UNKNOWN]
        steps: list[Step] = []
        # Of equal deadlines the cheaper comes first, so that each tread is a real step down.
        for point in sorted(allowed, key=lambda p: (getattr(p, name), p.j_per_output_token)):
            if not steps or point.j_per_output_token < steps[-1].point.j_per_output_token:
                steps.append(Step(getattr(point, name), point))
        return tuple(steps)

    def looser(self, deadline: str, limits: Limits, gpus: float = math.inf) -> Looser | None:
        """What the next useful loosening of one deadline costs and saves; None if no loosening helps, or nothing fits
        now."""
        now = self.cheapest(limits, gpus)
        at_s = limits.ttft_s if deadline == "ttft" else limits.tbt_s
        if isinstance(now, NotFeasible) or math.isinf(at_s):
            return None
        for step in self.staircase(deadline, limits, gpus):
            saved_j = now.j_per_output_token - step.point.j_per_output_token
            if step.deadline_s > at_s and saved_j > 0:
                return Looser(step.deadline_s - at_s, saved_j, step.point)
        return None

    def by_gpus(self, limits: Limits) -> tuple[GpuStep, ...]:
        """The cheapest point for each number of GPUs that changes the answer; `j_per_gpu` is the saving of one more."""
        steps: list[GpuStep] = []
        for gpus in sorted({point.tp for point in self.points}):
            point = self.cheapest(limits, gpus)
            if isinstance(point, NotFeasible) or (steps and point == steps[-1].point):
                continue
            saved_j = steps[-1].point.j_per_output_token - point.j_per_output_token if steps else 0.0
            steps.append(GpuStep(gpus, point, saved_j, saved_j / (gpus - steps[-1].gpus) if steps else 0.0))
        return tuple(steps)

    def _why_not(self, limits: Limits, gpus: float) -> str:
        small = [p for p in self.points if p.tp <= gpus]
        if not small:
            return f"no point of {self.load} runs on {gpus:g} GPUs" if self.points else f"no point of {self.load} held"
        asked = [
            (told, name, limit)
            for told, name, limit in (("TTFT p99", "ttft_p99_s", limits.ttft_s), ("TBT p99", "tbt_p99_s", limits.tbt_s))
            if limit < math.inf
        ]
        for told, name, limit in asked:
            best = min(getattr(p, name) for p in small)
            if best == UNKNOWN:
                return f"{told} of {self.load} is not in the profile, so it can have no limit"
            if best > limit:
                return f"the least {told} of {self.load} is {best * 1e3:.4g} ms, above {limit * 1e3:.4g} ms"
        return f"each limit can be kept for {self.load}, but no point keeps both"


def frontier(points: Iterable[Point], load: str) -> Frontier:
    """The Pareto set of `load`. Points of equal merit stay all; those with unknown joules or past a cliff are left
    out."""
    mine = [point for point in points if point.load == load]
    rows = sorted(row for held in held_rows(mine).values() for row in held)
    candidates = [mine[row] for row in rows if mine[row].j_per_output_token < UNKNOWN]
    kept = [candidates[i] for i in pareto([merit(point) for point in candidates])]
    kept.sort(key=lambda p: (p.j_per_output_token, p.tbt_p99_s, p.ttft_p99_s, p.tp, p.clock_mhz))
    return Frontier(load, tuple(kept), len(candidates))


def frontiers(points: Sequence[Point]) -> dict[str, Frontier]:
    return {load: frontier(points, load) for load in dict.fromkeys(point.load for point in points)}


def merit(point: Point) -> tuple[float, float, float, float]:
    """What the frontier weighs; less is better in each."""
    return (point.ttft_p99_s, point.tbt_p99_s, point.j_per_output_token, float(point.tp))


def pareto(merits: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the rows that no other row beats: at most as large everywhere and smaller somewhere."""
    if not merits:
        return []
    table = np.asarray(merits, dtype=float)
    kept = []
    for index, row in enumerate(table):
        no_worse = np.all(table <= row, axis=1)
        better = np.any(table < row, axis=1)
        if not np.any(no_worse & better):
            kept.append(index)
    return kept


def _within(point: Point, limits: Limits) -> bool:
    return point.ttft_p99_s <= limits.ttft_s and point.tbt_p99_s <= limits.tbt_s


def _without(limits: Limits, deadline: str) -> Limits:
    return Limits(math.inf, limits.tbt_s) if deadline == "ttft" else Limits(limits.ttft_s, math.inf)
