"""What a template answered before: bounded histograms of output lengths.

Refuses to look at any text: a template is a hash that the gateway made."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import accumulate

from core.request import Prediction
from core.service import Edges
from predictor.said import Said, within

BINS_PER_DOUBLING = 4
BINS = 4 * 17  # up to 2**17 tokens
UPPER = tuple(2 ** ((i + 1) / BINS_PER_DOUBLING) for i in range(BINS))
PRIOR_WEIGHT = 8.0  # the service's distribution counts as this many answers of the template's own
UNIT_LIMIT = 1e100
NEGLIGIBLE = 1e-4  # answers
DECAY = 0.98  # per answer: a template's memory is about its last 50 answers
# Output lengths of the Azure conversation trace of 2023-11-16: lognormal with median 129 tokens and p95 451.
PRIOR_MEDIAN_TOKENS = 129.0
PRIOR_SIGMA = math.log(451 / 129) / 1.645


def _bin(tokens: int) -> int:
    return min(BINS - 1, bisect_left(UPPER, max(1, tokens)))


def _prior() -> list[float]:
    def below(tokens: float) -> float:
        z = math.log(tokens / PRIOR_MEDIAN_TOKENS) / PRIOR_SIGMA
        return 0.5 * (1 + math.erf(z / math.sqrt(2)))

    cumulative = [below(edge) for edge in UPPER]
    return [b - a for a, b in zip([0.0, *cumulative], cumulative, strict=False)]


Sparse = list[tuple[int, float]]  # (bin, answers) of those bins that have any, in order


class Lengths:
    """A histogram of output lengths that forgets: each answer weighs 1, and what came before it DECAY less."""

    __slots__ = ("_unit", "weights")

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights  # in units of `_unit`, which grows instead of every weight shrinking
        self._unit = 1.0

    def add(self, tokens: int) -> None:
        self._unit /= DECAY
        self.weights[_bin(tokens)] += self._unit
        if self._unit > UNIT_LIMIT:
            self.weights = [weight / self._unit for weight in self.weights]
            self._unit = 1.0

    def scale(self) -> float:
        """What turns a stored weight into a number of answers."""
        return 1.0 / self._unit

    def sparse(self) -> Sparse:
        scale = self.scale()
        return [(at, weight * scale) for at, weight in enumerate(self.weights) if weight * scale >= NEGLIGIBLE]


def lengths_of(sparse: Sparse) -> Lengths:
    weights = [0.0] * BINS
    for at, answers in sparse:
        weights[at] = answers
    return Lengths(weights)


class RunningLengths:
    """Running histograms per template over a shared one. At most `templates` are kept, least recently used go first."""

    def __init__(self, templates: int = 4096) -> None:
        self._limit = templates
        self._shared = Lengths([PRIOR_WEIGHT * share for share in _prior()])
        self._by_template: OrderedDict[bytes, Lengths] = OrderedDict()

    def predict(self, template: bytes, limit: int | None, edges: Edges) -> Prediction:
        return within(self.say(template, edges), limit, edges)

    def say(self, template: bytes, edges: Edges) -> Said:
        below = self.below(template)
        below_s = share_below(below, edges.output[0])
        below_m = share_below(below, edges.output[1])
        log50, log90, log99 = (math.log2(quantile(below, q)) for q in (0.5, 0.9, 0.99))
        return Said((below_s, below_m - below_s, 1.0 - below_m), log50, log90, log99)

    def below(self, template: bytes) -> list[float]:
        """The weight of all answers up to the upper edge of each bin. A template without answers has the service's."""
        shared = self._shared.weights
        prior = PRIOR_WEIGHT / sum(shared)
        own = self._by_template.get(template)
        if own is None:
            return [prior * weight for weight in accumulate(shared)]
        scale = own.scale()
        return list(accumulate([prior * a + scale * b for a, b in zip(shared, own.weights, strict=True)]))

    def kept(self, template: bytes) -> Sparse:
        own = self._by_template.get(template)
        return own.sparse() if own is not None else []

    def kept_shared(self) -> Sparse:
        return self._shared.sparse()

    def restore(self, shared: Sparse, templates: Iterable[tuple[bytes, Sparse]]) -> None:
        """From the template used longest ago to the newest."""
        self._shared = lengths_of(shared)
        for template, sparse in templates:
            self._by_template[template] = lengths_of(sparse)

    def learn(self, template: bytes, output_tokens: int) -> None:
        own = self._by_template.get(template)
        if own is None:
            own = self._by_template[template] = Lengths([0.0] * BINS)
            if len(self._by_template) > self._limit:
                self._by_template.popitem(last=False)
        else:
            self._by_template.move_to_end(template)
        own.add(output_tokens)
        self._shared.add(output_tokens)


def share_below(below: Sequence[float], edge: int) -> float:
    """Share of answers of at most `edge` tokens. `below[i]` is the weight of all bins up to i."""
    cut = _bin(edge)
    lower, weight = (UPPER[cut - 1], below[cut - 1]) if cut else (0.0, 0.0)
    inside = (below[cut] - weight) * min(1.0, (edge - lower) / (UPPER[cut] - lower))
    return min(1.0, (weight + inside) / below[-1])


def quantile(below: Sequence[float], q: float) -> float:
    """Tokens; the upper edge of the bin where the share `q` is reached."""
    return UPPER[min(BINS - 1, bisect_left(below, q * below[-1]))]


def choose_size(prediction: Prediction, confidence: float = 0.5) -> str:
    """The smallest output size that holds the answer with probability `confidence`."""
    if prediction.p[0] >= confidence:
        return "S"
    return "M" if prediction.p[0] + prediction.p[1] >= confidence else "L"
