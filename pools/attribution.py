"""Whose joules they are: what an instance spent in a window, shared out among idling and the requests that ran there.

Pure. The engine model gives the shares, a counter the sum: a step's joules belong to its prefill and its decode tokens
by their marginal time (docs/figures.md); prefill is shared by prompt tokens, decode by sequence-seconds, each weighted
by what its context costs to read. Where a counter was read all parts are scaled alike to its joules, within SCALES:
what no scale in there explains is left over as the residual and never hidden in somebody's bill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from pools.stints import Stint
from profiles.engine_model import EngineModel

SCALES = (0.5, 2.0)  # a counter further from the model than this measures something else: work that is not ours


@dataclass(frozen=True, slots=True)
class Site:
    """An instance as it was in a window. `idle_w`: all of it with nothing running, or asleep; `pace`: its seconds per
    real one (emulated engines may run faster)."""

    model: EngineModel | None
    tp: int
    clock_mhz: int
    step_tokens: int
    idle_w: float
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """A window's joules by the engine model, and who takes part in them. `tokens` are prefill tokens by stint,
    `weights` each stint's share of the decode joules, `seq_s` their sequence-seconds."""

    seconds: float
    idle_j: float = 0.0
    prefill_j: float = 0.0
    decode_j: float = 0.0
    tokens: tuple[tuple[Stint, float], ...] = ()
    weights: tuple[tuple[Stint, float], ...] = ()
    seq_s: float = 0.0

    @property
    def parts(self) -> tuple[float, float, float]:
        return self.idle_j, self.prefill_j, self.decode_j


@dataclass(frozen=True, slots=True)
class Shares:
    """A window's joules as booked. `residual_j`: the counter's that nothing explains; 0 where none was read."""

    idle_j: float
    prefill_j: float
    decode_j: float
    residual_j: float

    @property
    def requests_j(self) -> float:
        return self.prefill_j + self.decode_j


def work_of(site: Site, stints: Sequence[Stint], from_s: float, to_s: float) -> Work:
    """What the engine model says an instance did in [from_s, to_s)."""
    seconds = to_s - from_s
    if seconds <= 0:
        return Work(0.0)
    busy_s = _busy_s(stints, from_s, to_s)
    tokens = tuple((stint, done) for stint in stints if (done := _prefilled(site, stint, from_s, to_s)) > 0)
    spans = ((one, _overlap(one.first_s, one.end_s, from_s, to_s)) for one in stints if one.first_s and one.sequences)
    decoding = [(stint, spent_s) for stint, spent_s in spans if spent_s > 0]
    seq_s = sum(stint.sequences * spent_s for stint, spent_s in decoding)
    if site.model is None:
        return _by_time(seconds, busy_s, tokens, decoding, seq_s)
    return _by_model(site, site.model, seconds, busy_s, tokens, decoding, seq_s, to_s)


def _by_model(
    site: Site, model: EngineModel, seconds: float, busy_s: float, tokens: tuple[tuple[Stint, float], ...],
    decoding: list[tuple[Stint, float]], seq_s: float, to_s: float,
) -> Work:  # fmt: skip
    tp, mhz, pace = site.tp, site.clock_mhz, site.pace
    idle_j = site.idle_w * (seconds - busy_s) * pace
    if busy_s <= 0:
        return Work(seconds, idle_j, 0.0, 0.0, tokens, (), 0.0)
    busy_s *= pace
    prompt = sum(done for _, done in tokens)
    running = ceil(seq_s * pace / busy_s) if seq_s else 0
    step_s = model.decode_step_s(tp, mhz, max(1, running), running * model.context_tokens)
    contexts = [stint.prefill_tokens + max(0.0, to_s - stint.first_s) * pace / step_s for stint, _ in decoding]
    context = sum(c * stint.sequences * s for c, (stint, s) in zip(contexts, decoding, strict=True)) * pace / busy_s
    step_s = model.decode_step_s(tp, mhz, running, round(context))
    prefill_s = busy_s if not running else min(busy_s, model.prefill_s(tp, mhz, round(prompt)))
    chunk = max(1, min(round(prompt), site.step_tokens))
    mixed_s = min(busy_s - prefill_s, ceil(prompt / chunk) * step_s)
    mixed_w, alone_w = model.watts(tp, mhz, running, chunk if prompt else 0), model.watts(tp, mhz, running)
    prefill_j = prefill_s * mixed_w
    decode_j = mixed_s * mixed_w + (busy_s - prefill_s - mixed_s) * alone_w
    if not running:  # nothing decodes, and what waits for its first token is all there is
        return Work(seconds, idle_j, prefill_j, 0.0, tokens, (), 0.0)
    per_token_s = model.point(tp).decode_per_context_token_s
    shared_s = max(1e-9, model.point(tp).decode_without_context_s(running)) / running
    weights = tuple(
        (stint, stint.sequences * spent_s * (shared_s + per_token_s * held))
        for held, (stint, spent_s) in zip(contexts, decoding, strict=True)
    )
    return Work(seconds, idle_j, prefill_j, decode_j, tokens, weights, seq_s)


