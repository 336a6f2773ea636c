"""A new model beside the one that serves: it foretells the same answers, and takes over once it was better.

Owns the comparison. Refuses to serve: who does is its owner's business, which asks after each answer."""

from __future__ import annotations

from math import log2, sqrt

from msgspec import Struct

from predictor.blend import Blend, Foretold
from predictor.features import Asked

WINDOW = 500  # answers, judged together at its end: looking after each would let chance win some day
SURE = 2.0  # standard errors by which the mean loss has to be smaller: one window in forty would else do it by chance


class Score(Struct, frozen=True):
    """Of one window so far: how much larger the champion's losses were."""

    answers: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, gain: float) -> Score:
        return Score(self.answers + 1, self.total + gain, self.squares + gain * gain)

    def better(self) -> bool:
        mean = self.total / self.answers
        spread = sqrt(max(0.0, self.squares / self.answers - mean * mean))
        return mean > SURE * spread / sqrt(self.answers)


class Challenger:
    """Mutable; learns of every answer, as the champion does."""

    def __init__(self, blend: Blend, name: str) -> None:
        self.blend = blend
        self.name = name
        self.windows = 0
        self.score = Score()

    def learn(
        self, champion: Blend, told: Foretold, asked: Asked, client: bytes, output_tokens: int, cut: bool
    ) -> bool:
        """Whether it has won. Call it before the champion learns of the answer: both foretell it now, with what they
        know now. An answer that its limit cut is no judge."""
        own = self.blend.foretell(told.template, None, told.edges, asked, client)
        if not cut:
            other = champion.foretell(told.template, None, told.edges, asked, client)
            self.score = self.score.add(loss(other, output_tokens) - loss(own, output_tokens))
        self.blend.learn(own, output_tokens, cut)
        if self.score.answers < WINDOW:
            return False
        won, self.score = self.score.better(), Score()
        self.windows += 1
        return won


def loss(told: Foretold, output_tokens: int) -> float:
    """Pinball loss of the three quantiles in doublings, so that a long answer weighs no more than a short one."""
    said, actual = told.prediction, log2(max(1, output_tokens))
    total = 0.0
    for tokens, q in ((said.q50_tokens, 0.5), (said.q90_tokens, 0.9), (said.q99_tokens, 0.99)):
        off = actual - log2(tokens)
        total += max(q * off, (q - 1.0) * off)
    return total
