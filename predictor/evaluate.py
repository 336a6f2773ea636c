"""How good a predictor is on a file of answers: each is predicted, then learnt of, in the order of the file.

Owns the runs (without history, with history, baselines) and their report. Refuses to look ahead: only the class edges
may come from the file, where they are asked for as its terciles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import log2

import numpy as np
from msgspec import Struct

from core.request import Prediction
from core.service import Edges
from predictor.blend import Blend
from predictor.length import RunningLengths, choose_size
from predictor.model import LengthModel, prediction_of
from predictor.records import Record
from predictor.scores import Scores, scored

SIZES = "SML"
ROUTING = (0.5, 0.6, 0.7, 0.8)


class Report(Struct, frozen=True):
    """`without_history` knows a service's class edges and nothing else; `with_history` learns after each answer."""

    n: int
    edges: dict[str, tuple[int, int]]
    without_history: Scores
    with_history: Scores
    baselines: dict[str, Scores]
    baselines_with_history: dict[str, Scores]
    routing: dict[str, Scores]  # with history, by the confidence that routing asks for
    p50_ms: float
    p99_ms: float
    history_p50_ms: float
    history_p99_ms: float


class _Run:
    """What one predictor said of each answer."""

    def __init__(self) -> None:
        self.said: list[int] = []
        self.by_confidence: dict[float, list[int]] = {confidence: [] for confidence in ROUTING}
        self.q50: list[float] = []
        self.q90: list[float] = []
        self.took_s: list[float] = []

    def add(self, told: Prediction, confidence: float | None) -> None:
        self.said.append(_choose(told, confidence))
        for level, said in self.by_confidence.items():
            said.append(_choose(told, level))
        self.q50.append(told.q50_tokens)
        self.q90.append(told.q90_tokens)


def _choose(told: Prediction, confidence: float | None) -> int:
    if confidence is None:
        return max(range(3), key=told.p.__getitem__)
    return SIZES.index(choose_size(told, confidence))


def edges_of(records: Sequence[Record], fixed: tuple[int, int] | None) -> dict[str, Edges]:
    """Of each model: `fixed`, or the terciles of its lengths, as `joulegate edges` derives them."""
    by_model: dict[str, list[int]] = {}
    for record in records:
        by_model.setdefault(record.model, []).append(record.output_tokens)
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
    records: Sequence[Record], model: LengthModel, now_s: Callable[[], float], fixed: tuple[int, int] | None = None,
    confidence: float | None = None,
) -> Report:  # fmt: skip
    """`fixed` class edges, or None for the terciles of each model. A class is the likeliest one or, with
    `confidence`, the smallest that holds the answer so surely."""
    edges = edges_of(records, fixed)
    truth = [SIZES.index(edges[r.model].output_size(r.output_tokens)) for r in records]
    tokens = [record.output_tokens for record in records]

    def score(run: _Run) -> Scores:
        return scored(truth, run.said, tokens, run.q50, run.q90)

    plain = _without_history(records, model, edges, fixed is None, now_s, confidence)
    history = _with_history(records, model, edges, fixed is None, now_s, confidence)
    template = _template_only(records, edges, confidence)
    most = Counter(truth).most_common(1)[0][0]
    capped = [_by_limit(r, edges[r.model]) for r in records]
    return Report(
        n=len(records),
        edges={name: value.output for name, value in edges.items()},
        without_history=score(plain),
        with_history=score(history),
        baselines={
            "always_long": scored(truth, [2] * len(truth)),
            "majority": scored(truth, [most] * len(truth)),
            "max_tokens_only": scored(truth, capped),
            "oracle": scored(truth, truth, tokens, tokens, tokens),
        },
        baselines_with_history={"template_only": score(template)},
        routing={str(level): scored(truth, said) for level, said in history.by_confidence.items()},
        p50_ms=_ms(plain, 50), p99_ms=_ms(plain, 99),
        history_p50_ms=_ms(history, 50), history_p99_ms=_ms(history, 99),
    )  # fmt: skip


def _ms(run: _Run, q: float) -> float:
    return round(float(np.percentile(run.took_s, q)) * 1000, 4)


def _by_limit(record: Record, edges: Edges) -> int:
    """The class of the limit: as long as it is let."""
    limit = record.asked.max_tokens
    return 2 if limit is None else SIZES.index(edges.output_size(limit))


def _without_history(
    records: Sequence[Record], model: LengthModel, edges: dict[str, Edges], terciles: bool,
    now_s: Callable[[], float], confidence: float | None,
) -> _Run:  # fmt: skip
    run = _Run()
    for record in records:
        own = edges[record.model]
        level, spread = where(own, model) if terciles else (None, None)
        start_s = now_s()
        told = prediction_of(
            model.distribution(model.features(record.asked), level, spread), record.asked.max_tokens, own
        )
        run.took_s.append(now_s() - start_s)
        run.add(told, confidence)
    return run


def _with_history(
    records: Sequence[Record], model: LengthModel, edges: dict[str, Edges], terciles: bool,
    now_s: Callable[[], float], confidence: float | None,
) -> _Run:  # fmt: skip
    run = _Run()
    blends = {name: Blend(model, *(where(own, model) if terciles else (None, None))) for name, own in edges.items()}
    for record in records:
        blend, own = blends[record.model], edges[record.model]
        start_s = now_s()
        told = blend.foretell(record.template, record.asked.max_tokens, own, record.asked)
        run.took_s.append(now_s() - start_s)
        run.add(told.prediction, confidence)
        blend.learn(told, record.output_tokens, record.cut)
    return run


def _template_only(records: Sequence[Record], edges: dict[str, Edges], confidence: float | None) -> _Run:
    run = _Run()
    running = {name: RunningLengths() for name in edges}
    for record in records:
        own = running[record.model]
        told = own.predict(record.template, record.asked.max_tokens, edges[record.model])
        run.add(told, confidence)
        own.learn(record.template, record.output_tokens)
    return run
