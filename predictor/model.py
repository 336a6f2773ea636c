"""From features to the distribution of an answer's length: two sums over numbers, one over words.

Owns the arrays of a model at rest. Refuses to learn: what a service teaches is in blend.py and conformal.py, what a log
teaches in train.py. The model is a regression of place and width (as cumulative link models with a scale are, McCullagh
1980): in standard lengths z = mid + width x e, with one distribution of e for all requests, so that any class edges and
any quantile can be read of it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import compress, pairwise
from math import exp, log2
from operator import mul

import msgspec
import numpy as np
from msgspec import Struct

from core.request import Prediction
from core.service import Edges
from predictor.distribution import Distribution, share_below
from predictor.features import NO_CUES, NO_LENGTHS, PARTS, Asked, Features, Vocabulary, featurise
from predictor.model_file import SHIPPED, WIDEST, Body, read_model
from predictor.said import Said, said_of, within

EXACT = 2.0**30  # a weight of a word is a multiple of 1 / EXACT: their sum has no rounding, whatever their order
ONE = 10.0  # a level from which quantiles of e are read: no length there is cut off


class Base(Struct, frozen=True):
    """The distribution of e, some quantiles of it, and half of what lies between its q16 and its q84."""

    grid: Sequence[float]
    cumulative: Sequence[float]
    e50: float
    e90: float
    e99: float
    spread: float


class Shape(Struct, frozen=True, gc=False):
    """Where an answer lies and how wide it may be, in standard lengths."""

    base: Base
    mid: float
    width: float

    def at(self, level: float, spread: float) -> Distribution:
        """Of a service with this level and spread, in log2 tokens."""
        return Distribution(self.base.grid, self.base.cumulative, level + spread * self.mid, spread * self.width)

    def said(self, level: float, spread: float, edges: Edges) -> Said:
        """As `said_of(self.at(level, spread), edges)`, without looking for the quantiles."""
        base, (small, medium) = self.base, edges.output
        mid, width = level + spread * self.mid, spread * self.width
        below_s = share_below(base.grid, base.cumulative, (log2(small) - mid) / width)
        below_m = share_below(base.grid, base.cumulative, (log2(medium) - mid) / width)
        p = (below_s, below_m - below_s, 1.0 - below_m)
        return Said(p, mid + width * base.e50, mid + width * base.e90, mid + width * base.e99)


class LengthModel:
    """Never changes once made; any number of services share one."""

    __slots__ = (
        "_base", "_counts", "_cues", "_declared", "_declares", "_lengths", "_mid", "_weight", "_width", "body", "name",
        "vocabulary",
    )  # fmt: skip

    def __init__(self, body: Body) -> None:
        self.body = body
        self.name = sha256(msgspec.json.encode(body)).hexdigest()[:16]  # which model it is, whatever its file is called
        count = len(body.features)
        scales = np.asarray(body.scales)
        numbers = np.stack([np.asarray(body.mid[:count]) / scales, np.asarray(body.width) / scales], axis=1)
        moved = np.asarray(body.means) @ numbers
        parts = [numbers[from_:to].T.tolist() for from_, to in pairwise((0, *PARTS, count))]
        self._counts, self._declared, self._lengths, self._cues = parts
        self._declares = any(map(any, parts[1]))  # of open sets, which declare nothing, nothing is learnt of it
        self._mid, self._width = body.mid_bias - float(moved[0]), body.width_bias - float(moved[1])
        words = [word.encode() for word in body.words]
        self.vocabulary = Vocabulary(words)
        weights = dict(zip(words, (round(EXACT * weight) / EXACT for weight in body.mid[count:]), strict=True))
        self._weight = (dict.fromkeys(self.vocabulary.known, 0.0) | weights).__getitem__
        one = Distribution(tuple(body.grid), tuple(body.cumulative), ONE, 1.0)
        e16, e50, e84, e90, e99 = (log2(one.quantile(q)) - ONE for q in (0.16, 0.5, 0.84, 0.9, 0.99))
        self._base = Base(one.grid, one.cumulative, e50, e90, e99, (e84 - e16) / 2)

    def features(self, asked: Asked) -> Features:
        return featurise(asked, self.vocabulary)

    def shape(self, features: Features) -> Shape:
        """In Python: of so few numbers NumPy only takes longer."""
        mids, widths = self._counts
        mid = self._mid + sum(map(self._weight, features.words)) + sum(map(mul, features.counts, mids))
        width = self._width + sum(map(mul, features.counts, widths))
        if self._declares:
            mids, widths = self._declared
            mid += sum(map(mul, features.declared, mids))
            width += sum(map(mul, features.declared, widths))
        if features.lengths is not NO_LENGTHS:
            mids, widths = self._lengths
            mid += sum(map(mul, features.lengths, mids))
            width += sum(map(mul, features.lengths, widths))
        if (cues := features.cues) is not NO_CUES:
            mids, widths = self._cues
            mid += sum(compress(mids, cues))
            width += sum(compress(widths, cues))
        return Shape(self._base, mid, exp(width if -WIDEST < width < WIDEST else min(WIDEST, max(-WIDEST, width))))

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
