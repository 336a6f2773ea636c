"""How far above a forecast the peaks go: a factor for each class, quantity and coverage, learnt from its own misses.

Owns the factors of one horizon. Refuses to forecast means. Adaptive conformal inference (Gibbs and Candes, 2021), as in
conformal.py: after each window the factor grows by STEP x coverage doublings where a peak passed the upper bound and
shrinks by STEP x (1 - coverage) where none did. Whatever the load does, the share that held differs from the coverage
over T windows by no more than (range of the offset + STEP) / (STEP x T), while the offset is within its range. The
first windows count for more (Angelopoulos et al., 2024: decaying steps), so that a bursty load is known within an hour.

It scales a bound that knows the Poisson noise of the forecast's own level, so that what is learnt at noon holds at
night: mean x (1 + z sqrt(D / n)), n requests expected in a peak's window, z the normal quantile that all peaks of the
horizon stay within, D the variance over the mean."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
from msgspec import Struct

from predictor.load_windows import CLASS_COUNT, MINUTE_S, QUANTITIES, Array, Vector

COVERAGES = (0.95, 0.99)
EARLY_STEP = 0.5  # of the first window; it falls with the root of the windows judged, to STEP after 24
STEP = 0.1  # doublings; a miss at 95 % makes the bound 7 % higher, and nineteen windows within it undo that
LOWEST, HIGHEST = -2.0, 3.0
ROWS = CLASS_COUNT + 1
# Variance / mean assumed of counts per minute: between a near-Poisson conversation (1.3) and bursts; tokens twice that,
# because lengths within a class vary about as much as their mean.
DISPERSION = np.array((2.0, 4.0, 4.0))
LEAST_REQUESTS = 0.05  # in a peak's window; fewer would make the factor of a silent class endless
# Before any miss: what a week of Azure traffic needs over persistence (the burstier of two services, coding), in the
# order of COVERAGES. At 5 s the noise term is all.
PRIOR = {5.0: (1.0, 1.0), 300.0: (1.34, 1.43), 1800.0: (1.60, 1.73)}


class HeadRoom(Struct, frozen=True):
    """`offsets`: doublings, flat (10 rows, 3 quantities, coverages). `judged` windows."""

    horizon_s: float
    offsets: Vector
    judged: int = 0

    def upper(self, mean: Array) -> Array:
        """(10, 3) rates -> (10, 3, coverages), never below the mean, nor a surer bound below one less sure."""
        window_s = min(MINUTE_S, self.horizon_s)
        expected = np.maximum(mean[:, :1] * window_s, LEAST_REQUESTS)
        noise = np.sqrt(DISPERSION / expected)
        base = mean[:, :, None] * (1 + noise[:, :, None] * np.array(z_scores(self.horizon_s / window_s)))
        bound: Array = base * np.exp2(np.array(self.offsets).reshape(base.shape))
        higher: Array = np.maximum.accumulate(np.maximum(mean[:, :, None], bound), axis=2)
        return higher

    def learn(self, upper: Array, peaks: Array) -> HeadRoom:
        """`upper` as it was foretold, `peaks` (10, 3) as they came. Where the bound was 0 no factor would have held."""
        missed = peaks[:, :, None] > upper
        coverages = np.array(COVERAGES)
        step = max(STEP, EARLY_STEP / math.sqrt(1 + self.judged))
        moves = step * np.where(missed, coverages, coverages - 1) * (upper > 0)
        offsets = np.clip(np.array(self.offsets) + moves.reshape(-1), LOWEST, HIGHEST)
        return HeadRoom(self.horizon_s, tuple(offsets.tolist()), self.judged + 1)


def fresh(horizon_s: float) -> HeadRoom:
    prior = np.log2(PRIOR[horizon_s])
    return HeadRoom(horizon_s, tuple(np.tile(prior, ROWS * QUANTITIES).tolist()))


@cache
def z_scores(windows: float) -> tuple[float, ...]:
    """For each coverage: what the largest of so many independent normal windows stays within."""
    return tuple(NormalDist().inv_cdf(coverage ** (1 / windows)) for coverage in COVERAGES)
