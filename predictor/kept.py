"""What a predictor learnt of its service, as a value for a file and back: numbers and hashes, no text.

Owns the form and its bounds: the most recently used templates and clients, of each histogram the bins that still weigh
something. Refuses values that no predictor could have learnt. A state counts only beside the length model that it was
learnt beside: levels and spreads are in that model's units."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from msgspec import Struct

from predictor.blend import Blend, ServiceState, TemplateState
from predictor.conformal import FURTHEST, Calibration
from predictor.hints import ClientState
from predictor.length import BINS, Sparse
from predictor.sealed import seal, unseal
from predictor.sizes import FARTHEST
from predictor.track import Chances, Track

SCHEMA = 1
TEMPLATES = 1024  # of a service; 4096 are known while it runs
CLIENTS = 256
OLDEST_S = 7 * 86_400.0  # an older state is of other traffic
LARGEST_FILE = 64 << 20
FURTHEST_LEVEL = 40.0  # doublings; no level is so far off
MOST_ANSWERS = 1 << 53


class Learnt(Struct, frozen=True):
    """Of one service with one length model. `bytes_per_token` of its prompts; `templates` from the one used longest
    ago to the newest."""

    service: str
    model: str
    wall_s: float
    bytes_per_token: float
    state: ServiceState
    calibration: Calibration
    templates: list[TemplateState]
    clients: list[ClientState]


def dump(learnt: list[Learnt]) -> bytes:
    return seal(msgspec.json.encode(learnt), SCHEMA)


def load(data: bytes, wall_s: float) -> list[Learnt]:
    """What is not too old. ValueError where it is no such file, is damaged, or holds what cannot be."""
    if len(data) > LARGEST_FILE:
        raise ValueError(f"larger than {LARGEST_FILE >> 20} MiB")
    try:
        held = msgspec.json.decode(unseal(data, SCHEMA), type=list[Learnt])
    except msgspec.ValidationError as error:
        raise ValueError(f"holds something else: {error}") from None
    for one in held:
        if problem := _problem(one):
            raise ValueError(f"service {one.service}: {problem}")
    return [one for one in held if wall_s - one.wall_s <= OLDEST_S]


def learnt_of(blend: Blend, service: str, wall_s: float, bytes_per_token: float) -> Learnt:
    """At once; whoever may not stop for milliseconds passes the templates in pieces (`gateway/learnt.py`)."""
    names = blend.recent(TEMPLATES)
    return assemble(blend, service, wall_s, bytes_per_token, [state for n in names if (state := blend.template(n))])


def assemble(
    blend: Blend, service: str, wall_s: float, bytes_per_token: float, templates: list[TemplateState]
) -> Learnt:
    return Learnt(
        service, blend.model_name, wall_s, bytes_per_token, blend.service_state(), blend.calibration, templates,
        blend.hints.recent(CLIENTS),
    )  # fmt: skip


def restore(blend: Blend, learnt: Learnt) -> None:
    """Before the first answer. ValueError where it was learnt beside another model."""
    if learnt.model != blend.model_name:
        raise ValueError("it was learnt beside another length model")
    blend.calibration = learnt.calibration
    blend.restore(learnt.state, learnt.templates)
    blend.hints.restore(learnt.clients)


def _problem(one: Learnt) -> str:
    if not 0.1 <= one.bytes_per_token <= 100 or not 0 <= one.state.answers <= MOST_ANSWERS:
        return "its prompts' tokens or its answers cannot be"
    if abs(one.calibration.offset) > FURTHEST or not 0 <= one.calibration.missed <= one.calibration.judged:
        return "its calibration cannot be"
    means = [one.state.level, *(state.shift for state in one.templates), *(state.shift for state in one.clients)]
    spreads = [one.state.spread, *(state.spread for state in one.templates), *(state.off for state in one.clients)]
    if not all(abs(mean.value) <= FURTHEST_LEVEL for mean in means):
        return "a level cannot be"
    if not all(0 <= mean.value <= FURTHEST_LEVEL for mean in spreads) or one.state.spread.value <= 0:
        return "a spread cannot be"
    if not all(mean.weight > 0 and mean.memory >= 1 for mean in means + spreads):
        return "a mean weighs nothing"
    if not one.state.shared or not all(map(_is_histogram, [one.state.shared, *(own.lengths for own in one.templates)])):
        return "a histogram cannot be"
    sizes = one.state.sizes
    if sizes is not None and not (_is_track(sizes.track) and 0 <= sizes.trust <= 1 and _are_factors(sizes.factors)):
        return "its size factors cannot be"
    tracks = [*(own.track for own in one.templates), *(own.track for own in one.clients)]
    if not all(map(_is_track, tracks)):
        return "a record of opinions cannot be"
    return ""


def _is_histogram(own: Sparse) -> bool:
    bins = [at for at, _ in own]
    return all(0 <= at < BINS and 0 < weight < 1e12 for at, weight in own) and all(a < b for a, b in pairwise(bins))


def _is_track(own: Track) -> bool:
    return 0 <= own.answers <= MOST_ANSWERS and abs(own.lead) <= 1e6


def _are_factors(factors: Chances) -> bool:
    return all(1 / FARTHEST <= factor <= FARTHEST for factor in factors)
