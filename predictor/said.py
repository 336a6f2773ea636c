"""What is said of one answer's length before any limit, and how two opinions of it are joined.

Owns the arithmetic of opinions; refuses to know who holds them (a model, a template's past, a client)."""

from __future__ import annotations

from msgspec import Struct

from core.request import Prediction
from core.service import Edges
from predictor.distribution import Distribution

NO_LIMIT = 1 << 20  # tokens; no answer is longer


class Said(Struct, frozen=True):
    """`p`: probabilities of the sizes S, M, L; the rest are quantiles in tokens."""

    p: tuple[float, float, float]
    q50: float
    q90: float
    q99: float

    def joined(self, other: Said, weight: float) -> Said:
        """With `weight` of `other`'s: probabilities are averaged, quantiles too, in their logarithm (Vincent, 1912),
        because the average of two densities would be wider than both."""
        rest = 1.0 - weight
        (a, b, c), (d, e, f) = self.p, other.p
        return Said(
            (rest * a + weight * d, rest * b + weight * e, rest * c + weight * f),
            self.q50**rest * other.q50**weight,
            self.q90**rest * other.q90**weight,
            self.q99**rest * other.q99**weight,
        )


def said_of(shape: Distribution, edges: Edges) -> Said:
    small, medium = edges.output
    below_s = min(1.0, shape.below(small))
    below_m = min(1.0, max(below_s, shape.below(medium)))
    p = (below_s, below_m - below_s, 1.0 - below_m)
    return Said(p, shape.quantile(0.5), shape.quantile(0.9), shape.quantile(0.99))


def within(said: Said, limit: int | None, edges: Edges) -> Prediction:
    """What routing needs of it. No answer is longer than `limit`, the request's own."""
    cap = limit if limit is not None and limit > 0 else NO_LIMIT
    small, medium = edges.output
    p = said.p
    if cap <= small:
        p = (1.0, 0.0, 0.0)
    elif cap <= medium:
        p = (p[0], 1.0 - p[0], 0.0)
    q50, q90, q99 = round(said.q50), round(said.q90), round(said.q99)
    if q50 < 1 or q99 > cap or not q50 <= q90 <= q99:
        q50 = max(1, min(cap, q50))
        q90 = max(q50, min(cap, q90))
        q99 = max(q90, min(cap, q99))
    return Prediction(p, q50, q90, q99)
