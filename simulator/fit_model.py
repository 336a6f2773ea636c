"""An engine model from a measured profile: the constants that bring simulated windows closest to the measured ones.

Every measured row is repeated in simulated time, at its load, with its lengths, its arrivals and its rule, and the
constants are moved until TTFT, mean gap and watts agree best (least squares of logarithms). So queueing, batching and
chunked prefill are in the comparison and need no formula of their own. Rows that saturate and derived rows are left
out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from pools.measure import Lengths, Probe, Rule
from pools.measure_stats import measured_of
from profiles.engine_model import EngineModel, SwitchCosts, TpPoint
from profiles.profile import Point, Profile
from simulator.engine import EngineLimits
from simulator.measured import SimulatedTarget

RULE = Rule(window_s=20.0, window_max_s=40.0)
TAKEN = ("measured", "emulated")
LEAST_ROWS = 6
FULL_KV = 1 << 30  # tokens: a profile does not say how many there is room for
LARGE_W = 1e6
Say = Callable[[str], None]
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Assumed:
    """What no profile tells. Defaults: `switch` and the watts of unused GPUs of the H100 models."""

    switch: SwitchCosts
    start_s: float
    bare_idle_w: float
    parked_w: float
    kv_tokens: int = FULL_KV  # of one GPU


@dataclass(frozen=True, slots=True)
class Residual:
    """One row, simulated / measured."""

    point: Point
    ttft_p50: float
    ttft_p99: float
    gap_mean: float
    watts: float


@dataclass(frozen=True, slots=True)
class Fitted:
    model: EngineModel
    residuals: tuple[Residual, ...]


def fit_model(profile: Profile, assumed: Assumed, say: Say = lambda text: None) -> Fitted:
    """ValueError: too few rows of a TP to tell its constants."""
    rows = [point for point in profile.points if point.origin in TAKEN and not point.saturated]
    loaded = [point for point in rows if point.offered_rps > 0]
    clocks = tuple(sorted({point.clock_mhz for point in loaded}))
    limits = _limits(profile)
    idle = [point.watts / point.tp for point in rows if point.offered_rps == 0 and point.watts > 0]
    model = _blank(profile, assumed, clocks, min(idle, default=0.0))
    if not loaded:
        raise ValueError("the profile has no measured load")
    for tp in sorted({point.tp for point in loaded}):
        at = {clock: [p for p in loaded if (p.tp, p.clock_mhz) == (tp, clock)] for clock in clocks}
        if len(at[clocks[-1]]) < LEAST_ROWS:
            raise ValueError(
                f"TP{tp} has {len(at[clocks[-1]])} measured loads at {clocks[-1]} MHz; a fit takes {LEAST_ROWS}"
            )
        say(f"TP{tp}: times from {len(at[clocks[-1]])} windows")
        model = _with_times(model, tp, at[clocks[-1]], limits, assumed.kv_tokens * tp)
        for place, clock in enumerate(clocks[:-1]):
            if at[clock]:
                say(f"TP{tp}: clock {clock} MHz from {len(at[clock])} windows")
                model = _with_clock(model, tp, place, at[clock], limits)
        say(f"TP{tp}: watts")
        model = _with_watts(model, tp, at, limits)
    return Fitted(model, tuple(_residual(model, point, limits) for point in loaded))


# --- times


def _with_times(
    model: EngineModel, tp: int, rows: Sequence[Point], limits: EngineLimits, kv_tokens: int
) -> EngineModel:
    """Decode at 1, 4, 16 and the largest measured batch, decode for each token of context, prefill alone and for each
    token, and what passes outside of steps."""
    most = max(32.0, max(point.running for point in rows))

    def made(free: Vector) -> EngineModel:
        *steps, context, base, token, front_s = np.exp(free).tolist()
        at = (1.0, 4.0, 16.0, most)
        point = TpPoint(at, tuple(accumulate(steps)), context, base, token, 1.0, 0.0, LARGE_W, kv_tokens, *_flat(model))
        return replace(model, points={**model.points, tp: point}, front_s=front_s)

    light = [min((p for p in rows if p.load == load), key=lambda p: p.offered_rps) for load in {p.load for p in rows}]
    step_s = min(_gap_s(point) for point in light)
    shortest, longest = min(light, key=lambda p: p.input_tokens), max(light, key=lambda p: p.input_tokens)
    apart = max(1.0, longest.input_tokens - shortest.input_tokens)
    slope = (longest.ttft_p50_s - shortest.ttft_p50_s) / apart
    base = shortest.ttft_p50_s - slope * shortest.input_tokens
    tokens = [step_s * 1e-5, max(base, step_s) / 2, max(slope, step_s * 1e-4), max(base, step_s) / 2]
    start = np.log([step_s, step_s * 0.1, step_s * 0.3, step_s, *tokens])

    def off(free: Vector) -> list[float]:
        return [part for point in rows for part in _times_off(made(free), point, limits)]

    return made(_least(off, start, 0.02, 40))


def _with_clock(model: EngineModel, tp: int, place: int, rows: Sequence[Point], limits: EngineLimits) -> EngineModel:
    def made(free: Vector) -> EngineModel:
        slower = [1.0 + math.exp(one) for one in free]
        point = model.points[tp]
        point = replace(
            point, tbt=_put(point.tbt, place, slower[0]), ttft=_put(point.ttft, place, slower[1])
        )  # fmt: skip
        return replace(model, points={**model.points, tp: point})

    def off(free: Vector) -> list[float]:
        return [part for point in rows for part in _times_off(made(free), point, limits)]

    ratio = model.clocks_mhz[-1] / model.clocks_mhz[place] - 1.0
    start = np.full(2, math.log(max(0.02, ratio / 2)))
    return made(_least(off, start, 0.05, 20))


def _times_off(model: EngineModel, point: Point, limits: EngineLimits) -> tuple[float, float, float]:
    seen = _simulated(model, point, limits)
    return (
        _log(seen.ttft_p50_s, point.ttft_p50_s),
        0.3 * _log(seen.ttft_p99_s, point.ttft_p99_s),
        _log(_gap_s(seen), _gap_s(point)),
    )


# --- watts


def _with_watts(
    model: EngineModel, tp: int, at: dict[int, list[Point]], limits: EngineLimits
) -> EngineModel:  # fmt: skip
    top = at[model.clocks_mhz[-1]]

    def made(free: Vector) -> EngineModel:
        base, doubling, prefill_base, prefill_doubling = np.exp(free).tolist()
        point = replace(model.points[tp], watts_base_w=base, watts_per_doubling_w=doubling)
        return replace(
            model, points={**model.points, tp: point}, prefill_watts_base_w=prefill_base,
            prefill_watts_per_doubling_w=prefill_doubling,
        )  # fmt: skip

    def off(free: Vector) -> list[float]:
        return [_log(_simulated(made(free), point, limits).watts, point.watts) for point in top]

    most = max(point.watts for point in top) / tp
    start = np.log([most * 0.7, most * 0.05, most * 0.7, most * 0.02])
    found = made(_least(off, start, 0.05, 30))
    for place, clock in enumerate(model.clocks_mhz[:-1]):
        ratios = [point.watts / _simulated(found, point, limits).watts for point in at[clock]]
        if ratios:
            one = found.points[tp]
            factor = min(1.0, float(np.median(ratios)))
            found = replace(found, points={**found.points, tp: replace(one, watts=_put(one.watts, place, factor))})
    return found


def _least(off: Callable[[Vector], list[float]], start: Vector, step: float, most: int, enough: float = 1e-3) -> Vector:
    """Robust: a window that a disturbance spoilt pulls little. Steps are wide because what a window shows is stairs."""

    def errors(free: Vector, /) -> Vector:
        return np.array(off(free))

    found = least_squares(
        errors, start, bounds=(start - 4.0, start + 4.0), diff_step=np.full(len(start), step), max_nfev=most,
        loss="soft_l1", f_scale=0.1, ftol=1e-3, xtol=1e-3,
    )  # fmt: skip
    return np.asarray(found.x)


# --- rows


def _simulated(model: EngineModel, point: Point, limits: EngineLimits) -> Point:
    target = SimulatedTarget(model, limits)
    target.at(point.tp, point.clock_mhz)
    lengths = Lengths(point.load, round(point.input_tokens), round(point.output_tokens))
    probe = Probe(point.tp, point.clock_mhz, lengths, point.offered_rps)
    return measured_of(target.window(probe, RULE), "emulated").point


def _residual(model: EngineModel, point: Point, limits: EngineLimits) -> Residual:
    seen = _simulated(model, point, limits)
    return Residual(
        point, seen.ttft_p50_s / point.ttft_p50_s, seen.ttft_p99_s / point.ttft_p99_s, _gap_s(seen) / _gap_s(point),
        seen.watts / point.watts,
    )  # fmt: skip


def _gap_s(point: Point) -> float:
    """Mean gap: sequence-seconds between tokens by the tokens that followed one."""
    followers = point.output_tps * (point.output_tokens - 1) / point.output_tokens
    return point.running / followers if followers > 0 else point.tbt_p50_s


def _log(ours: float, theirs: float) -> float:
    return math.log(max(ours, 1e-9) / max(theirs, 1e-9))


def _put(values: tuple[float, ...], place: int, value: float) -> tuple[float, ...]:
    return (*values[:place], value, *values[place + 1 :])


# --- the model around them


def _blank(profile: Profile, assumed: Assumed, clocks: tuple[int, ...], idle_w: float) -> EngineModel:
    return EngineModel(
        gpu=profile.gpu, model=profile.model, clocks_mhz=clocks, points={}, idle_w=idle_w,
        bare_idle_w=min(assumed.bare_idle_w, idle_w), parked_w=min(assumed.parked_w, idle_w), clip_w=LARGE_W,
        prefill_watts_base_w=0.0, prefill_watts_per_doubling_w=0.0, start_s=assumed.start_s, switch=assumed.switch,
        context_tokens=0,
    )  # fmt: skip


def _flat(model: EngineModel) -> tuple[tuple[float, ...], ...]:
    return ((1.0,) * len(model.clocks_mhz),) * 3


def _limits(profile: Profile) -> EngineLimits:
    told = profile.provenance.limits
    return EngineLimits(
        told.get("max_num_seqs", 256), told.get("max_num_batched_tokens", 2048), told.get("max_model_len", 8192)
    )
