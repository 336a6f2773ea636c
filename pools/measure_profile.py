"""From a finished sweep to the rows of a profile, and what a dense grid would have cost. Pure.

Measured rows as they are; for the clocks that nobody had to measure, and between the two loads of those measured
sparsely, rows derived from the curve at the highest clock, marked so; one idle row per cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from pools.measure import Lengths
from pools.measure_clocks import NONE, Curve, Effect, derived, predicted, scaled
from pools.measure_plan import quantity
from pools.measure_sweep import Sweep
from profiles.profile import UNKNOWN, Point
from profiles.profile_checks import row_findings, table_findings

DENSE_STEP_RPS = 0.5
LIGHT_BUSY = (0.3, 0.6, 0.85)
SAME_LOAD = 0.08  # of the cliff: closer to a measured load than this nothing is derived


@dataclass(frozen=True, slots=True)
class Dense:
    """The grid that a sweep without a plan would take: every class, TP and clock, in steps of DENSE_STEP_RPS up to
    the cliff and one past it, at this sweep's own mean time per held load of that class and TP."""

    points: int
    instance_s: float
    gpu_s: float


def rows_of(sweep: Sweep) -> tuple[tuple[Point, ...], int]:
    """Rows by TP, class, clock and load; and how many contradicted physics so grossly that they were left out."""
    rows: list[Point] = []
    for tp in sweep.space.tps:
        for lengths in sweep.space.classes:
            for clock_mhz in sweep.space.clocks_mhz:
                rows += _cell_rows(sweep, tp, lengths, clock_mhz)
    return _believable([_short(row) for row in rows])


def _short(row: Point) -> Point:
    """Six digits: more is neither measured nor readable."""
    short: dict[str, Any] = {f.name: float(f"{getattr(row, f.name):.6g}") for f in fields(row) if f.type == "float"}
    return replace(row, **short)


def cliffs(sweep: Sweep, tp: int, lengths: Lengths) -> dict[int, float]:
    """Saturation by clock; a clock that is infeasible is missing."""
    top = _curve(sweep, tp, lengths, sweep.space.clocks_mhz[-1])
    if top is None:
        return {}
    return {c: top.saturation * effect.ratio("saturation", 1.0) for c, effect in _effects(sweep, tp, lengths).items()}


def dense_grid(sweep: Sweep) -> Dense:
    points, instance_s, gpu_s = 0, 0.0, 0.0
    for tp in sweep.space.tps:
        for lengths in sweep.space.classes:
            loads = sum(math.floor(cliff / DENSE_STEP_RPS) + 1 for cliff in cliffs(sweep, tp, lengths).values())
            taken = [
                one.instance_s
                for cell in sweep.cells.values()
                if cell.key[:2] == (tp, lengths.name)
                for one in cell.probes
                if not one.point.saturated
            ]
            points += loads
            instance_s += loads * (sum(taken) / len(taken) if taken else 0.0)
            gpu_s += loads * (sum(taken) / len(taken) if taken else 0.0) * tp
        instance_s += sweep.space.setup_s
        gpu_s += sweep.space.setup_s * tp
    return Dense(points, instance_s, gpu_s)


def _curve(sweep: Sweep, tp: int, lengths: Lengths, clock_mhz: int) -> Curve | None:
    cell = sweep.cells.get((tp, lengths.name, clock_mhz))
    return cell.curve if cell else None


def _effects(sweep: Sweep, tp: int, lengths: Lengths) -> dict[int, Effect]:
    """What each clock does to this class, measured or predicted; nothing for clocks that hold no load at all.

    A class that the budget kept from being checked is predicted from the others, when there are any."""
    known = sweep.effects.get((tp, lengths.name), {sweep.space.clocks_mhz[-1]: NONE})
    shape = sweep.shapes.get(tp, {})
    if len(known) == 1 and not shape:
        return dict(known)
    dead = [
        clock
        for (of, name, clock), cell in sweep.cells.items()
        if (of, name) == (tp, lengths.name)
        and cell.probes
        and cell.curve is None
        and clock < sweep.space.clocks_mhz[-1]
    ]
    return {c: predicted(c, known, shape) for c in sweep.space.clocks_mhz if c > max(dead, default=-1)}


