"""Which load to probe next on one curve: bisection to the cliff, then the place where the curve bends most. Pure.

Knows nothing of clocks, budgets or instances; measure_sweep asks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from profiles.profile import Point

FIRST_RPS = 1.0
LEAST_RPS = 0.02  # an instance that cannot hold one request in 50 s is of no use
RESOLUTION = 1.25  # the cliff is known when its two sides are this close; objectives break well below it
NEAR = 0.1  # the hint is tried this much below and above
LOW_SHARE = 0.15  # of saturation: the lowest load of a curve
# What a curve must get right, and how much of the tolerance a quantity may use: a p99 of a short window is noise, and
# the median gap jumps where more than half of the steps begin to carry prefill.
QUANTITIES = {"watts": 1.0, "gap_s": 1.0, "ttft_p50_s": 1.0, "tbt_p50_s": 4.0, "tbt_p99_s": 4.0, "ttft_p99_s": 4.0}


def quantity(point: Point, name: str) -> float:
    """A field of a point, or `gap_s`: the mean gap between tokens, smooth where the median jumps."""
    if name == "gap_s":
        return point.running / max(1e-9, point.output_tps)
    return float(getattr(point, name))


def rounded(rps: float) -> float:
    """Three digits: a load is a key, and one that a person may want to type again."""
    return float(f"{rps:.3g}")


@dataclass(frozen=True, slots=True)
class Bracket:
    """`good` was held, `bad` was not; 0 and infinity while not known."""

    good: float = 0.0
    bad: float = math.inf

    @classmethod
    def of(cls, points: Iterable[Point]) -> Bracket:
        """Where a load was held above one that was not, the lower verdict counts."""
        rows = list(points)
        bad = min((p.offered_rps for p in rows if p.saturated), default=math.inf)
        return cls(max((p.offered_rps for p in rows if not p.saturated and p.offered_rps < bad), default=0.0), bad)

    @property
    def known(self) -> bool:
        return self.good > 0 and self.bad <= self.good * RESOLUTION

    @property
    def saturation(self) -> float:
        """The best guess of the cliff."""
        if self.good <= 0:
            return 0.0
        return math.sqrt(self.good * min(self.bad, self.good * RESOLUTION))


def next_load(bracket: Bracket, hint: float = 0.0) -> float | None:
    """The next load of the bisection, geometric; None when the cliff is known, or lies too low to matter.

    `hint`: where the cliff is thought to be (a neighbour's, or the throughput of an overloaded window); it is tried
    from both sides first, which settles it in two probes when it is right.
    """
    good, bad = bracket.good, bracket.bad
    if bracket.known:
        return None
    below, above = hint * (1 - NEAR), hint * (1 + NEAR)
    if math.isinf(bad):
        wanted = FIRST_RPS if good == 0 else good * 2
        if good * 1.01 < below:
            wanted = below
        elif 0 < good * 1.01 < above:
            wanted = above
        return rounded(wanted)
    if good == 0:
        if bad <= 1.5 * LEAST_RPS:
            return None
        return rounded(max(min(max(below, bad / 8), bad * 0.7), LEAST_RPS))
    margin = math.sqrt(RESOLUTION) * 0.99
    if good * 1.01 < below < bad / margin and below > good * margin:
        return rounded(below)
    if good * margin < above < bad / 1.01:
        return rounded(above)
    return rounded(math.sqrt(good * bad))


def bend(points: Sequence[Point], tolerance: float) -> tuple[float, float] | None:
    """(load, predicted error) where linear interpolation is expected to be furthest off; None if it nowhere matters.

    The error of a chord over h is |f''| h^2 / 8; f'' comes from the divided differences around it, of logarithms, so
    that the error is a share. `points` are held loads of one curve, ascending.
    """
    if len(points) < 2:
        return None
    if len(points) == 2:
        return rounded((points[0].offered_rps + points[1].offered_rps) / 2), math.inf
    worst = (0.0, 0.0)
    top = points[-1].offered_rps
    for index in range(len(points) - 1):
        low, high = points[index].offered_rps, points[index + 1].offered_rps
        if high - low < 0.08 * top:
            continue
        error = max(chord_error(points, index, name) / slack for name, slack in QUANTITIES.items())
        if error > worst[1]:
            worst = ((low + high) / 2, error)
    return (rounded(worst[0]), worst[1]) if worst[1] > tolerance else None


def chord_error(points: Sequence[Point], index: int, name: str) -> float:
    """Expected relative error in the middle between points `index` and `index + 1`."""
    xs = [p.offered_rps for p in points]
    ys = [math.log(max(1e-9, quantity(p, name))) for p in points]
    curvature = 0.0
    for first in (index - 1, index):
        if first >= 0 and first + 2 < len(points):
            left = (ys[first + 1] - ys[first]) / (xs[first + 1] - xs[first])
            right = (ys[first + 2] - ys[first + 1]) / (xs[first + 2] - xs[first + 1])
            curvature = max(curvature, abs((right - left) / (xs[first + 2] - xs[first])))
    return curvature * (xs[index + 1] - xs[index]) ** 2 / 4


def foretold(known: Sequence[tuple[int, int, float]], input_tokens: int, output_tokens: int) -> float:
    """Where the cliff of a class should be, from (input, output, cliff) of others: 0 if there are none.

    A plane through the logarithms, held to the square root of each length as long as few classes pin it down.
    """
    if not known:
        return 0.0
    rows = [(math.log(i / input_tokens), math.log(o / output_tokens), math.log(cliff)) for i, o, cliff in known]
    design = np.array([[1.0, a, b] for a, b, _ in rows] + [[0, 0.3, 0], [0, 0, 0.3]])
    wanted = np.array([y for _, _, y in rows] + [-0.15, -0.15])
    return float(math.exp(np.linalg.lstsq(design, wanted, rcond=None)[0][0]))
