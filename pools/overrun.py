"""An answer longer than predicted: stay, ask for a higher clock, or go elsewhere, whichever costs least. Pure.

Costs are joules, and no threshold is set by hand. To go on costs what the rest of the answer adds to its instance;
to move adds the prefill of what the new instance's cache does not hold; a boost makes the steps of all who run beside
it dearer. A missed promise costs what the request has cost so far: joules that were then spent on no good token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, inf

from msgspec import Struct

from core.service import SIZES, ServiceSpec
from pools.instance import Instance
from predictor.distribution import Distribution
from profiles.engine_model import EngineModel

QUANTILES = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)  # each stands for a tenth of the answers
MOST_SITES = 8  # weighed per overrun
LATE_SHARE = 0.01  # of an answer's gaps may be late (docs/figures.md)


class Stream(Struct, frozen=True):
    """The answer in question. `out_tokens` are there, `late` of its gaps were; `most_tokens` is its own limit."""

    prompt_tokens: int
    out_tokens: int
    most_tokens: int
    late: int
    tbt_limit_s: float
    length: Distribution


class Site(Struct, frozen=True):
    """An instance that could make the rest. `running` and `kv_tokens` count the stream itself; `kv_room`: what the
    instance holds at most, 0 = not known; `cached_tokens` of the stream's that it need not prefill."""

    id: str
    model: EngineModel
    tp: int
    clock_mhz: int
    running: int
    kv_tokens: int
    kv_room: int = 0
    cached_tokens: int = 0


class Choice(Struct, frozen=True):
    """`action`: stay, boost or move. `site`: where; `clock_mhz`: what a boost asks for. `joules` of each way that there
    was, in the order stay, boosts, moves."""

    action: str
    site: str
    clock_mhz: int
    joules: tuple[float, ...]


def site(instance: Instance, model: EngineModel, more: int, tokens: int, cached: int = 0) -> Site:
    """An instance as the router knows it, with `more` sequences and `tokens` beside what it runs."""
    running, kv_tokens = max(1, instance.sequences + more), instance.kv_tokens + tokens
    room = instance.limits.kv_tokens
    return Site(instance.id, model, instance.tp, instance.clock_mhz, running, kv_tokens, room, cached)


def elsewhere(
    spec: ServiceSpec, instances: Iterable[Instance], here: Instance, stream: Stream, now_s: float
) -> list[Site]:
    """Instances of the pools that serve an answer of one token more, which are open and have a slot. Of the prompt they
    hold what their prefix caches hold of others; of the answer nothing, for they have never seen it."""
    first = spec.pool_for(spec.edges.output_size(stream.out_tokens + 1))
    names = {pool.name for pool in spec.pools[first:]}
    tokens = stream.prompt_tokens + stream.out_tokens
    found = [
        site(instance, instance.model, 1, tokens, int(instance.prefix_hits.share * stream.prompt_tokens))
        for instance in instances
        if instance is not here and instance.model is not None and instance.pool in names and instance.open_to(now_s)
        and instance.sequences < instance.limits.slots
    ]  # fmt: skip
    return found[:MOST_SITES]


def asked_from(spec: ServiceSpec, output_size: str) -> float:
    """Tokens from which an answer is longer than its size says."""
    edges = dict(zip(SIZES, spec.edges.output, strict=False))
    return edges.get(output_size, inf) + 2  # the edge is inclusive, and chat's first event is no token


def asked_again(spec: ServiceSpec, tokens: int) -> float:
    """Of an answer that has `tokens` and stays: when to weigh it again."""
    return max(2.0 * tokens, asked_from(spec, spec.edges.output_size(tokens + 1)))


