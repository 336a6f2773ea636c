"""What a lower clock does to a curve, as ratios to the curve at the highest clock; and what they predict. Pure.

Ratios are taken at equal utilisation (load / saturation), not at equal load: there they hardly change over the load, so
two loads of a clock say what it does to all of them. Between clocks the logarithm of a ratio is interpolated, along the
shape that earlier classes showed where there is one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pools.measure_plan import quantity
from profiles.profile import Point

# The quantiles follow these: a clock stretches time, and the ratio of two p99 of short windows is noise.
RATIOS = ("watts", "gap_s", "ttft_p50_s", "saturation")
JUDGED = RATIOS[:-1]  # the cliff is only bounded by its bisection
FIXED_POINT_ROUNDS = 8
# Near the cliff nothing can be compared: there a percent of load is a tenth of latency.
STEEP_U = 0.7
LOW_U, HIGH_U = 0.25, 0.55  # the utilisations at which a clock is probed


@dataclass(frozen=True, slots=True)
class Curve:
    """Held points of one (class, TP, clock), ascending in load, its cliff, and the points past it."""

    points: tuple[Point, ...]
    saturation: float
    past: tuple[Point, ...] = ()

    def at(self, name: str, utilisation: float) -> float:
        """Linear between points, the nearest point outside."""
        rps = utilisation * self.saturation
        xs = [p.offered_rps for p in self.points]
        if rps <= xs[0] or rps >= xs[-1]:
            return quantity(self.points[0 if rps <= xs[0] else -1], name)
        right = bisect_right(xs, rps)
        low, high = self.points[right - 1], self.points[right]
        share = (rps - low.offered_rps) / (high.offered_rps - low.offered_rps)
        return (1 - share) * quantity(low, name) + share * quantity(high, name)


@dataclass(frozen=True, slots=True)
class Effect:
    """Logarithms of (quantity at this clock) / (quantity at the highest), at the low and at the high utilisation."""

    low: Mapping[str, float]
    high: Mapping[str, float]

    def ratio(self, name: str, utilisation: float) -> float:
        share = min(1.0, max(0.0, (utilisation - LOW_U) / (HIGH_U - LOW_U)))
        return math.exp((1 - share) * self.low[name] + share * self.high[name])


NONE = Effect(dict.fromkeys(RATIOS, 0.0), dict.fromkeys(RATIOS, 0.0))


def effect_of(curve: Curve, top: Curve) -> Effect:
    """What this clock does, from its points in the lower and in the upper half of utilisation.

    A clock stretches time: were every step k times as long, this curve at a load were the top one at k times the load.
    So the ratio of the cliffs is 1 / k, with k from decode and prefill alike; that is finer than the two bisections,
    which only bound it. k is a fixed point, because utilisation depends on it.
    """
    lowest = math.log(curve.points[-1].offered_rps / top.saturation)
    highest = math.log(min((p.offered_rps for p in curve.past), default=math.inf) / top.saturation)
    cliff = math.log(curve.saturation / top.saturation)

    def logs(points: Sequence[Point]) -> dict[str, float]:
        found = {"saturation": cliff}
        for name in RATIOS[:-1]:
            ratios = [
                math.log(max(1e-9, quantity(p, name)) / max(1e-9, top.at(name, p.offered_rps / saturation)))
                for p in points
            ]
            found[name] = sum(ratios) / len(ratios)
        return found

    for _ in range(FIXED_POINT_ROUNDS):
        saturation = top.saturation * math.exp(cliff)
        ratios = logs(curve.points[:1])
        stretch = -(ratios["gap_s"] + ratios["ttft_p50_s"]) / 2
        cliff = min(max((cliff + stretch) / 2, lowest), highest)
    saturation = top.saturation * math.exp(cliff)
    half = (LOW_U + HIGH_U) / 2 * saturation
    flat = [p for p in curve.points if p.offered_rps <= STEEP_U * saturation] or curve.points[:1]
    low = [p for p in flat if p.offered_rps <= half]
    high = [p for p in flat if p.offered_rps > half]
    return Effect(logs(low or high), logs(high or low))


def predicted(clock_mhz: int, known: Mapping[int, Effect], shape: Mapping[int, Effect]) -> Effect:
    """The effect of a clock from those known on both sides of it; `shape` is the same of earlier classes."""
    if clock_mhz in known:
        return known[clock_mhz]
    low = max((c for c in known if c < clock_mhz), default=min(known))  # below all known ones the lowest speaks
    high = min((c for c in known if c > clock_mhz), default=max(known))
    share = (clock_mhz - low) / (high - low) if low < clock_mhz < high else 0.0

    def side(name: str) -> dict[str, float]:
        def rest(clock: int) -> Mapping[str, float]:
            own, prior = getattr(known[clock], name), getattr(shape.get(clock, NONE), name)
            return {q: own[q] - prior[q] for q in RATIOS}

        at_low, at_high, prior = rest(low), rest(high), getattr(shape.get(clock_mhz, NONE), name)
        return {q: prior[q] + (1 - share) * at_low[q] + share * at_high[q] for q in RATIOS}

    return Effect(side("low"), side("high"))


def surprise(seen: Effect, expected: Effect) -> float:
    """The largest relative difference in what is judged; the mean of the two utilisations, which halves the noise."""
    return max(
        abs((seen.low[q] - expected.low[q]) + (seen.high[q] - expected.high[q])) / 2
        for q in JUDGED
        if q != "saturation"
    )


def mean_effect(effects: Sequence[Effect]) -> Effect:
    def side(name: str) -> dict[str, float]:
        return {q: sum(getattr(e, name)[q] for e in effects) / len(effects) for q in RATIOS}

    return Effect(side("low"), side("high"))


def next_clock(
    clocks: Sequence[int], known: Sequence[int], verified: Sequence[tuple[int, int]], best: int, foretold: bool
) -> int | None:
    """The next clock to measure; None when nothing is left to learn.

    Where earlier classes foretell the effect of every clock, first the one where the U bends (`best`): if it holds, so
    does the rest. Else the lowest, `best`, then the middle of the widest gap that no check point has verified.
    """
    ordered = sorted(known)
    if foretold and len(ordered) == 1 and best != ordered[0]:
        return best
    if any(low <= clocks[0] and clocks[-1] <= high for low, high in verified):
        return None
    if clocks[0] not in known:
        return clocks[0]
    gaps = []
    for low, high in pairwise(ordered):
        inside = [c for c in clocks if low < c < high]
        if inside and not any(a <= low and high <= b for a, b in verified):
            gaps.append((high - low, inside, low, high))
    if not gaps:
        return None
    _, inside, low, high = max(gaps, key=lambda gap: gap[0])
    if best in inside:
        return best
    return min(inside, key=lambda c: abs(c - (low + high) / 2))


def derived(top: Point, top_saturation: float, clock_mhz: int, effect: Effect) -> Point:
    """The point at the same utilisation and another clock; its origin says that nobody measured it."""
    utilisation = top.offered_rps / top_saturation
    rps = float(f"{top.offered_rps * effect.ratio('saturation', utilisation):.4g}")
    gap, ttft = effect.ratio("gap_s", utilisation), effect.ratio("ttft_p50_s", utilisation)
    mixed = (gap * ttft) ** 0.5 if top.tbt_p99_s > 1.5 * top.tbt_p50_s else gap  # the longest gaps hold prefill
    moved = scaled(top, rps, top.watts * effect.ratio("watts", utilisation))
    return replace(
        moved,
        clock_mhz=clock_mhz,
        running=moved.running * gap,
        kv_share=min(1.0, moved.kv_share * gap),
        ttft_p50_s=top.ttft_p50_s * ttft,
        ttft_p99_s=top.ttft_p99_s * ttft,
        tbt_p50_s=top.tbt_p50_s * gap,
        tbt_p99_s=max(top.tbt_p50_s * gap, top.tbt_p99_s * mixed),
    )


def scaled(point: Point, rps: float, watts: float) -> Point:
    """The same latencies at another load: throughput and what runs in proportion to it."""
    by_load = rps / point.offered_rps
    output_tps = point.output_tps * by_load
    return replace(
        point,
        offered_rps=rps,
        prefill_tps=point.prefill_tps * by_load,
        running=point.running * by_load,
        kv_share=point.kv_share * by_load,
        output_tps=output_tps,
        watts=watts,
        j_per_output_token=watts / max(1e-9, output_tps),
        requests=0,
        window_s=0.0,
        repeats=0,
        watts_ci=0.0,
        ttft_p99_ci_s=0.0,
        origin="derived",
    )
