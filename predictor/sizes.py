"""How much more or less often each size comes than was said: one factor a size, learnt of a service's answers.

Owns the factors and the record by which they earn their weight. Refuses to look at a request. A model says how lengths
spread on one curve for all services; one whose answers are either a line or as long as they may be lies beside it at
some edges, and its own history says by how much. The factors follow the gradient of the logarithmic loss, answer by
answer, and so go on following a service that changes (label shift, Saerens et al. 2002, learnt online)."""

from __future__ import annotations

from math import exp

from msgspec import Struct, field

from core.service import Edges
from predictor.track import Chances, Track

RATE = 0.02  # of 0.01 to 0.1, on prompts and models of the training part alone, the best or as good (docs/predictor.md)
FARTHEST = 32.0  # no size comes so many times as often as was said
LEAST = 0.01  # a weight below it changes nothing that anybody sees


class SizeFactors(Struct):
    """Mutable; of one service. They hold for `edges`, and begin anew when those change."""

    edges: tuple[int, int] | None = None
    factors: Chances = (1.0, 1.0, 1.0)
    track: Track = field(default_factory=Track)
    trust: float = 0.0

    def apply(self, p: Chances, edges: Edges) -> Chances:
        """As often as sizes really came, as far as that was right so far."""
        weight = self.trust
        if weight < LEAST or edges.output != self.edges:
            return p
        (a, b, c), (small, medium, long) = p, self.factors
        total = a * small + b * medium + c * long
        rest, weight = 1.0 - weight, weight / total
        return a * (rest + weight * small), b * (rest + weight * medium), c * (rest + weight * long)

    def learn(self, p: Chances, edges: Edges, output_tokens: int) -> None:
        """`p` was said before these factors."""
        if edges.output != self.edges:
            self.edges, self.factors, self.track = edges.output, (1.0, 1.0, 1.0), Track()
        small, medium, long = self.factors
        a, b, c = p[0] * small, p[1] * medium, p[2] * long
        total = a + b + c
        a, b, c = a / total, b / total, c / total
        self.track.judge((a, b, c), p, edges, output_tokens)
        self.track.answers += 1
        self.trust = self.track.trust()
        size = edges.output_size(output_tokens)
        small, medium = _moved(small, (size == "S") - a), _moved(medium, (size == "M") - b)
        long = _moved(long, (size == "L") - c)
        self.factors = (small, medium, long)


def _moved(factor: float, by: float) -> float:
    factor *= exp(RATE * by)
    return min(FARTHEST, max(1.0 / FARTHEST, factor))
