"""The distribution of one answer's length: a shape in standard units, where it lies and how wide it is.

Owns reading shares and quantiles of it, also of what remains once some tokens are out. Refuses to know where the shape
came from. Standard units: z = (log2(tokens) - level) / spread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import erf, log2, sqrt

from msgspec import Struct

LONGEST_LOG2 = 20.0  # no answer is longer than 2**20 tokens
NARROWEST = 1e-6
MIN_SPREAD = 0.05  # in doublings: two quantiles that fall together, as those cut off by max_tokens, are no certainty
Z90 = 1.2815515655446004  # standard normal
NORMAL_GRID = tuple(step / 4 for step in range(-12, 13))
NORMAL_BELOW = tuple(0.5 * (1.0 + erf(z / sqrt(2.0))) for z in NORMAL_GRID)


class Distribution(Struct, frozen=True):
    """`cumulative[i]` = probability of at most 2**(level + spread * grid[i]) tokens; it never falls."""

    grid: Sequence[float]
    cumulative: Sequence[float]
    level: float
    spread: float

    def below(self, tokens: float) -> float:
        """Probability of at most `tokens`."""
        if tokens < 1:
            return 0.0
        return share_below(self.grid, self.cumulative, (log2(tokens) - self.level) / self.spread)

    def quantile(self, q: float) -> float:
        """The length that the answer stays within with probability `q`, in tokens, at least 1."""
        return tokens_at(self.log_quantile(q))

    def log_quantile(self, q: float) -> float:
        """Its logarithm to the base of 2."""
        grid, cumulative = self.grid, self.cumulative
        at = bisect_left(cumulative, q)
        if at == 0:
            z = grid[0] + log2(max(NARROWEST, q) / max(NARROWEST, cumulative[0])) / 2.0
        elif at == len(grid):
            z = grid[-1] - log2(max(NARROWEST, 1.0 - q) / max(NARROWEST, 1.0 - cumulative[-1])) / 2.0
        else:
            low, high = cumulative[at - 1], cumulative[at]
            z = grid[at - 1] + (grid[at] - grid[at - 1]) * (q - low) / (high - low)
        return self.level + self.spread * z

    def quantile_after(self, tokens: float, q: float) -> float:
        """The same once `tokens` are out and the answer goes on: of the whole length, never under `tokens`."""
        gone = min(1.0 - NARROWEST, self.below(tokens))
        return max(float(tokens), self.quantile(gone + (1.0 - gone) * q))

    def share_after(self, tokens: float, edge: float) -> float:
        """Probability of at most `edge` tokens in all, once `tokens` are out and the answer goes on."""
        if edge <= tokens:
            return 0.0
        gone = min(1.0 - NARROWEST, self.below(tokens))
        return min(1.0, (self.below(edge) - gone) / (1.0 - gone))


def share_below(grid: Sequence[float], cumulative: Sequence[float], z: float) -> float:
    """Between two points a straight line; the tails fall by a factor of 4 a unit."""
    at = bisect_left(grid, z)
    if at == 0:
        return float(cumulative[0] * 2.0 ** (2.0 * (z - grid[0])))
    if at == len(grid):
        return float(1.0 - (1.0 - cumulative[-1]) * 2.0 ** (-2.0 * (z - grid[-1])))
    low, high = cumulative[at - 1], cumulative[at]
    return low + (high - low) * (z - grid[at - 1]) / (grid[at] - grid[at - 1])


def tokens_at(log2_tokens: float) -> float:
    """At least one, and no more than an answer can have."""
    return float(2.0 ** (0.0 if log2_tokens < 0.0 else LONGEST_LOG2 if log2_tokens > LONGEST_LOG2 else log2_tokens))


def lognormal(q50_tokens: float, q90_tokens: float) -> Distribution:
    """The lognormal distribution with these two quantiles, for predictors that tell no more."""
    level = log2(max(1.0, q50_tokens))
    spread = max(MIN_SPREAD, (log2(max(1.0, q90_tokens)) - level) / Z90)
    return Distribution(NORMAL_GRID, NORMAL_BELOW, level, spread)
