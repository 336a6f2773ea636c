"""How good a predictor is on a file of answers: each is predicted, then learnt of, in the order of the file.

Owns the runs (without history, with history, baselines) and their report. Refuses to look ahead: class edges that come
of the file are the terciles of the first half of each model's answers, and its second half is what is scored. (Edges
that come of the scored answers themselves tell a predictor where exactly those lie, and history seems to do harm.)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import log2
from typing import TypeVar

import numpy as np
from msgspec import Struct

from core.request import Prediction
from core.service import SIZES, Edges
from predictor.blend import Blend
from predictor.distribution import Distribution
from predictor.length import RunningLengths, choose_size
from predictor.model import LengthModel, prediction_of
from predictor.records import Record
from predictor.scores import BelowLimit, Covered, Reliable, Scores, below_limit, covered_by, reliability, scored

ROUTING = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
LEAST_ANSWERS = 100  # of a service, to speak of its coverage: at 100 its standard error is 3 points
T = TypeVar("T")
NowS = Callable[[], float]


class Rest(Struct, frozen=True):
    """Of answers that went on beyond `at`: how many stayed within the q50 and the q90 that were foretold then."""

    at: str
    n: int
    q50_held: float
    q90_held: float


class Report(Struct, frozen=True):
    """`without_history` knows a service's class edges and nothing else; `with_history` learns after each answer. `n`
    answers are scored, the second halves where edges come of the file."""

    n: int
    edges: dict[str, tuple[int, int]]
    without_history: Scores
    with_history: Scores
    baselines: dict[str, Scores]
    baselines_with_history: dict[str, Scores]
    routing: dict[str, Scores]  # with history, by the confidence that routing asks for
    services: Covered | None
    below_limit: BelowLimit | None  # with history
    reliability: list[Reliable]
    confusion: list[list[int]]  # with history: [true size][likeliest size]
    while_generating: list[Rest]
    p50_ms: float
    p99_ms: float
    history_p50_ms: float
    history_p99_ms: float


class _Run:
    """What one predictor said of each answer."""

    def __init__(self) -> None:
        self.told: list[Prediction] = []
        self.took_s: list[float] = []
        self.rest: list[tuple[str, bool, bool]] = []

    def sizes(self, confidence: float | None) -> list[int]:
        if confidence is None:
            return [max(range(3), key=told.p.__getitem__) for told in self.told]
        return [SIZES.index(choose_size(told, confidence)) for told in self.told]


class _Case:
    """The answers, which of them count, and their true sizes."""

    def __init__(self, records: Sequence[Record], fixed: tuple[int, int] | None) -> None:
        self.records = records
        self.terciles = fixed is None
        self.counts = list(range(len(records))) if fixed else _second_halves(records)
        self.edges = edges_of(records, fixed, set(self.counts) if fixed is None else set())
        self.truth = [SIZES.index(self.edges[r.model].output_size(r.output_tokens)) for r in records]

    def kept(self, values: Sequence[T]) -> list[T]:
        return [values[at] for at in self.counts]

    def score(self, run: _Run, confidence: float | None) -> Scores:
        tokens = self.kept([record.output_tokens for record in self.records])
        told = self.kept(run.told)
        q50, q90 = [one.q50_tokens for one in told], [one.q90_tokens for one in told]
        return scored(self.kept(self.truth), self.kept(run.sizes(confidence)), tokens, q50, q90)

    def score_sizes(self, sizes: Sequence[int], exact: bool = False) -> Scores:
        tokens = self.kept([record.output_tokens for record in self.records]) if exact else []
        return scored(self.kept(self.truth), self.kept(sizes), tokens, tokens, tokens)


def _second_halves(records: Sequence[Record]) -> list[int]:
    total, seen, found = Counter(record.model for record in records), Counter[str](), []
    for at, record in enumerate(records):
        if 2 * seen[record.model] >= total[record.model]:
            found.append(at)
        seen[record.model] += 1
    return found or list(range(len(records)))


def edges_of(records: Sequence[Record], fixed: tuple[int, int] | None, without: set[int]) -> dict[str, Edges]:
    """Of each model: `fixed`, or the terciles of its lengths but for those at `without`."""
    by_model: dict[str, list[int]] = {}
    for at, record in enumerate(records):
        lengths = by_model.setdefault(record.model, [])
        if at not in without or not lengths:
            lengths.append(record.output_tokens)
    edges = {}
    for model, lengths in by_model.items():
        low, high = (int(value) for value in np.quantile(lengths, (1 / 3, 2 / 3)))
        edges[model] = Edges(output=fixed or (max(1, low), max(2, low + 1, high)))
    return edges


def where(edges: Edges, model: LengthModel) -> tuple[float, float]:
    """What terciles tell of a service: level and spread, in log2 tokens."""
    low, high = edges.output
    first, second = model.body.terciles
    usual = model.body.spread
    spread = min(2 * usual, max(0.3 * usual, (log2(high) - log2(low)) / (second - first)))
    return (log2(low) + log2(high)) / 2 - spread * (first + second) / 2, spread


def evaluate(
    records: Sequence[Record], model: LengthModel, now_s: NowS, fixed: tuple[int, int] | None = None,
    confidence: float | None = None,
) -> Report:  # fmt: skip
    """`fixed` class edges, or None for terciles. A class is the likeliest one or, with `confidence`, the smallest that
    holds the answer so surely."""
    case = _Case(records, fixed)
    plain, history = _without_history(case, model, now_s), _with_history(case, model, now_s)
    truth = case.truth
    most = Counter(case.kept(truth)).most_common(1)[0][0]
    kept = case.kept(history.told)
    return Report(
        n=len(case.counts),
        edges={name: value.output for name, value in case.edges.items()},
        without_history=case.score(plain, confidence),
        with_history=case.score(history, confidence),
        baselines={
            "always_long": case.score_sizes([2] * len(truth)),
            "majority": case.score_sizes([most] * len(truth)),
            "max_tokens_only": case.score_sizes([_by_limit(r, case.edges[r.model]) for r in records]),
            "oracle": case.score_sizes(truth, exact=True),
        },
        baselines_with_history={"template_only": case.score(_template_only(case), confidence)},
        routing={str(level): case.score(history, level) for level in ROUTING},
        services=covered_by(
            [r.model for r in case.kept(records)], [r.output_tokens for r in case.kept(records)],
            [told.q90_tokens for told in kept], LEAST_ANSWERS,
        ),
        below_limit=below_limit(
            [r.output_tokens for r in case.kept(records)], [told.q90_tokens for told in kept],
            [r.asked.max_tokens for r in case.kept(records)],
        ),
        reliability=reliability(case.kept(truth), [told.p for told in kept]),
        confusion=_confusion(case.kept(truth), case.kept(history.sizes(None))),
        while_generating=_rests(history.rest),
        p50_ms=_ms(plain, 50), p99_ms=_ms(plain, 99),
        history_p50_ms=_ms(history, 50), history_p99_ms=_ms(history, 99),
    )  # fmt: skip


def _ms(run: _Run, q: float) -> float:
    return round(float(np.percentile(run.took_s, q)) * 1000, 4)


def _confusion(truth: Sequence[int], said: Sequence[int]) -> list[list[int]]:
    counts = Counter(zip(truth, said, strict=True))
    return [[counts[true, guess] for guess in range(3)] for true in range(3)]


def _by_limit(record: Record, edges: Edges) -> int:
    """The class of the limit: as long as it is let."""
    limit = record.asked.max_tokens
    return 2 if limit is None else SIZES.index(edges.output_size(limit))


def _without_history(case: _Case, model: LengthModel, now_s: NowS) -> _Run:
    run = _Run()
    for record in case.records:
        own = case.edges[record.model]
        level, spread = where(own, model) if case.terciles else (None, None)
        start_s = now_s()
        shape = model.distribution(model.features(record.asked), level, spread)
        told = prediction_of(shape, record.asked.max_tokens, own)
        run.took_s.append(now_s() - start_s)
        run.told.append(told)
    return run


def _with_history(case: _Case, model: LengthModel, now_s: NowS) -> _Run:
    run = _Run()
    blends = {n: Blend(model, *(where(own, model) if case.terciles else (None, None))) for n, own in case.edges.items()}
    counts = set(case.counts)
    for at, record in enumerate(case.records):
        blend, own = blends[record.model], case.edges[record.model]
        start_s = now_s()
        told = blend.foretell(record.template, record.asked.max_tokens, own, record.asked)
        run.took_s.append(now_s() - start_s)
        run.told.append(told.prediction)
        if at in counts and not record.cut:
            run.rest += _went_on(told.prediction, blend.length(told), record.output_tokens)
        blend.learn(told, record.output_tokens, record.cut)
    return run


def _went_on(told: Prediction, whole: Distribution, tokens: int) -> list[tuple[str, bool, bool]]:
    found = []
    for name, out in (("a quarter of q50", told.q50_tokens // 4), ("q50", told.q50_tokens), ("q90", told.q90_tokens)):
        if tokens > out:
            held = tuple(tokens <= whole.quantile_after(out, q) for q in (0.5, 0.9))
            found.append((name, held[0], held[1]))
    return found


def _rests(rest: Sequence[tuple[str, bool, bool]]) -> list[Rest]:
    made = []
    for name in dict.fromkeys(name for name, _, _ in rest):
        own = [(a, b) for at, a, b in rest if at == name]
        made.append(Rest(name, len(own), *(round(float(np.mean(held)), 4) for held in zip(*own, strict=True))))
    return made


def _template_only(case: _Case) -> _Run:
    run = _Run()
    running = {name: RunningLengths() for name in case.edges}
    for record in case.records:
        own = running[record.model]
        run.told.append(own.predict(record.template, record.asked.max_tokens, case.edges[record.model]))
        own.learn(record.template, record.output_tokens)
    return run