def _cell_rows(sweep: Sweep, tp: int, lengths: Lengths, clock_mhz: int) -> list[Point]:
    top_clock = sweep.space.clocks_mhz[-1]
    cell, top = sweep.cells.get((tp, lengths.name, clock_mhz)), _curve(sweep, tp, lengths, top_clock)
    measured: list[Point] = []
    if cell is not None:
        curve = cell.curve
        measured = [*curve.points, *curve.past] if curve else cell.rows
    rows = list(measured)
    effect = _effects(sweep, tp, lengths).get(clock_mhz) if clock_mhz != top_clock else None
    if top is not None and effect is not None:
        cliff = top.saturation * effect.ratio("saturation", 1.0)
        held = [p.offered_rps for p in measured if not p.saturated]
        bad = min((p.offered_rps for p in measured if p.saturated), default=math.inf)
        for point in (*top.points, *top.past[:1]):
            row = derived(point, top.saturation, clock_mhz, effect)
            fresh = all(abs(row.offered_rps - rps) > SAME_LOAD * cliff for rps in held)
            cliff_unknown = math.isinf(bad) and row.offered_rps > max(held, default=0.0)
            if cliff_unknown if row.saturated else fresh and row.offered_rps < bad:
                rows.append(row)
    rows.sort(key=lambda p: p.offered_rps)
    idle = sweep.idle_watts(tp, clock_mhz)
    if not rows or idle is None:
        return rows
    lightest = _light_rows([row for row in rows if not row.saturated][:2], idle)
    origin = rows[0].origin if clock_mhz in sweep.idle[tp] and rows[0].origin != "derived" else "derived"
    return [_idle_row(rows[0], idle, origin), *lightest, *rows]


def _light_rows(held: list[Point], idle_w: float) -> list[Point]:
    """Between idle and the lowest load, where watts are far from a straight line: idle + a x the share of time in which
    anything runs (1 - exp(-load x residence) for Poisson arrivals) + b x load, a and b from the two lowest loads.
    Latencies are those of the lowest load."""
    if not held:
        return []
    lowest = held[0]
    residence_s = lowest.ttft_p50_s + lowest.output_tokens * quantity(lowest, "gap_s")

    def share(rps: float) -> float:
        return 1 - math.exp(-rps * residence_s)

    first = (lowest.watts - idle_w) / share(lowest.offered_rps)
    slope = 0.0
    if len(held) > 1:
        after = held[1]
        spread = after.offered_rps - lowest.offered_rps * share(after.offered_rps) / share(lowest.offered_rps)
        rise = after.watts - idle_w - first * share(after.offered_rps)
        slope = max(0.0, rise / spread) if spread > 0 else 0.0
        slope = min(slope, (lowest.watts - idle_w) / lowest.offered_rps)
        first = (lowest.watts - idle_w - slope * lowest.offered_rps) / share(lowest.offered_rps)
    rows = []
    for busy in LIGHT_BUSY:
        rps = float(f"{-math.log(1 - busy) / residence_s:.4g}")
        if rps < 0.6 * lowest.offered_rps:
            watts = idle_w + first * busy + slope * rps
            rows.append(scaled(lowest, rps, watts))
    return rows


def _idle_row(like: Point, watts: float, origin: str) -> Point:
    zero = ("offered_rps", "prefill_tps", "running", "output_tps", "kv_share", "waiting", "window_s", "watts_ci")
    unknown = ("context_tokens", "ttft_p50_s", "ttft_p99_s", "tbt_p50_s", "tbt_p99_s", "j_per_output_token")
    numbers: dict[str, Any] = {**dict.fromkeys((*zero, "ttft_p99_ci_s"), 0.0), **dict.fromkeys(unknown, UNKNOWN)}
    return replace(like, **numbers | {"watts": watts}, saturated=False, requests=0, repeats=1, origin=origin)


def _believable(rows: list[Point]) -> tuple[tuple[Point, ...], int]:
    """Leaves out what a reader of the file would refuse: derived rows first, then the measured."""
    left_out = 0
    while True:
        faults = [f.row for r, p in enumerate(rows) for f in row_findings(p, r) if f.error]
        faults += [] if faults else [f.row for f in table_findings(rows) if f.error]
        bad = {row for row in faults if row is not None}
        if not bad:
            return tuple(rows), left_out
        gone = {row for row in bad if rows[row].origin == "derived"} or bad
        left_out += len(gone)
        rows = [p for r, p in enumerate(rows) if r not in gone]
