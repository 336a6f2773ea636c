"""The curves of a profile: quantities of one (load, TP, clock) over the offered load, smoothed and frozen.

Owns interpolation and its limits: linear, but for a step in a tail. A curve ends at the last held load below the cliff
and begins at the first one, or at 0 where it is known what the idle instance draws; it answers nothing outside.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from profiles.profile import ORIGINS, UNKNOWN, Point
from profiles.profile_checks import held_rows
from profiles.smoothing import Array, smooth

LATENCIES = ("ttft_p50_s", "ttft_p99_s", "tbt_p50_s", "tbt_p99_s")
RISES_WITH_CLOCK = {"watts": True, "running": False, **dict.fromkeys(LATENCIES, False)}
QUANTITIES = (*RISES_WITH_CLOCK, "output_tps")
SLIP = 1e-9
TAILS = ("ttft_p99_s", "tbt_p99_s")
# A tail that more than doubles from one held load to the next is a step somewhere between them (the share of gaps that
# a prefill stalls passes 1 %, the KV cache fills up): nobody knows where, so it counts from the lower load on.
STEP = 2.0
EDGE = 1e-6  # of a load: how far above it such a step stands
BORROWED = 0.1  # weight of a value interpolated between two rows, against the lighter of them


@dataclass(frozen=True, slots=True)
class Curve:
    """One cell. `values` holds each quantity at `loads`; a quantity that is not known is UNKNOWN everywhere.

    `rows` are the loads of the cell's own rows with their origins; `cliff_rps` is the lowest saturated load, or
    infinite. `anchored`: loads[0] is 0, where watts are those of the idle instance.
    """

    loads: tuple[float, ...]
    values: Mapping[str, tuple[float, ...]]
    rows: tuple[tuple[float, str], ...]
    cliff_rps: float
    anchored: bool

    def at(self, quantity: str, rps: float) -> float:
        """Linear between knots. The caller has asked `snapped`."""
        loads, values = self.loads, self.values[quantity]
        right = min(max(1, bisect_right(loads, rps)), len(loads) - 1)
        if right == 0 or values[0] == UNKNOWN:
            return values[0]
        low, high = loads[right - 1], loads[right]
        return values[right - 1] + (rps - low) / (high - low) * (values[right] - values[right - 1])

    def snapped(self, rps: float) -> float | None:
        """The load, if the curve holds it; a load that rounding puts just beyond an end is that end."""
        low, high = self.loads[0], self.loads[-1]
        if low <= rps <= high:
            return rps
        return next((end for end in (low, high) if math.isclose(rps, end, rel_tol=SLIP)), None)

    def largest(self, quantity: str, limit: float) -> float | None:
        """The largest load at which a rising quantity is within `limit`; None if it is not even at the first."""
        values = self.values[quantity]
        right = bisect_right(values, limit)
        if right == 0:
            return None
        if right == len(values):
            return self.loads[-1]
        low, high = self.loads[right - 1], self.loads[right]
        found = low + (limit - values[right - 1]) / (values[right] - values[right - 1]) * (high - low)
        while self.at(quantity, found) > limit:  # the last bit of the division
            found = max(low, math.nextafter(found, 0.0) - (high - low) * 1e-12)
        return found

    def origin(self, rps: float) -> str:
        """The weakest origin of the rows that the answer at `rps` rests on."""
        loads = [load for load, _ in self.rows]
        at = bisect_left(loads, rps)
        used = [at] if at < len(loads) and loads[at] == rps else [at - 1, at]
        return max((self.rows[i][1] for i in used if 0 <= i < len(self.rows)), key=ORIGINS.index)


@dataclass(frozen=True, slots=True)
class Sheet:
    """All clocks of one (load, TP) on common knots, so that curves of two clocks never cross.

    `saturated_rps`: the lowest saturated load of every clock that has one, those with no held load included.
    """

    clocks_mhz: tuple[int, ...]  # with a curve, ascending
    curves: Mapping[int, Curve]
    saturated_rps: Mapping[int, float]

    def between(self, clock_mhz: float) -> Curve | None:
        """The curve of a clock between two of the grid, on the loads that both hold; None outside of the grid."""
        right = bisect_left(self.clocks_mhz, clock_mhz)
        if right in (0, len(self.clocks_mhz)):
            return None
        low_mhz, high_mhz = self.clocks_mhz[right - 1], self.clocks_mhz[right]
        low, high = self.curves[low_mhz], self.curves[high_mhz]
        share = (clock_mhz - low_mhz) / (high_mhz - low_mhz)
        first, last = max(low.loads[0], high.loads[0]), min(low.loads[-1], high.loads[-1])
        if first > last:
            return None
        loads = tuple(sorted({x for x in (*low.loads, *high.loads) if first <= x <= last}))

        def mixed(quantity: str) -> tuple[float, ...]:
            pairs = [(low.at(quantity, x), high.at(quantity, x)) for x in loads]
            if any(UNKNOWN in pair for pair in pairs):
                return (UNKNOWN,) * len(loads)
            return tuple(a + share * (b - a) for a, b in pairs)

        return Curve(
            loads,
            {quantity: mixed(quantity) for quantity in QUANTITIES},
            tuple((load, "derived") for load, _ in sorted({*low.rows, *high.rows})),
            min(low.cliff_rps, high.cliff_rps),
            low.anchored and high.anchored,
        )


def sheets(points: Sequence[Point], idle_w: float | None) -> dict[tuple[str, int], Sheet]:
    """Every (load, TP). `idle_w`: what one GPU draws with a loaded engine and nothing to do, for cells that have no
    idle row of their own."""
    held = held_rows(points)
    groups: dict[tuple[str, int], dict[int, list[Point]]] = {}
    saturated: dict[tuple[str, int], dict[int, float]] = {}
    idle: dict[tuple[str, int, int], float] = {}
    for point in points:
        groups.setdefault((point.load, point.tp), {})
        if point.saturated:
            by_clock = saturated.setdefault((point.load, point.tp), {})
            by_clock[point.clock_mhz] = min(by_clock.get(point.clock_mhz, math.inf), point.offered_rps)
        elif point.offered_rps == 0 and point.watts < UNKNOWN:
            idle[point.cell] = point.watts
    for (load, tp, clock), rows in held.items():
        groups[load, tp][clock] = [points[row] for row in rows]
    found: dict[tuple[str, int], Sheet] = {}
    for (load, tp), clocks in groups.items():
        anchors = {clock: idle.get((load, tp, clock), idle_w * tp if idle_w is not None else None) for clock in clocks}
        cliffs = saturated.get((load, tp), {})
        found[load, tp] = Sheet(tuple(sorted(clocks)), _curves(clocks, anchors, cliffs), cliffs)
    return found


def _curves(
    by_clock: Mapping[int, Sequence[Point]], anchors: Mapping[int, float | None], cliffs: Mapping[int, float]
) -> dict[int, Curve]:
    clocks = sorted(by_clock)
    steps = [load for rows in by_clock.values() for name in TAILS for load, _ in _steps(rows, name)]
    knots = np.unique([*(point.offered_rps for rows in by_clock.values() for point in rows), *steps])
    surfaces = {quantity: _surface([by_clock[c] for c in clocks], knots, quantity) for quantity in QUANTITIES}
    for median, tail in (("ttft_p50_s", "ttft_p99_s"), ("tbt_p50_s", "tbt_p99_s")):
        # Where a clock tells its median and not its tail, only the medians of its neighbours were smoothed with it.
        known = np.where(np.isinf(surfaces[median]), 0.0, surfaces[median])
        surfaces[tail] = np.maximum(surfaces[tail], known)
    curves = {}
    for index, clock in enumerate(clocks):
        own = [point.offered_rps for point in by_clock[clock]]
        inside = (knots >= own[0]) & (knots <= own[-1])
        loads = tuple(map(float, knots[inside]))
        values = {name: tuple(map(float, surfaces[name][index][inside])) for name in QUANTITIES}
        idle_w = anchors[clock]
        if idle_w is not None:
            # Latency at a lower load is at most that at the lowest measured one; power is taken along the chord.
            at_zero = {"watts": min(idle_w, values["watts"][0]), "running": 0.0, "output_tps": 0.0}
            loads = (0.0, *loads)
            values = {
                name: (UNKNOWN if held[0] == UNKNOWN else at_zero.get(name, held[0]), *held)
                for name, held in values.items()
            }
        rows = tuple((point.offered_rps, point.origin) for point in by_clock[clock])
        curves[clock] = Curve(loads, values, rows, cliffs.get(clock, math.inf), idle_w is not None)
    return curves


def _surface(rows_of: Sequence[Sequence[Point]], knots: Array, quantity: str) -> Array:
    """(clock, knot) -> value, smoothed; NaN off a clock's support, UNKNOWN where a clock's rows do not tell."""
    values = np.full((len(rows_of), len(knots)), np.nan)
    weights = np.ones_like(values)
    silent = []
    for index, rows in enumerate(rows_of):
        own = np.array([point.offered_rps for point in rows])
        told = np.array([getattr(point, quantity) for point in rows], dtype=float)
        if np.isinf(told).any():
            silent.append(index)
            continue
        inside = (knots >= own[0]) & (knots <= own[-1])
        steps = np.array(_steps(rows, quantity) if quantity in TAILS else []).reshape(-1, 2)
        order = np.argsort(np.concatenate([own, steps[:, 0]]))
        at, height = (np.concatenate(pair)[order] for pair in ((own, steps[:, 0]), (told, steps[:, 1])))
        values[index, inside] = np.interp(knots[inside], at, height)
        heavy = np.array([max(1.0, float(point.requests)) for point in rows])
        weights[index, inside] = BORROWED * np.interp(knots[inside], own, heavy)
        weights[index, np.searchsorted(knots, own)] = heavy
    if quantity in RISES_WITH_CLOCK:
        values = smooth(values, weights, RISES_WITH_CLOCK[quantity])
    values[silent] = UNKNOWN
    return values


def _steps(rows: Sequence[Point], tail: str) -> list[tuple[float, float]]:
    """Just above which loads the tail takes a step, and to what height."""
    told = [(point.offered_rps, float(getattr(point, tail))) for point in rows]
    return [
        (low * (1 + EDGE), upper)
        for (low, lower), (high, upper) in pairwise(told)
        if 0 < STEP * lower < upper < UNKNOWN and low * (1 + EDGE) < high
    ]
