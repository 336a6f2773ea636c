"""What is known of an answer's length before it is written, in a simulation. Owns predictors and their errors.

`Declared` is the code that serves; the others stand for a predictor of stated accuracy, up to one that is never wrong.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from core.request import Prediction
from core.service import SIZES, Edges
from predictor.blend import Blend, Foretold
from simulator.trace import Arrival

ASSUMED_ACCURACY = 0.8
NAMED = ("oracle", "live", "model", "none", "long")
ALWAYS_LONG = ((0.0, 0.0, 1.0),) * 3
TELLS_NOTHING = ((1.0, 1.0, 1.0),) * 3


class Lengths(Protocol):
    """`predict` is called once a request in order of arrival, `learn` once per completed answer."""

    def predict(self, arrival: Arrival, room_tokens: int) -> Prediction: ...

    def learn(self, arrival: Arrival) -> None: ...


class Declared:
    """The live predictor. A trace holds no prompts, so all its requests share one template and declare no limit."""

    def __init__(self, predictor: Blend, edges: Edges) -> None:
        self._predictor = predictor
        self._edges = edges

    def predict(self, arrival: Arrival, room_tokens: int) -> Prediction:
        return self._foretell(room_tokens).prediction

    def learn(self, arrival: Arrival) -> None:
        """Foretells it once more, as of now: a record of what was said of every arrival would grow with the trace."""
        self._predictor.learn(self._foretell(None), arrival.output_tokens)

    def _foretell(self, limit: int | None) -> Foretold:
        return self._predictor.foretell(b"trace", limit, self._edges)


class Oracle:
    """Knows every length."""

    def __init__(self, edges: Edges) -> None:
        self._edges = edges

    def predict(self, arrival: Arrival, room_tokens: int) -> Prediction:
        size = SIZES.index(self._edges.output_size(arrival.output_tokens))
        tokens = min(arrival.output_tokens, room_tokens)
        return Prediction((float(size == 0), float(size == 1), float(size == 2)), tokens, tokens, tokens)

    def learn(self, arrival: Arrival) -> None:
        return


class Confused:
    """Predicts a size drawn from `confusion[true][predicted]`, and that size's usual lengths."""

    def __init__(self, confusion: Sequence[Sequence[float]], usual: Sequence[Usual], edges: Edges, seed: int) -> None:
        self._confusion = confusion
        self._edges = edges
        self._random = random.Random(f"confused {seed}")
        self._by_size = [
            Prediction((float(size == 0), float(size == 1), float(size == 2)), q50, q90, q90)
            for size, (q50, q90) in enumerate(usual)
        ]

    def predict(self, arrival: Arrival, room_tokens: int) -> Prediction:
        true = SIZES.index(self._edges.output_size(arrival.output_tokens))
        return self._by_size[drawn(self._confusion[true], self._random)]

    def learn(self, arrival: Arrival) -> None:
        return


class Calibrated:
    """Draws a size as `Confused` does, but says what such a draw is worth: of all answers that get it, the shares of
    the three sizes and the quantiles of their lengths. What a predictor says that knows how often it is wrong."""

    def __init__(
        self, confusion: Sequence[Sequence[float]], shares: Sequence[float], usual: Sequence[Usual], edges: Edges,
        seed: int,
    ) -> None:  # fmt: skip
        """`shares` of the sizes among all answers."""
        self._confusion = [[value / sum(row) for value in row] for row in confusion]
        self._edges = edges
        self._random = random.Random(f"calibrated {seed}")
        self._by_draw = [self._said(draw, shares, usual) for draw in range(3)]

    def _said(self, draw: int, shares: Sequence[float], usual: Sequence[Usual]) -> Prediction:
        joint = [share * row[draw] for share, row in zip(shares, self._confusion, strict=True)]
        total = sum(joint)
        p = (joint[0] / total, joint[1] / total, joint[2] / total) if total else (0.0, 0.0, 1.0)
        q50, q90, q99 = (mixed_quantile(p, usual, self._edges, q) for q in (0.5, 0.9, 0.99))
        return Prediction(p, q50, q90, q99)

    def predict(self, arrival: Arrival, room_tokens: int) -> Prediction:
        true = SIZES.index(self._edges.output_size(arrival.output_tokens))
        return self._by_draw[drawn(self._confusion[true], self._random)]

    def learn(self, arrival: Arrival) -> None:
        return


def drawn(row: Sequence[float], luck: random.Random) -> int:
    """Index of a size, by the row's probabilities."""
    draw = luck.random()
    return 0 if draw < row[0] else 1 if draw < row[0] + row[1] else 2


def mixed_quantile(p: Sequence[float], usual: Sequence[Usual], edges: Edges, q: float) -> int:
    """Of answers that are of each size with probability `p`. Within a size linear between its lower edge, its median,
    its 90th percentile and its upper edge, which for L is taken at twice the 90th percentile."""
    below = 0.0
    for size, chance in enumerate(p):
        if below + chance >= q and chance > 0:
            inside, (q50, q90) = (q - below) / chance, usual[size]
            low = (0, *edges.output)[size]
            high = (*edges.output, 2 * q90)[size]
            points = ((0.0, low), (0.5, q50), (0.9, q90), (1.0, high))
            for (a, x), (b, y) in pairwise(points):
                if inside <= b:
                    return max(1, round(x + (y - x) * (inside - a) / (b - a)))
        below += chance
    return max(1, usual[2][1])


Usual = tuple[int, int]  # median and 90th percentile of the lengths of one size


def even_confusion(accuracy: float) -> tuple[tuple[float, float, float], ...]:
    """Right with probability `accuracy`; what is wrong goes to both other sizes alike."""
    wrong = (1 - accuracy) / 2
    rows = [[accuracy if here == true else wrong for here in range(3)] for true in range(3)]
    return tuple((row[0], row[1], row[2]) for row in rows)


def usual_lengths(output_tokens: Sequence[int], edges: Edges) -> tuple[Usual, Usual, Usual]:
    """Median and 90th percentile of each size. A size that does not occur gets its upper edge."""
    by_size: list[list[int]] = [[], [], []]
    for tokens in output_tokens:
        by_size[SIZES.index(edges.output_size(tokens))].append(tokens)
    edge = (*edges.output, 2 * edges.output[1])
    found = []
    for size, lengths in enumerate(by_size):
        lengths.sort()
        found.append((lengths[len(lengths) // 2], lengths[len(lengths) * 9 // 10]) if lengths else (edge[size],) * 2)
    return found[0], found[1], found[2]
