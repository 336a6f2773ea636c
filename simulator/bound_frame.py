"""What the fluid and the integer bound have in common: work that is released, flows to later windows and falls due.

Owns the rows of the linear programme that do not say what work costs. Adds nothing about instances' energy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from simulator.bound_load import WINDOW_S, Floats, Load

Index = NDArray[np.int64]
Terms = Sequence[tuple[Any, Any]]  # (columns, coefficients), each one number or one per row


@dataclass(slots=True)
class Programme:
    """Minimise cost * x subject to rows * x <= limit and low <= x <= high. Grows by blocks of columns and rows."""

    cost: list[Floats] = field(default_factory=list)
    low: list[Floats] = field(default_factory=list)
    high: list[Floats] = field(default_factory=list)
    columns: int = 0
    rows: int = 0
    limit: list[Floats] = field(default_factory=list)
    entries: list[tuple[Index, Index, Floats]] = field(default_factory=list)

    def add(self, count: int, cost: Any = 0.0, low: Any = 0.0, high: Any = np.inf) -> Index:
        for values, value in ((self.cost, cost), (self.low, low), (self.high, high)):
            values.append(np.broadcast_to(np.asarray(value, dtype=np.float64), (count,)))
        self.columns += count
        return np.arange(self.columns - count, self.columns)

    def at_most(self, terms: Terms, limit: Any, count: int) -> Index:
        """`count` rows: sum of coefficient * column <= limit. Returns their numbers."""
        here = np.arange(self.rows, self.rows + count)
        for column, coefficient in terms:
            at, by = np.broadcast_to(column, (count,)), np.broadcast_to(coefficient, (count,))
            self.entries.append((here, at.astype(np.int64), by.astype(np.float64)))
        self.limit.append(np.broadcast_to(np.asarray(limit, dtype=np.float64), (count,)))
        self.rows += count
        return here

    def add_to(self, rows: Any, columns: Any, coefficients: Any) -> None:
        """More entries of rows that exist; the three are broadcast together."""
        row, column, value = np.broadcast_arrays(rows, columns, coefficients)
        self.entries.append((row.ravel(), column.ravel(), value.ravel().astype(np.float64)))

    def fix(self, columns: Index, values: Floats) -> None:
        """These columns take these values."""
        for bounds in (self.low, self.high):
            whole = np.concatenate(bounds)
            whole[columns] = values
            bounds[:] = [whole]

    def matrix(self) -> sparse.csr_matrix:
        rows, columns, values = (np.concatenate([entry[n] for entry in self.entries]) for n in range(3))
        return sparse.csr_matrix((values, (rows, columns)), shape=(self.rows, self.columns))

    def vectors(self) -> tuple[Floats, Floats, Floats, Floats]:
        """(cost, low, high, limit)"""
        cost, low, high, limit = (np.concatenate(one) for one in (self.cost, self.low, self.high, self.limit))
        return cost, low, high, limit


@dataclass(frozen=True, slots=True)
class Frame:
    """Column numbers by TP (rows) and window. `supply[..., k]`: decode steps, prefill tokens, context read, late gaps.

    `seconds`: instance-seconds held ready; `joules`: of the instances in that window.
    """

    supply: Index
    seconds: Index
    joules: Index


@dataclass(frozen=True, slots=True)
class Units:
    """What one unit of each column means, so that all of them are within a few orders of magnitude."""

    work: Floats  # (4,): decode steps, prefill tokens, context, late gaps
    joules: float


def units_of(load: Load) -> Units:
    whole = np.maximum(1.0, load.released.sum(axis=0)) / load.windows
    return Units(np.append(whole, whole[0]), 1e5)


def frame(programme: Programme, load: Load, tps: Sequence[int], gpus: int | None, units: Units) -> Frame:
    windows, kinds = load.windows, len(tps)
    shape = (kinds, windows)
    seconds = programme.add(kinds * windows).reshape(shape)
    joules = programme.add(kinds * windows, cost=1.0).reshape(shape)
    supply = programme.add(kinds * windows * 4).reshape(*shape, 4)
    _together(programme, load, supply, units)
    for kind in range(3):
        unit = units.work[kind]
        shed = programme.add(windows)
        programme.at_most([(column, 1.0) for column in shed], load.shed[kind] / unit, 1)
        open_ = programme.add(windows, high=load.slack[:, kind] / unit)
        before = [(open_[:-1], 1.0)]
        served = [(supply[row, :, kind], -1.0) for row in range(kinds)]
        released = load.released[:, kind] / unit
        programme.at_most([(shed[:1], -1.0), (open_[:1], -1.0), *_cut(served, slice(0, 1))], -released[:1], 1)
        if windows > 1:
            later = slice(1, None)
            terms = [*before, (open_[1:], -1.0), (shed[1:], -1.0), *_cut(served, later)]
            programme.at_most(terms, -released[1:], windows - 1)
    late = [(column, 1.0) for column in supply[:, :, 3].ravel()]
    programme.at_most(late, load.late_gaps / units.work[3], 1)
    if gpus is not None:
        terms = [(seconds[row], float(tp)) for row, tp in enumerate(tps)]
        programme.at_most(terms, WINDOW_S * gpus, windows)
    return Frame(supply, seconds, joules)


def _together(programme: Programme, load: Load, supply: Index, units: Units) -> None:
    """A request's prompt and answer are computed by engines of one TP, or the prompt again by those of each."""
    kinds, groups = supply.shape[0], len(load.alike)
    share = programme.add(kinds * groups * 3).reshape(kinds, groups, 3)
    for kind in range(3):
        unit = units.work[kind]
        missed = programme.add(groups)
        programme.at_most([(column, 1.0) for column in missed], load.shed[kind] / unit, 1)
        served = [(share[row, :, kind], -1.0) for row in range(kinds)]
        demanded = np.array([one.work[kind] for one in load.alike]) / unit
        programme.at_most([*served, (missed, -1.0)], -demanded, groups)
        for row in range(kinds):
            made = [(column, -1.0) for column in supply[row, :, kind]]
            programme.at_most([*((column, 1.0) for column in share[row, :, kind]), *made], 0.0, 1)
    steps, context = (np.array([getattr(one, name) for one in load.alike]) for name in ("steps", "context"))
    for row in range(kinds):
        for of, to, limits in ((1, 0, steps), (0, 2, context)):
            ratio, some = limits * units.work[of] / units.work[to], np.isfinite(limits[:, 1])
            of_, to_ = share[row, :, of], share[row, :, to]
            programme.at_most([(of_, ratio[:, 0]), (to_, -1.0)], 0.0, groups)
            programme.at_most([(to_[some], 1.0), (of_[some], -ratio[some, 1])], 0.0, int(some.sum()))


def _cut(terms: Iterable[tuple[Index, float]], part: slice) -> list[tuple[Index, float]]:
    return [(columns[part], coefficient) for columns, coefficient in terms]
