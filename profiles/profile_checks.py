"""What makes a table of operating points believable: each row by itself, and the rows against physics.

Pure. Answers findings and leaves it to the reader of a file to refuse it. A finding is an error when no query could be
trusted with the row, else a warning: queries smooth what is merely noisy.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from profiles.profile import MAY_BE_UNKNOWN, ORIGINS, UNKNOWN, Point

NOISE = 0.10  # a median against its physics by more than this share is a warning: 30 s windows repeat within it
GROSS = 0.50  # a median that falls to less than half of what it must exceed is no noise
MONOTONE = ("ttft_p50_s", "tbt_p50_s")  # medians only: a p99 of a short window is noise, and is smoothed
LOAD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+=-]{0,63}")
LARGEST = 1e15  # of no quantity is there more; whole numbers up to it are exact
POSITIVE = ("tp", "output_tokens")
NUMBERS = tuple(f.name for f in fields(Point) if f.type in ("int", "float"))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is odd: in which row of the table (None: of no single one) and column, and whether it is fatal."""

    row: int | None
    column: str
    message: str
    error: bool = True


def row_findings(point: Point, row: int | None = None) -> Iterator[Finding]:
    """What is wrong with a row by itself; all of it is fatal but a joule that does not add up."""
    for name in NUMBERS:
        told = _number_fault(name, getattr(point, name))
        if told:
            yield Finding(row, name, told)
    for low, high in (("ttft_p50_s", "ttft_p99_s"), ("tbt_p50_s", "tbt_p99_s")):
        p50, p99 = getattr(point, low), getattr(point, high)
        if UNKNOWN > p50 > p99:
            yield Finding(row, low, f"{low} {p50:g} is above {high} {p99:g}")
    if 1 < point.kv_share < UNKNOWN:
        yield Finding(row, "kv_share", f"is a share and must not exceed 1 ({point.kv_share:g})")
    if point.origin not in ORIGINS:
        yield Finding(row, "origin", f"must be {', '.join(ORIGINS[:-1])} or {ORIGINS[-1]}, not {point.origin!r}")
    if not LOAD.fullmatch(point.load):
        yield Finding(row, "load", f"must be 1 to 64 letters, digits or _ . : / + = -, not {point.load!r}")
    if point.offered_rps == 0 and point.saturated:
        yield Finding(row, "saturated", "an idle row (offered_rps 0) cannot be saturated")
    if 0 < point.watts < UNKNOWN and point.output_tps > 0 and point.j_per_output_token < UNKNOWN:
        expected = point.watts / point.output_tps
        if abs(point.j_per_output_token - expected) > 0.2 * expected:
            told = f"{point.j_per_output_token:g} is not watts / output_tps ({expected:.4g}); queries use the latter"
            yield Finding(row, "j_per_output_token", told, error=False)


def _number_fault(name: str, value: float) -> str:
    if math.isnan(value):
        return "is not a number (NaN)"
    if value == UNKNOWN and name in MAY_BE_UNKNOWN:
        return ""
    if math.isinf(value):
        return "is infinite and must be known"
    if value < 0:
        return f"is negative ({value:g})"
    if value > LARGEST:
        return f"is too large ({value:g})"
    return "must be more than 0" if value == 0 and name in POSITIVE else ""


def table_findings(points: Sequence[Point]) -> Iterator[Finding]:
    """What is wrong with the rows together; call only when each is right by itself."""
    if not points:
        yield Finding(None, "", "holds no operating point")
        return
    seen: dict[tuple[object, ...], int] = {}
    for row, point in enumerate(points):
        first = seen.setdefault((*point.cell, point.offered_rps), row)
        if first != row:
            told = f"repeats {_named(point)} at {point.offered_rps:g} rps; pool repeats into one row"
            yield Finding(row, "offered_rps", told)
    cells = held_rows(points)
    yield from _corners(points, cells)
    yield from _along_load(points, cells)
    yield from _along_clock(points, cells)


