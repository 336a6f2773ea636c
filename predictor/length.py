"""How long the answer will be: the Predictor seam and its first implementation.

`RunningLengths` knows what a request declares (`max_tokens`) and what its template answered before. It owns bounded
histograms of output lengths and refuses to look at any text: a template is a hash that the gateway made."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from typing import Protocol

from core.request import Prediction
from core.service import Edges

BINS_PER_DOUBLING = 4
BINS = 4 * 17  # up to 2**17 tokens
UPPER = tuple(2 ** ((i + 1) / BINS_PER_DOUBLING) for i in range(BINS))
PRIOR_WEIGHT = 8.0  # the service's distribution counts as this many answers of the template's own
DECAY = 0.98  # per answer: a template's memory is about its last 50 answers
# Output lengths of the Azure conversation trace of 2023-11-16: lognormal with median 129 tokens and p95 451.
PRIOR_MEDIAN_TOKENS = 129.0
PRIOR_SIGMA = math.log(451 / 129) / 1.645


class Predictor(Protocol):
    """`predict` is called once a request, `learn` once per completed answer with its true length in tokens."""

    def predict(self, template: bytes, max_tokens: int | None, edges: Edges) -> Prediction: ...

    def learn(self, template: bytes, output_tokens: int) -> None: ...


def _bin(tokens: int) -> int:
    return min(BINS - 1, bisect_left(UPPER, max(1, tokens)))


def _prior() -> list[float]:
    def below(tokens: float) -> float:
        z = math.log(tokens / PRIOR_MEDIAN_TOKENS) / PRIOR_SIGMA
        return 0.5 * (1 + math.erf(z / math.sqrt(2)))

    cumulative = [below(edge) for edge in UPPER]
    return [b - a for a, b in zip([0.0, *cumulative], cumulative, strict=False)]


class RunningLengths:
    """Running histograms per template over a shared one. At most `templates` are kept, least recently used go first."""

    def __init__(self, templates: int = 4096) -> None:
        self._limit = templates
        self._shared = [PRIOR_WEIGHT * share for share in _prior()]
        self._by_template: OrderedDict[bytes, list[float]] = OrderedDict()

    def predict(self, template: bytes, max_tokens: int | None, edges: Edges) -> Prediction:
        shared_total = sum(self._shared)
        weights = [PRIOR_WEIGHT * w / shared_total for w in self._shared]
        own = self._by_template.get(template)
        if own is not None:
            weights = [a + b for a, b in zip(weights, own, strict=True)]
        limit = max_tokens if max_tokens is not None and max_tokens > 0 else 1 << 17
        below_s = self._share_below(weights, edges.output[0], limit)
        below_m = self._share_below(weights, edges.output[1], limit)
        return Prediction(
            p=(below_s, below_m - below_s, 1.0 - below_m),
            q50_tokens=self._quantile(weights, 0.5, limit),
            q90_tokens=self._quantile(weights, 0.9, limit),
        )

    def learn(self, template: bytes, output_tokens: int) -> None:
        own = self._by_template.setdefault(template, [0.0] * BINS)
        self._by_template.move_to_end(template)
        if len(self._by_template) > self._limit:
            self._by_template.popitem(last=False)
        for histogram in (own, self._shared):
            for index in range(BINS):
                histogram[index] *= DECAY
            histogram[_bin(output_tokens)] += 1.0

    @staticmethod
    def _share_below(weights: list[float], edge: int, limit: int) -> float:
        """Share of answers of at most `edge` tokens; an answer cannot be longer than `limit`."""
        if limit <= edge:
            return 1.0
        cut = _bin(edge)
        lower = UPPER[cut - 1] if cut else 0.0
        inside = weights[cut] * min(1.0, (edge - lower) / (UPPER[cut] - lower))
        return (sum(weights[:cut]) + inside) / sum(weights)

    @staticmethod
    def _quantile(weights: list[float], q: float, limit: int) -> int:
        target = q * sum(weights)
        for index, weight in enumerate(weights):
            target -= weight
            if target <= 0:
                return max(1, min(limit, round(UPPER[index])))
        return max(1, min(limit, round(UPPER[-1])))


def choose_size(prediction: Prediction, confidence: float = 0.5) -> str:
    """The smallest output size that holds the answer with probability `confidence`."""
    if prediction.p[0] >= confidence:
        return "S"
    return "M" if prediction.p[0] + prediction.p[1] >= confidence else "L"