def choose(stream: Stream, here: Site, others: Sequence[Site] = ()) -> Choice:
    """Ties go to whoever comes first: to stay, then the lower clock."""
    rest_tokens = expected_rest(stream)
    lost_j = spent_j(stream, here)
    ways = [("stay", here.id, here.clock_mhz, _go_on_j(stream, here, rest_tokens, lost_j))]
    before_w, before_s = _pace(here, here.clock_mhz)
    for clock_mhz in here.model.clocks_mhz:
        if clock_mhz > here.clock_mhz:
            after_w, after_s = _pace(here, clock_mhz)
            beside_j = max(0.0, after_w * after_s - before_w * before_s) * rest_tokens
            boosted = _miss(stream, here, clock_mhz, late=stream.late) * lost_j
            ways.append(("boost", here.id, clock_mhz, rest_tokens * _token_j(here) + beside_j + boosted))
    ways += [("move", site.id, site.clock_mhz, _move_j(stream, site, rest_tokens, lost_j)) for site in others]
    action, site, clock_mhz, _ = min(ways, key=lambda way: way[3])
    return Choice(action, site, clock_mhz, tuple(way[3] for way in ways))


def expected_rest(stream: Stream) -> float:
    """Tokens still to come, on average, given that the answer goes on."""
    lengths = (stream.length.quantile_after(stream.out_tokens, q) for q in QUANTILES)
    whole = sum(min(float(stream.most_tokens), length) for length in lengths) / len(QUANTILES)
    return max(1.0, whole - stream.out_tokens)


def spent_j(stream: Stream, here: Site) -> float:
    """What the request has cost, at the price of its present instance."""
    prefill_s = here.model.prefill_s(here.tp, here.clock_mhz, stream.prompt_tokens)
    prefill_w = here.model.watts(here.tp, here.clock_mhz, 0, max(1, stream.prompt_tokens))
    return prefill_s * prefill_w + stream.out_tokens * _token_j(here)


def _go_on_j(stream: Stream, site: Site, rest_tokens: float, lost_j: float) -> float:
    return rest_tokens * _token_j(site) + _miss(stream, site, site.clock_mhz, late=stream.late) * lost_j


def _move_j(stream: Stream, site: Site, rest_tokens: float, lost_j: float) -> float:
    """The pause is one gap, late if the prefill takes longer than the limit."""
    tokens = max(1, stream.prompt_tokens + stream.out_tokens - site.cached_tokens)
    prefill_s = site.model.prefill_s(site.tp, site.clock_mhz, tokens)
    prefill_j = prefill_s * site.model.watts(site.tp, site.clock_mhz, site.running - 1, tokens)
    late = stream.late + (prefill_s > stream.tbt_limit_s)
    return prefill_j + rest_tokens * _token_j(site) + _miss(stream, site, site.clock_mhz, late=late) * lost_j


def _pace(site: Site, clock_mhz: int) -> tuple[float, float]:
    """(watts, seconds) of a decode step."""
    model = site.model
    step_s = model.decode_step_s(site.tp, clock_mhz, site.running, site.kv_tokens)
    return model.watts(site.tp, clock_mhz, site.running), step_s


def _token_j(site: Site) -> float:
    """What one more token of one more sequence adds there: the batch's step with it less the one without it."""
    with_w, with_s = _pace(site, site.clock_mhz)
    if site.running <= 1:
        return with_w * with_s
    model, others = site.model, site.running - 1
    context = site.kv_tokens * others // site.running
    without_s = model.decode_step_s(site.tp, site.clock_mhz, others, context)
    return max(0.0, with_w * with_s - model.watts(site.tp, site.clock_mhz, others) * without_s)


def _miss(stream: Stream, site: Site, clock_mhz: int, *, late: int) -> float:
    """Probability that the promise breaks there: more late gaps than allowed, or no room for what is still to come,
    which costs a preemption and so a late gap too."""
    _, step_s = _pace(site, clock_mhz)
    allowed = ceil(LATE_SHARE * stream.out_tokens) - late
    if allowed < 0:
        return 1.0
    bears = stream.most_tokens - stream.out_tokens
    if step_s > stream.tbt_limit_s:
        bears = min(bears, allowed)
    if site.kv_room:
        bears = min(bears, max(0, site.kv_room - site.kv_tokens))
    if stream.out_tokens + bears >= stream.most_tokens:
        return 0.0
    return 1.0 - stream.length.share_after(stream.out_tokens, stream.out_tokens + bears)
