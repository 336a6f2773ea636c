"""What is said of one answer's length before any limit, and how two opinions of it are joined.

Owns the arithmetic of opinions; refuses to know who holds them (a model, a template's past, a client)."""

from __future__ import annotations

from msgspec import Struct

from core.request import Prediction
from core.service import Edges
from predictor.distribution import LONGEST_LOG2, Distribution, tokens_at
from predictor.track import Chances

NO_LIMIT = 1 << 20  # tokens; no answer is longer


class Said(Struct, frozen=True, gc=False):
    """`p`: probabilities of the sizes S, M, L; the rest are quantiles, as logarithms to the base of 2 of tokens."""

    p: tuple[float, float, float]
    log50: float
    log90: float
    log99: float

    def joined(self, other: Said, weight: float) -> Said:
        """With `weight` of `other`'s: probabilities are averaged, quantiles too, in their logarithm (Vincent, 1912),
        because the average of two densities would be wider than both."""
        rest = 1.0 - weight
        (a, b, c), (d, e, f) = self.p, other.p
        return Said(
            (rest * a + weight * d, rest * b + weight * e, rest * c + weight * f),
            rest * self.log50 + weight * other.log50,
            rest * self.log90 + weight * other.log90,
            rest * self.log99 + weight * other.log99,
        )

    def q90(self, doublings: float) -> float:
        """Tokens; longer by `doublings`, or shorter, but not than the middle."""
        return tokens_at(max(self.log50, self.log90 + doublings))


def said_of(shape: Distribution, edges: Edges) -> Said:
    small, medium = edges.output
    below_s = min(1.0, shape.below(small))
    below_m = min(1.0, max(below_s, shape.below(medium)))
    p = (below_s, below_m - below_s, 1.0 - below_m)
    return Said(p, shape.log_quantile(0.5), shape.log_quantile(0.9), shape.log_quantile(0.99))


def within(said: Said, limit: int | None, edges: Edges, doublings: float = 0.0, p: Chances | None = None) -> Prediction:
    """What routing needs of it, the upper half longer by `doublings`, or shorter, but not than the middle. No answer is
    longer than `limit`, the request's own. `p`: probabilities of the sizes in place of its own."""
    cap = limit if limit is not None and limit > 0 else NO_LIMIT
    small, medium = edges.output
    p = said.p if p is None else p
    if cap <= small:
        p = (1.0, 0.0, 0.0)
    elif cap <= medium:
        p = (p[0], 1.0 - p[0], 0.0)
    log50, log90, log99 = said.log50, said.log90 + doublings, said.log99 + doublings
    if log90 < log50 or log99 < log50:
        log90, log99 = max(log50, log90), max(log50, log99)
    if log90 > LONGEST_LOG2 or log99 > LONGEST_LOG2:
        log50, log90, log99 = (min(LONGEST_LOG2, log) for log in (log50, log90, log99))
    q50, q90, q99 = round(2.0**log50), round(2.0**log90), round(2.0**log99)
    if q50 < 1 or q99 > cap or not q50 <= q90 <= q99:
        q50 = max(1, min(cap, q50))
        q90 = max(q50, min(cap, q90))
        q99 = max(q90, min(cap, q99))
    return Prediction(p, q50, q90, q99)
