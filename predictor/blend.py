"""The predictor of one service: a model that reads the request, and what the service's own answers taught since.

Owns what is learnt online, all of it bounded: where the service's answers lie and how widely, the same of each
template, how good the template's own quantiles and its clients' hints were against the model's, how often each size
came against what was said, and the calibration of q90. Refuses to keep text. Without a model, or of a request that
nobody read, it says what its template answered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import log2, pi, sqrt

from msgspec import Struct

from core.request import Prediction
from core.service import Edges
from predictor.conformal import Calibration
from predictor.distribution import NORMAL_BELOW, Distribution
from predictor.features import Asked, Features
from predictor.hints import Hint, Hints
from predictor.length import RunningLengths, Sparse, quantile
from predictor.model import LengthModel, Shape
from predictor.said import Said, within
from predictor.sizes import SizeFactors
from predictor.track import Mean, Track

SERVICE_PRIOR = 4.0  # the model's own level and spread weigh as this many answers
KNOWN_PRIOR = 100.0  # as many as a level and spread that come of the service's own terciles
SPREAD_PRIOR = 12.0
TEMPLATE_PRIOR = 3.0
SERVICE_MEMORY = 300.0  # answers after which the oldest have no say
TEMPLATE_MEMORY = 100.0
SCORE = sqrt(2.0 * pi)  # spreads per unit of probability, at the median of a normal distribution
REFRESH = 8  # after this many answers a template's quantiles are read anew; of the first ones after each
SPREADS = (0.1, 4.0)  # log2; between a form letter and anything at all
RISE = 1e-6  # doublings between two quantiles that fall together


class Template(Struct):
    """`shift` and `spread` in log2 tokens against the service; `said`: by its own answers alone; `trust`: their weight,
    as `track` has it."""

    shift: Mean
    spread: Mean
    track: Track
    said: Said | None = None
    edges: Edges | None = None
    trust: float = 0.0


class TemplateState(Struct, frozen=True):
    """What is known of a template, to be kept: `name` is a hash."""

    name: bytes
    shift: Mean
    spread: Mean
    track: Track
    lengths: Sparse


class ServiceState(Struct, frozen=True):
    answers: int
    level: Mean
    spread: Mean
    shared: Sparse
    sizes: SizeFactors | None = None  # None: a file of before they were


class Foretold(Struct, frozen=True, gc=False):
    """What was said of a request, kept until its answer is known: no text, only numbers. `base`: before template and
    hint had their say; `said`: before the sizes' factors, calibration, by `offset`, and the request's own limit;
    `trust`: the template's weight; the shape lies at `level` and `spread`."""

    template: bytes
    edges: Edges
    prediction: Prediction
    base: Said
    said: Said
    offset: float
    shape: Shape | None = None
    level: float = 0.0
    spread: float = 0.0
    features: Features | None = None
    trust: float = 0.0
    hint: Hint | None = None

    @property
    def whole(self) -> Distribution | None:
        return None if self.shape is None else self.shape.at(self.level, self.spread)


