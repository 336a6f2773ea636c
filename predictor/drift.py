"""Whether q90 keeps its promise when a service's answers change at once: another service's follow them.

Owns the pairs (the shortest answers with the longest, and back) and what is counted. Refuses to look ahead: each answer
is foretold, then learnt of, by one predictor that is told nothing of the change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from core.service import Edges
from predictor.blend import Blend
from predictor.evaluate import LEAST_ANSWERS
from predictor.model import LengthModel
from predictor.records import Record

SOON, LATER = 50, 200  # answers after the change


class Covered(Struct, frozen=True):
    """The share of answers within the q90 that was foretold; None where there are none. `soon`: of the first SOON after
    the change, `later`: of those from there to LATER, `whole`: before and after together."""

    before: float
    soon: float
    later: float | None
    after: float
    whole: float


class Drift(Struct, frozen=True):
    """One service's answers after another's; medians of their lengths in tokens."""

    first: str
    then: str
    first_median_tokens: float
    then_median_tokens: float
    answers: int
    covered: Covered


def drifts(
    records: Sequence[Record], model: LengthModel, edges: Edges, pairs: int, least: int = LEAST_ANSWERS
) -> tuple[list[Drift], list[Drift]]:
    """From short to long answers and from long to short, at most `pairs` each, of services with `least` answers or
    more. Raises ValueError where there are not two."""
    by_service: dict[str, list[Record]] = {}
    for record in records:
        by_service.setdefault(record.model, []).append(record)
    enough = [own for own in by_service.values() if len(own) >= least]
    if len(enough) < 2:
        raise ValueError(f"needs two services with {least} answers each")
    enough.sort(key=lambda own: (_median(own), own[0].model))
    both = list(zip(enough, reversed(enough), strict=True))[: min(pairs, len(enough) // 2)]
    return [_drift(a, b, model, edges) for a, b in both], [_drift(b, a, model, edges) for a, b in both]


def _median(records: Sequence[Record]) -> float:
    return float(np.median([record.output_tokens for record in records]))


def _drift(first: list[Record], then: list[Record], model: LengthModel, edges: Edges) -> Drift:
    blend = Blend(model)
    held: list[bool] = []
    for record in (*first, *then):
        told = blend.foretell(record.template, record.asked.max_tokens, edges, record.asked)
        held.append(record.output_tokens <= told.prediction.q90_tokens)
        blend.learn(told, record.output_tokens, record.cut)
    change = len(first)
    later = held[change + SOON : change + LATER]
    covered = Covered(
        before=_share(held[:change]),
        soon=_share(held[change : change + SOON]),
        later=_share(later) if later else None,
        after=_share(held[change:]),
        whole=_share(held),
    )
    return Drift(first[0].model, then[0].model, _median(first), _median(then), len(held), covered)


def _share(held: Sequence[bool]) -> float:
    return round(sum(held) / len(held), 4)
