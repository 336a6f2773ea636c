"""From features to the distribution of an answer's length: one product of arrays.

Owns the arrays of a model at rest. Refuses to learn: what a service teaches is in blend.py and conformal.py, what a log
teaches in train.py. The model is a distribution regression: at each point of a grid of standard lengths one logistic
gives the probability of an answer no longer than that, so that any class edges and any quantile can be read of it."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import numpy as np

from core.request import Prediction
from core.service import Edges
from predictor.distribution import Distribution
from predictor.features import Asked, Features, Vocabulary, featurise
from predictor.model_file import SHIPPED, Body, read_model
from predictor.said import said_of, within


class LengthModel:
    """Never changes once made; any number of services share one."""

    __slots__ = ("_bias", "_numbers", "_words", "body", "grid", "name", "vocabulary")

    def __init__(self, body: Body) -> None:
        self.body = body
        self.name = sha256(msgspec.json.encode(body)).hexdigest()[:16]  # which model it is, whatever its file is called
        count = len(body.features)
        # Halved: a logistic is (1 + tanh(x / 2)) / 2, and tanh does not overflow.
        weights = np.asarray(body.weights, dtype=np.float64).reshape(count + len(body.words), len(body.grid)) / 2
        scales = np.asarray(body.scales)
        self._numbers = weights[:count] / scales[:, None]
        self._bias = np.asarray(body.bias) / 2 - np.asarray(body.means) @ self._numbers
        self._words = weights[count:]
        self.grid = tuple(body.grid)
        self.vocabulary = Vocabulary([word.encode() for word in body.words])

    def features(self, asked: Asked) -> Features:
        return featurise(asked, self.vocabulary)

    def shape(self, features: Features) -> list[float]:
        """The cumulative distribution at the points of the grid."""
        logits = np.dot(features.numbers, self._numbers)
        logits += self._bias
        if features.rows:
            logits += np.add.reduce(self._words.take(features.rows, 0), 0)
        np.maximum.accumulate(logits, out=logits)
        np.tanh(logits, out=logits)
        logits *= 0.5
        logits += 0.5
        shares: list[float] = logits.tolist()
        return shares

    def distribution(self, features: Features, level: float | None = None, spread: float | None = None) -> Distribution:
        """`level` and `spread`: what is known of the service. Without them it may be any of those the model saw."""
        body = self.body
        if level is None:
            level, spread = body.level, (body.spread**2 + body.level_spread**2) ** 0.5
        return Distribution(self.grid, self.shape(features), level, spread if spread is not None else body.spread)


def prediction_of(distribution: Distribution, limit: int | None, edges: Edges) -> Prediction:
    return within(said_of(distribution, edges), limit, edges)


def shipped_model() -> LengthModel:
    """The model that comes with joulegate."""
    return LengthModel(read_model(SHIPPED))