def _by_time(
    seconds: float, busy_s: float, tokens: tuple[tuple[Stint, float], ...], decoding: list[tuple[Stint, float]],
    seq_s: float,
) -> Work:  # fmt: skip
    """Without an engine model a second is a second, whatever is done in it: only a counter makes joules of it."""
    decode_s = busy_s if seq_s else 0.0
    weights = tuple((stint, stint.sequences * spent_s) for stint, spent_s in decoding)
    return Work(seconds, seconds - busy_s, busy_s - decode_s, decode_s, tokens, weights, seq_s)


def shared_out(work: Work, factors: tuple[float, float, float], joules: float | None) -> Shares:
    """The window's joules. `factors`: what has been learnt of idle, prefill and decode joules against the model;
    `joules`: the counter's, None where none was read."""
    idle_j, prefill_j, decode_j = (part * factor for part, factor in zip(work.parts, factors, strict=True))
    if not work.tokens:  # whoever waits for a first token has its prefill billed: the joules are those of who decodes
        prefill_j, decode_j = 0.0, decode_j + prefill_j
    if not work.weights and not work.tokens:
        idle_j, decode_j = idle_j + decode_j, 0.0
    if joules is None:
        return Shares(idle_j, prefill_j, decode_j, 0.0)
    expected_j = idle_j + prefill_j + decode_j
    if expected_j <= 0:
        return Shares(0.0, 0.0, 0.0, joules)
    low, high = SCALES
    scale = min(high, max(low, joules / expected_j))
    return Shares(idle_j * scale, prefill_j * scale, decode_j * scale, joules - expected_j * scale)


def billed(work: Work, shares: Shares) -> Iterator[tuple[Stint, float, float]]:
    """(stint, prefill joules, decode joules) of all who ran in the window; their sum is the window's."""
    tokens = sum(done for _, done in work.tokens)
    weight = sum(one for _, one in work.weights)
    for stint, done in work.tokens:
        stint.prefilled += done
        yield stint, shares.prefill_j * done / tokens, 0.0
    for stint, one in work.weights:
        yield stint, 0.0, shares.decode_j * one / weight


def _busy_s(stints: Sequence[Stint], from_s: float, to_s: float) -> float:
    """How long anything ran there."""
    busy_s, reached_s = 0.0, from_s
    for begin_s, end_s in sorted((stint.from_s, stint.end_s or to_s) for stint in stints):
        begin_s, end_s = max(begin_s, reached_s), min(end_s, to_s)
        if end_s > begin_s:
            busy_s += end_s - begin_s
            reached_s = end_s
    return busy_s


def _prefilled(site: Site, stint: Stint, from_s: float, to_s: float) -> float:
    """Prefill tokens of a stint in a window: evenly until its first token, where that is known; before, as many as the
    model says take that long, all but one."""
    left = stint.prefill_tokens - stint.prefilled
    if left <= 0 or stint.from_s >= to_s:
        return 0.0
    over_s = stint.first_s or stint.end_s
    if over_s and over_s <= to_s:
        return left
    begin_s = max(stint.from_s, from_s)
    if over_s:
        return left * (to_s - begin_s) / max(1e-9, over_s - begin_s)
    alone_s = site.model.prefill_s(site.tp, site.clock_mhz, stint.prefill_tokens) if site.model is not None else 1.0
    done = stint.prefill_tokens * (to_s - begin_s) * site.pace / max(1e-9, alone_s)
    return min(max(0.0, left - 1), done)


def _overlap(begin_s: float, end_s: float, from_s: float, to_s: float) -> float:
    return min(end_s or to_s, to_s) - max(begin_s, from_s)
