"""The predictor of one service: a model that reads the request, and what the service's own answers taught since.

Owns what is learnt online, all of it bounded: where the service's answers lie and how widely, the same of each
template, how good the template's own quantiles were against the model's, and the calibration of q90. Refuses to keep
text. It is a `Predictor`; without features, or without a model, it says what RunningLengths says."""

from __future__ import annotations

from collections import OrderedDict
from math import exp, log, log2

from msgspec import Struct

from core.request import Prediction
from core.service import Edges
from predictor.conformal import Calibration
from predictor.distribution import Distribution
from predictor.features import Asked, Features
from predictor.length import RunningLengths
from predictor.model import LengthModel

SERVICE_PRIOR = 4.0  # the model's own level and spread weigh as this many answers
SPREAD_PRIOR = 12.0
TEMPLATE_PRIOR = 3.0
SERVICE_MEMORY = 300.0  # answers after which the oldest have no say
TEMPLATE_MEMORY = 60.0
HISTORY_PRIOR = 6.0  # a template's own quantiles weigh half of what they may after this many answers
SCORE_DECAY = 0.95
LEAST_CHANCE = 0.02
FARTHEST = 0.7  # spreads; what lies further off counts as this far
REFRESH = 8  # after this many answers a template's quantiles are read anew; of the first ones after each
SPREADS = (0.1, 4.0)  # log2; between a form letter and anything at all
MEAN_OF_SPREAD = 0.8  # mean absolute deviation of a normal distribution with spread 1


class Mean(Struct):
    """A running mean that starts at a prior and forgets."""

    value: float
    weight: float
    memory: float

    def add(self, value: float) -> None:
        self.weight = min(self.memory, self.weight + 1.0)
        self.value += (value - self.value) / self.weight


class Template(Struct):
    """`shift` and `spread` in log2 tokens against the service; `lead` = how much better (log score, decayed) the
    template's own history foretold the class than the model."""

    shift: Mean
    spread: Mean
    answers: int = 0
    lead: float = 0.0
    history: Prediction | None = None
    edges: Edges | None = None

    def trust(self) -> float:
        """The weight of the template's own quantiles."""
        n = self.answers
        return n / (n + HISTORY_PRIOR) / (1.0 + exp(min(50.0, -self.lead)))


class Foretold(Struct, frozen=True):
    """What was said of a request, kept until its answer is known: no text, only numbers."""

    prediction: Prediction
    q99_tokens: int
    distribution: Distribution | None
    model_p: tuple[float, float, float]
    uncapped_q90: float
    edges: Edges


