"""Running means that forget, and the record by which an opinion earns its weight. Owns the arithmetic only."""

from __future__ import annotations

from math import exp, log

from msgspec import Struct

from core.service import SIZES, Edges

HISTORY_PRIOR = 6.0  # an opinion weighs half of what it may after this many answers
SCORE_DECAY = 0.99
LEAST_CHANCE = 0.02
Chances = tuple[float, float, float]


class Mean(Struct):
    """A running mean that starts at a prior and forgets."""

    value: float
    weight: float
    memory: float

    def add(self, value: float) -> None:
        if self.weight != self.memory:
            self.weight = min(self.memory, self.weight + 1.0)
        self.value += (value - self.value) / self.weight


class Track(Struct):
    """`lead`: how much better (log score of the size, decayed) an opinion foretold than the one it is to be joined
    with."""

    answers: int = 0
    lead: float = 0.0

    def trust(self) -> float:
        """The weight of the opinion, 0 to 1."""
        return self.answers / (self.answers + HISTORY_PRIOR) / (1.0 + exp(min(50.0, -self.lead)))

    def judge(self, own: Chances, other: Chances, edges: Edges, output_tokens: int) -> None:
        at = SIZES.index(edges.output_size(output_tokens))
        self.lead = SCORE_DECAY * self.lead + log(max(LEAST_CHANCE, own[at])) - log(max(LEAST_CHANCE, other[at]))
