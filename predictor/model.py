"""From features to the distribution of an answer's length: one product of arrays, one sum over words.

Owns the arrays of a model at rest. Refuses to learn: what a service teaches is in blend.py and conformal.py, what a log
teaches in train.py. The model is a regression of place and width (as cumulative link models with a scale are, McCullagh
1980): in standard lengths z = mid + width x e, with one distribution of e for all requests, so that any class edges and
any quantile can be read of it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from math import exp, fsum, log2

import msgspec
import numpy as np
from msgspec import Struct

from core.request import Prediction
from core.service import Edges
from predictor.distribution import Distribution, tokens_at
from predictor.features import Asked, Features, Vocabulary, featurise
from predictor.model_file import SHIPPED, WIDEST, Body, read_model
from predictor.said import Said, said_of, within

ONE = 10.0  # a level from which quantiles of e are read: no length there is cut off


class Base(Struct, frozen=True):
    """The distribution of e, some quantiles of it, and half of what lies between its q16 and its q84."""

    grid: Sequence[float]
    cumulative: Sequence[float]
    e50: float
    e90: float
    e99: float
    spread: float


class Shape(Struct, frozen=True):
    """Where an answer lies and how wide it may be, in standard lengths."""

    base: Base
    mid: float
    width: float

    def at(self, level: float, spread: float) -> Distribution:
        """Of a service with this level and spread, in log2 tokens."""
        return Distribution(self.base.grid, self.base.cumulative, level + spread * self.mid, spread * self.width)

    def said(self, whole: Distribution, edges: Edges) -> Said:
        """As `said_of(whole, edges)`, where `whole` is this shape at some level, without looking for the quantiles."""
        base, level, spread = self.base, whole.level, whole.spread
        small, medium = edges.output
        below_s = whole.below(small)
        below_m = whole.below(medium)
        return Said(
            (below_s, below_m - below_s, 1.0 - below_m),
            tokens_at(level + spread * base.e50), tokens_at(level + spread * base.e90),
            tokens_at(level + spread * base.e99),
        )  # fmt: skip


class LengthModel:
    """Never changes once made; any number of services share one."""

    __slots__ = ("_base", "_mid", "_numbers", "_weight", "_width", "body", "name", "vocabulary")

    def __init__(self, body: Body) -> None:
        self.body = body
        self.name = sha256(msgspec.json.encode(body)).hexdigest()[:16]  # which model it is, whatever its file is called
        count = len(body.features)
        scales = np.asarray(body.scales)
        self._numbers = np.stack([np.asarray(body.mid[:count]) / scales, np.asarray(body.width) / scales], axis=1)
        moved = np.asarray(body.means) @ self._numbers
        self._mid, self._width = body.mid_bias - float(moved[0]), body.width_bias - float(moved[1])
        words = [word.encode() for word in body.words]
        self.vocabulary = Vocabulary(words)
        weights = dict.fromkeys(self.vocabulary.known, 0.0) | dict(zip(words, body.mid[count:], strict=True))
        self._weight = weights.__getitem__
        one = Distribution(tuple(body.grid), tuple(body.cumulative), ONE, 1.0)
        e16, e50, e84, e90, e99 = (log2(one.quantile(q)) - ONE for q in (0.16, 0.5, 0.84, 0.9, 0.99))
        self._base = Base(one.grid, one.cumulative, e50, e90, e99, (e84 - e16) / 2)

    def features(self, asked: Asked) -> Features:
        return featurise(asked, self.vocabulary)

    def shape(self, features: Features) -> Shape:
        mid, width = np.dot(features.numbers, self._numbers).tolist()
        mid += self._mid + fsum(map(self._weight, features.words))  # exact, so whatever the order of the words
        return Shape(self._base, mid, exp(min(WIDEST, max(-WIDEST, width + self._width))))

    def distribution(self, features: Features, level: float | None = None, spread: float | None = None) -> Distribution:
        """`level` and `spread`: what is known of the service. Without them it may be any of those the model saw."""
        body = self.body
        if level is None:
            level, spread = body.level, (body.spread**2 + body.level_spread**2) ** 0.5
        return self.shape(features).at(level, spread if spread is not None else body.spread)


def prediction_of(distribution: Distribution, limit: int | None, edges: Edges) -> Prediction:
    return within(said_of(distribution, edges), limit, edges)


def shipped_model() -> LengthModel:
    """The model that comes with joulegate."""
    return LengthModel(read_model(SHIPPED))