class Blend:
    """Mutable; one per service."""

    def __init__(
        self, model: LengthModel | None, level: float | None = None, spread: float | None = None, templates: int = 4096
    ) -> None:
        """`level` and `spread` (log2 tokens) where something is known of the service before its first answer."""
        self._model = model
        self._running = RunningLengths(templates)
        self._limit = templates
        self._templates: OrderedDict[bytes, Template] = OrderedDict()
        self.calibration = Calibration()
        self._known = level is not None
        body = model.body if model is not None else None
        self._level = Mean(level if level is not None else body.level if body else 7.0, SERVICE_PRIOR, SERVICE_MEMORY)
        self._spread = Mean(spread or (body.spread if body else 1.0), SPREAD_PRIOR, SERVICE_MEMORY)

    def predict(self, template: bytes, max_tokens: int | None, edges: Edges) -> Prediction:
        """The Predictor protocol: nothing is known of the request's text."""
        return self._running.predict(template, max_tokens, edges)

    def learn(self, template: bytes, output_tokens: int) -> None:
        self._running.learn(template, output_tokens)

    def features(self, asked: Asked) -> Features | None:
        return self._model.features(asked) if self._model is not None else None

    def foretell(self, template: bytes, max_tokens: int | None, edges: Edges, features: Features | None) -> Foretold:
        """Pass the answer to `learn_from` with its length once it is known."""
        cap = max_tokens if max_tokens is not None and max_tokens > 0 else 1 << 20
        own = self._templates.get(template)
        if features is None or self._model is None:
            said = self._running.predict(template, max_tokens, edges)
            raw = self._running.predict(template, None, edges).q90_tokens
            return self._told(said.p, float(said.q50_tokens), raw, 2.0 * raw, None, said.p, edges, cap)
        level, spread = self._where(own)
        shape = Distribution(self._model.grid, self._model.shape(features), level, spread)
        below_s = min(1.0, shape.below(edges.output[0]))
        below_m = min(1.0, max(below_s, shape.below(edges.output[1])))
        p = model_p = (below_s, below_m - below_s, 1.0 - below_m)
        q50, q90 = shape.quantile(0.5), shape.quantile(0.9)
        if own is not None and own.history is not None and own.edges == edges:
            trust, past = own.trust(), own.history
            rest = 1.0 - trust
            a, b, c = past.p
            p = (rest * p[0] + trust * a, rest * p[1] + trust * b, rest * p[2] + trust * c)
            q50 = q50**rest * past.q50_tokens**trust
            q90 = q90**rest * past.q90_tokens**trust
        return self._told(p, q50, q90, shape.quantile(0.99), shape, model_p, edges, cap)

    def _told(
        self, p: tuple[float, float, float], q50: float, q90: float, q99: float,
        shape: Distribution | None, model_p: tuple[float, float, float], edges: Edges, cap: int,
    ) -> Foretold:  # fmt: skip
        small, medium = edges.output
        if cap <= small:
            p = (1.0, 0.0, 0.0)
        elif cap <= medium:
            p = (p[0], 1.0 - p[0], 0.0)
        held = max(q50, self.calibration.apply(q90))
        prediction = Prediction(p, max(1, min(cap, round(q50))), max(1, min(cap, round(held))))
        return Foretold(prediction, max(1, min(cap, round(max(held, q99)))), shape, model_p, held, edges)

    def _where(self, own: Template | None) -> tuple[float, float]:
        level, spread = self._level.value, self._spread.value
        if own is not None:
            return level + own.shift.value, own.spread.value
        if not self._known and self._model is not None:  # the less the service is known, the wider
            evidence = SERVICE_PRIOR / self._level.weight
            spread = (spread**2 + evidence * self._model.body.level_spread**2) ** 0.5
        return level, spread

    def learn_from(self, template: bytes, told: Foretold, output_tokens: int, cut: bool = False) -> None:
        """`cut` = the request's limit ended the answer: it is at least this long."""
        self.calibration = self.calibration.learn(told.uncapped_q90, output_tokens, cut)
        length = output_tokens
        if cut and told.distribution is not None:  # the middle of what is expected of such an answer
            length = round(told.distribution.quantile_after(output_tokens, 0.5))
        own = self._template(template)
        if own.history is not None and own.edges == told.edges and told.distribution is not None and not cut:
            at = "SML".index(told.edges.output_size(output_tokens))
            gain = log(max(LEAST_CHANCE, own.history.p[at])) - log(max(LEAST_CHANCE, told.model_p[at]))
            own.lead = SCORE_DECAY * own.lead + gain
        if told.distribution is not None:
            self._place(own, told.distribution, length)
        self._running.learn(template, length)
        own.answers += 1
        if own.answers <= REFRESH or own.answers % REFRESH == 0 or own.edges != told.edges:
            own.history, own.edges = self._running.predict(template, None, told.edges), told.edges

    def _place(self, own: Template, told: Distribution, length: int) -> None:
        """Moves service and template to where the answer lay against what the model says of its request."""
        middle = log2(told.quantile(0.5))
        z = (middle - told.level) / told.spread
        # Deviations are measured against what the shape itself, given the request, leaves open.
        unit = max(0.2, log2(told.quantile(0.84) / told.quantile(0.16)) / 2 / told.spread)
        actual = log2(max(1, length))
        level, spread = self._level.value, self._spread.value
        # Lengths lean to the short side: an unbounded mean would settle under the median that classes rest on.
        reach = FARTHEST * spread * unit
        self._level.add(level + min(reach, max(-reach, actual - level - spread * z)))
        self._spread.add(_spread(abs(actual - level - spread * z) / unit))
        own.spread.add(_spread(abs(actual - level - own.shift.value - own.spread.value * z) / unit))
        residual = actual - self._level.value - own.shift.value - own.spread.value * z
        reach = FARTHEST * own.spread.value * unit
        own.shift.add(own.shift.value + min(reach, max(-reach, residual)))

    def _template(self, template: bytes) -> Template:
        own = self._templates.get(template)
        if own is None:
            own = self._templates[template] = Template(
                Mean(0.0, TEMPLATE_PRIOR, TEMPLATE_MEMORY), Mean(self._spread.value, SPREAD_PRIOR, TEMPLATE_MEMORY)
            )
            if len(self._templates) > self._limit:
                self._templates.popitem(last=False)
        else:
            self._templates.move_to_end(template)
        return own


def _spread(deviation: float) -> float:
    return min(SPREADS[1], max(SPREADS[0], deviation / MEAN_OF_SPREAD))