class Blend:
    """Mutable; one per service."""

    def __init__(
        self, model: LengthModel | None, level: float | None = None, spread: float | None = None, templates: int = 4096
    ) -> None:
        """`level` and `spread` (log2 tokens) where something is known of the service before its first answer."""
        self.model = model
        self._running = RunningLengths(templates)
        self._limit = templates
        self._templates: OrderedDict[bytes, Template] = OrderedDict()
        self.hints = Hints()
        self.calibration = Calibration()
        self.sizes = SizeFactors()
        self._known = level is not None
        self._answers = 0
        body = model.body if model is not None else None
        level_prior, spread_prior = (KNOWN_PRIOR, KNOWN_PRIOR) if self._known else (SERVICE_PRIOR, SPREAD_PRIOR)
        self._level = Mean(level if level is not None else body.level if body else 7.0, level_prior, SERVICE_MEMORY)
        self._spread = Mean(spread or (body.spread if body else 1.0), spread_prior, SERVICE_MEMORY)

    @property
    def templates(self) -> int:
        return len(self._templates)

    @property
    def model_name(self) -> str:
        """Empty without a model."""
        return self.model.name if self.model is not None else ""

    def recent(self, most: int) -> list[bytes]:
        """Templates, from the one used longest ago to the newest."""
        return list(self._templates)[-most:]

    def template(self, name: bytes) -> TemplateState | None:
        own = self._templates.get(name)
        if own is None:
            return None
        return TemplateState(name, own.shift, own.spread, own.track, self._running.kept(name))

    def service_state(self) -> ServiceState:
        return ServiceState(self._answers, self._level, self._spread, self._running.kept_shared(), self.sizes)

    def restore(self, state: ServiceState, templates: Sequence[TemplateState]) -> None:
        """Before the first answer."""
        self._answers, self._level, self._spread = state.answers, state.level, state.spread
        self.sizes = state.sizes or SizeFactors()
        newest = templates[-self._limit :]
        self._running.restore(state.shared, ((one.name, one.lengths) for one in newest))
        for one in newest:
            self._templates[one.name] = Template(one.shift, one.spread, one.track, trust=one.track.trust())

    def foretell(
        self, template: bytes, limit: int | None, edges: Edges, asked: Asked | None = None, client: bytes = b""
    ) -> Foretold:
        """`limit`: the most tokens that this answer can have. Pass the answer to `learn` once its length is known."""
        own, trust, level, spread = self._templates.get(template), 0.0, 0.0, 0.0
        shape = features = hint = None
        if asked is None or self.model is None:
            said = base = self._running.say(template, edges)
        else:
            features = self.model.features(asked)
            shape = self.model.shape(features)
            level, spread = self._where(own)
            said = base = shape.said(level, spread, edges)
            if own is not None:
                if own.said is None or (own.edges is not edges and own.edges != edges):
                    own.said, own.edges = self._running.say(template, edges), edges
                trust = own.trust
                said = said.joined(own.said, trust)
        if asked is not None and asked.hint_tokens is not None and asked.hint_tokens > 0:
            hint = self.hints.read(client, asked.hint_tokens, edges)
            said = said.joined(hint.said, hint.weight)
        offset = self.calibration.offset
        p = said.p if shape is None else self.sizes.apply(said.p, edges)
        prediction = within(said, limit, edges, offset, p)
        return Foretold(
            template, edges, prediction, base, said, offset, shape, level, spread, features, trust, hint
        )  # fmt: skip

    def length(self, told: Foretold) -> Distribution:
        """The whole distribution of what was said, without a limit; the upper half calibrated as q90 is."""
        below, whole = self._running.below(told.template), told.whole
        logs: list[float] = []
        for share in NORMAL_BELOW:
            past = log2(quantile(below, share))
            at = past if whole is None else log2(whole.quantile(share))
            at += told.trust * (past - at)
            if told.hint is not None:
                at += told.hint.weight * (log2(told.hint.shape.quantile(share)) - at)
            if share > 0.5:
                at += told.offset
            logs.append(max(at, logs[-1] + RISE) if logs else at)
        return Distribution(tuple(logs), NORMAL_BELOW, 0.0, 1.0)

    def learn(self, told: Foretold, output_tokens: int, cut: bool = False) -> None:
        """`cut` = the request's limit ended the answer: it is at least this long."""
        self.calibration = self.calibration.learn(told.said.q90(told.offset), output_tokens, cut)
        length = output_tokens
        if cut:  # the middle of what is expected of such an answer
            length = round((told.whole or self.length(told)).quantile_after(output_tokens, 0.5))
        own = self._template(told.template)
        if not cut:
            if own.said is not None and own.edges == told.edges and told.shape is not None:
                own.track.judge(own.said.p, told.base.p, told.edges, output_tokens)
            if told.hint is not None:
                self.hints.learn(told.hint, told.base.p, told.edges, output_tokens)
        if told.shape is not None:
            self._place(own, told.shape, length)
            self.sizes.learn(told.said.p, told.edges, length)
        self._running.learn(told.template, length)
        self._answers += 1
        own.track.answers += 1
        own.trust = own.track.trust()
        if own.track.answers <= REFRESH or own.track.answers % REFRESH == 0 or own.edges != told.edges:
            own.said, own.edges = self._running.say(told.template, told.edges), told.edges

    def _where(self, own: Template | None) -> tuple[float, float]:
        """A template that is the whole service is where the service is: to follow the same answers twice would only
        double the noise. One with half of the answers or fewer stands for itself."""
        level, spread = self._level.value, self._spread.value
        if own is not None:
            apart = 2.0 - 2.0 * own.track.answers / max(1, self._answers)
            if apart <= 0.0:
                return level, spread
            if apart >= 1.0:
                return level + own.shift.value, own.spread.value
            return level + apart * own.shift.value, spread ** (1.0 - apart) * own.spread.value**apart
        if not self._known and self.model is not None:  # the less the service is known, the wider
            evidence = SERVICE_PRIOR / self._level.weight
            spread = (spread**2 + evidence * self.model.body.level_spread**2) ** 0.5
        return level, spread

    def _place(self, own: Template, told: Shape, length: int) -> None:
        """Moves service and template to where the answer lay against what the model says of its request."""
        # Deviations are measured against what the shape itself, given the request, leaves open.
        unit = max(0.2, told.width * told.base.spread)
        level, spread = self._level.value, self._spread.value
        service = told.at(level, spread).below(length)
        template = told.at(level + own.shift.value, own.spread.value).below(length)
        _follow(self._level, self._spread, service, unit)
        _follow(own.shift, own.spread, template, unit)

    def _template(self, template: bytes) -> Template:
        own = self._templates.get(template)
        if own is None:
            own = self._templates[template] = Template(
                Mean(0.0, TEMPLATE_PRIOR, TEMPLATE_MEMORY),
                Mean(self._spread.value, SPREAD_PRIOR, TEMPLATE_MEMORY),
                Track(),
            )
            if len(self._templates) > self._limit:
                self._templates.popitem(last=False)
        else:
            self._templates.move_to_end(template)
        return own


def _follow(level: Mean, spread: Mean, share: float, unit: float) -> None:
    """`share`: the probability that was given to shorter answers. Such shares are even when a prediction is right;
    their mean moves the level and their distance from the middle the spread. A mean of lengths would follow the few
    very short answers, a refusal among essays, and lie below the median that sizes rest on."""
    level.add(level.value + SCORE * (share - 0.5) * spread.value * unit)
    wider = spread.value * (1.0 + SCORE * (abs(share - 0.5) - 0.25))
    spread.add(min(SPREADS[1], max(SPREADS[0], wider)))