def held_rows(points: Sequence[Point]) -> dict[tuple[str, int, int], list[int]]:
    """Rows of each cell that an answer may rest on: not saturated, below every saturated load, ascending."""
    cliff: dict[tuple[str, int, int], float] = {}
    for point in points:
        if point.saturated:
            cliff[point.cell] = min(cliff.get(point.cell, math.inf), point.offered_rps)
    cells: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for row, point in enumerate(points):
        if not point.saturated and 0 < point.offered_rps < cliff.get(point.cell, math.inf):
            cells[point.cell].append(row)
    for rows in cells.values():
        rows.sort(key=lambda row: points[row].offered_rps)
    return dict(cells)


def _named(point: Point) -> str:
    return f"{point.load} TP{point.tp} {point.clock_mhz} MHz"


def _corners(points: Sequence[Point], cells: dict[tuple[str, int, int], list[int]]) -> Iterator[Finding]:
    """The lowest and the highest clock of a TP frame every answer between them."""
    clocks: dict[int, set[int]] = defaultdict(set)
    rows: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for row, point in enumerate(points):
        clocks[point.tp].add(point.clock_mhz)
        rows[point.load, point.tp].setdefault(point.clock_mhz, row)
    for (load, tp), by_clock in rows.items():
        held = [clock for clock in by_clock if (load, tp, clock) in cells]
        top = max(by_clock)
        if held and top not in held:
            told = f"{load} TP{tp} holds loads at {max(held)} MHz and none at {top} MHz, which is faster"
            yield Finding(by_clock[top], "saturated", told)
        for corner in (min(clocks[tp]), max(clocks[tp])):
            if corner not in by_clock:
                told = f"{load} TP{tp} has no row at {corner} MHz, a corner of the grid: no answer out there"
                yield Finding(next(iter(by_clock.values())), "clock_mhz", told, error=False)


def _along_load(points: Sequence[Point], cells: dict[tuple[str, int, int], list[int]]) -> Iterator[Finding]:
    for rows in cells.values():
        for name in MONOTONE:
            peak, at = 0.0, rows[0]
            for row in rows:
                value = getattr(points[row], name)
                if value == UNKNOWN:
                    continue
                if value < peak * (1 - NOISE):
                    told = (
                        f"{_named(points[row])}: {value:g} s at {points[row].offered_rps:g} rps, less than {peak:g} s "
                        f"at {points[at].offered_rps:g} rps; latency does not fall with load"
                    )
                    yield Finding(row, name, told, error=value < peak * (1 - GROSS))
                elif value > peak:
                    peak, at = value, row


def _along_clock(points: Sequence[Point], cells: dict[tuple[str, int, int], list[int]]) -> Iterator[Finding]:
    """Each row against the next lower clock at the same load, where that clock holds loads on both sides of it."""
    clocks: dict[tuple[str, int], list[int]] = defaultdict(list)
    for load, tp, clock in sorted(cells):
        clocks[load, tp].append(clock)
    for (load, tp, clock), rows in cells.items():
        grid = clocks[load, tp]
        below = grid.index(clock) - 1
        if below < 0:
            continue
        slower = [points[row] for row in cells[load, tp, grid[below]]]
        for row in rows:
            for name in MONOTONE:
                value, limit = getattr(points[row], name), _at(slower, name, points[row].offered_rps)
                if limit is not None and UNKNOWN > value > limit * (1 + NOISE):
                    told = (
                        f"{_named(points[row])}: {value:g} s at {points[row].offered_rps:g} rps, more than about "
                        f"{limit:.4g} s at {grid[below]} MHz; latency does not rise with the clock"
                    )
                    yield Finding(row, name, told, error=value > limit / (1 - GROSS))


def _at(curve: Sequence[Point], name: str, rps: float) -> float | None:
    """Linear between rows; None outside of them or where it is not known."""
    loads = [point.offered_rps for point in curve]
    if not loads[0] <= rps <= loads[-1]:
        return None
    right = min(max(1, bisect_right(loads, rps)), len(loads) - 1)
    low, high = curve[max(0, right - 1)], curve[right]
    low_y, high_y = float(getattr(low, name)), float(getattr(high, name))
    if max(low_y, high_y) == UNKNOWN:
        return None
    if high.offered_rps == low.offered_rps:
        return low_y
    return low_y + (rps - low.offered_rps) / (high.offered_rps - low.offered_rps) * (high_y - low_y)
