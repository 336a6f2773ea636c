"""The operating points a bound chooses from: steps of one engine, each with what it computes, its seconds and watts.

Owns which points stand for the whole lattice of (clock, running sequences, prefill tokens, context). Step time is
piecewise linear in context and in prefill tokens, so that what lies between grid points is a mixture of them, but for
the curvature of the watts over prefill tokens, which COVER pays for (tests/unit/test_sim_bounds.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profiles.engine_model import EngineModel
from simulator.bound_load import Floats

COVER = 0.001  # joules taken off every point: at least what a point between grid points saves against their mixture
EVERY = 16  # prefill tokens of a step: up to here every whole number is a grid point
RATIO = 1.1  # and beyond, each is this much larger than the one before


@dataclass(frozen=True, slots=True)
class Points:
    """One TP's points, rising in running sequences. `rates` (points, 4) per busy second: decode steps, prefill tokens,
    context tokens read, late gaps. `watts` of the instance. `step`: clock, running, prefill tokens, context."""

    tp: int
    rates: Floats
    watts: Floats
    step: Floats

    def up_to(self, running: int) -> int:
        """How many points, from the first, run no more than `running` sequences."""
        return int(np.searchsorted(self.step[:, 1], running, side="right"))


def points_of(
    model: EngineModel, tp: int, step_tokens: int, tbt_s: float, contexts: tuple[int, int], most_running: int
) -> Points:
    rows = [
        row
        for clock_mhz in model.clocks_mhz
        for running in range(min(most_running, step_tokens) + 1)
        for row in _steps(model, tp, clock_mhz, running, step_tokens, tbt_s, contexts)
    ]
    table = np.concatenate(rows)
    table = table[np.argsort(table[:, 1], kind="stable")]
    step, seconds, watts, late = table[:, :4], table[:, 4:5], table[:, 5], table[:, 6:7]
    work = np.concatenate([step[:, 1:2], step[:, 2:3], step[:, 3:4], late], axis=1)
    return Points(tp, work / seconds, watts * (1 - COVER), step)


def _grid(most: int) -> set[int]:
    grid, at = set(range(1, min(EVERY, most) + 1)), float(EVERY)
    while (at := at * RATIO) < most:
        grid.add(round(at))
    return grid | {most}


def _steps(
    model: EngineModel, tp: int, clock_mhz: int, running: int, step_tokens: int, tbt_s: float, contexts: tuple[int, int]
) -> Iterator[Floats]:
    """Rows of (clock, running, prefill, context, seconds, watts, late gaps) for all prefills and contexts."""
    shortest = min(running * contexts[0], model.kv_tokens(tp) + 1)
    longest = min(running * contexts[1], model.kv_tokens(tp))
    if shortest > longest:
        return
    prefill = _prefills(model, tp, clock_mhz, running, step_tokens, tbt_s, (shortest, longest))
    watts = _watts(model, tp, clock_mhz, running, prefill)
    for context in _contexts(model, tp, clock_mhz, running, prefill, tbt_s, (shortest, longest)):
        seconds = _seconds(model, tp, clock_mhz, running, prefill, context)
        late = np.where((running > 0) & (seconds > tbt_s * (1 + 1e-9)), float(running), 0.0)
        same = np.full_like(prefill, clock_mhz), np.full_like(prefill, running)
        yield np.stack([*same, prefill, context, seconds, watts, late], axis=1)


def _lines(model: EngineModel, tp: int, clock_mhz: int, running: int) -> tuple[float, float, float, float]:
    """(decode part without context, per context token, prefill base, per prefill token), in seconds at this clock."""
    point = model.point(tp)
    bare_s = model.decode_step_s(tp, clock_mhz, max(1, running), 0)
    times = bare_s / point.decode_without_context_s(max(1, running))
    place = model.clocks_mhz.index(clock_mhz)
    base_s, token_s = point.prefill_base_s * point.ttft[place], point.prefill_per_token_s * point.ttft[place]
    return bare_s, point.decode_per_context_token_s * times, base_s, token_s


def _seconds(model: EngineModel, tp: int, clock_mhz: int, running: int, prefill: Floats, context: Floats) -> Floats:
    """EngineModel.step_s for arrays, whose entries need not be whole."""
    bare_s, read_s, base_s, token_s = _lines(model, tp, clock_mhz, running)
    alone_s = base_s + token_s * prefill
    if not running:
        return np.maximum(alone_s, bare_s)
    decode_s = bare_s + read_s * context
    return np.where(prefill > 0, np.maximum(decode_s + token_s * prefill, alone_s), decode_s)


def _watts(model: EngineModel, tp: int, clock_mhz: int, running: int, prefill: Floats) -> Floats:
    """EngineModel.watts for an array of prefill tokens."""
    times = model.point(tp).watts[model.clocks_mhz.index(clock_mhz)]
    doublings = np.log2(np.maximum(1.0, running + prefill))
    prefill_w = model.prefill_watts_base_w + model.prefill_watts_per_doubling_w * doublings
    one_w = _decode_w(model, tp, running)
    gpu_w = np.where(prefill > 0, np.maximum(one_w, prefill_w), one_w)
    return np.maximum(np.minimum(gpu_w, model.clip_w) * times, model.idle_w) * tp


def _decode_w(model: EngineModel, tp: int, running: int) -> float:
    """One GPU that decodes, at the highest clock and before the clip."""
    point = model.point(tp)
    doublings = math.log2(running) if running > 1 else 0.0
    return min(point.watts_base_w + point.watts_per_doubling_w * doublings, point.watts_cap_w)


def _prefills(
    model: EngineModel, tp: int, clock_mhz: int, running: int, step_tokens: int, tbt_s: float, ends: tuple[int, int]
) -> Floats:
    """The grid, both sides of every bend of seconds and watts, and the most that stays within the TBT objective."""
    most = step_tokens - running
    if most < 1:
        return np.array([0.0])
    bare_s, read_s, base_s, token_s = _lines(model, tp, clock_mhz, running)
    decode_w = _decode_w(model, tp, running)
    per_doubling_w = model.prefill_watts_per_doubling_w
    bends = [2 ** ((min(decode_w, model.clip_w) - model.prefill_watts_base_w) / per_doubling_w) - running]
    if not running:
        bends.append((bare_s - base_s) / token_s)
    more = {float(edge) for bend in bends for edge in (math.floor(bend), math.ceil(bend))}
    if running:
        more |= {(tbt_s - bare_s - read_s * context) / token_s for context in ends}
    grid = {float(tokens) for tokens in _grid(most)} | {tokens for tokens in more if 1 <= tokens <= most}
    return np.array(sorted(grid | ({0.0} if running else set())))


def _contexts(
    model: EngineModel, tp: int, clock_mhz: int, running: int, prefill: Floats, tbt_s: float, ends: tuple[int, int]
) -> Iterator[Floats]:
    """For each prefill: the shortest, the longest, where the step reaches the TBT objective, and where it bends."""
    yield np.full_like(prefill, ends[0])
    if running:
        bare_s, read_s, base_s, token_s = _lines(model, tp, clock_mhz, running)
        yield np.full_like(prefill, ends[1])
        yield np.clip((tbt_s - bare_s - token_s * prefill) / read_s, *ends)
        if ends[0] < (base_s - bare_s) / read_s < ends[1]:
            yield np.full_like(prefill, (base_s - bare_s) / read_s)
