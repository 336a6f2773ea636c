"""The linear programme over operating points, solved by generating columns: few of the points are ever in it.

Owns the master programme, the search for points that would lower it, and the prices (dual values) that prove the
bound. Reads no trace and no engine model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from simulator.bound_frame import Frame, Index, Programme, Units, frame
from simulator.bound_load import Floats, Load
from simulator.bound_points import Points

MOST_ROUNDS = 60
ENOUGH = 1e-5  # a point left out earns at most this share more than it costs
TIMES = 5  # that share is taken off the bound so often: a point's cost may hold a GPU's and late gaps' price as well
More = Callable[[Programme, Frame], object]  # adds what the programme says of instances besides


@dataclass(frozen=True, slots=True)
class Prices:
    """Joules that a unit of work is worth in one TP and window; `work` (4,) are decode steps, prefill tokens, context
    and, as a cost, late gaps; `second` is what a busy second costs besides its watts."""

    work: Floats
    second: float


@dataclass(frozen=True, slots=True)
class Used:
    """A point of the optimum: `watts` while it runs, `seconds` of instances in all."""

    tp: int
    clock_mhz: int
    running: float
    prefill_tokens: float
    context_tokens: float
    seconds: float
    joules: float


@dataclass(frozen=True, slots=True)
class Solved:
    """`joules` bounds from below whatever the points allow. `prices` by TP and window; `possible` is False if no
    mixture of points serves the load on the GPUs there are."""

    joules: float
    prices: tuple[tuple[Prices, ...], ...]
    used: tuple[Used, ...]
    columns: int
    possible: bool


class Master:
    """Columns are chosen points, the same for all windows whose load can fill them. `idle_w` by TP is what a held
    second costs when nothing runs; zeros for the fluid bound."""

    def __init__(
        self, load: Load, points: Sequence[Points], gpus: int | None, units: Units, idle_w: Sequence[float],
        more: More = lambda programme, frame: None,
    ) -> None:  # fmt: skip
        self.load, self.points, self.units, self.idle_w = load, points, units, idle_w
        self._gpus = gpus
        self._more = more
        self._ends = [[one.up_to(running) for running in load.running] for one in points]
        self._chosen: list[NDArray[np.int64]] = [self._first(one) for one in points]

    def solve(self, rounds: int = MOST_ROUNDS) -> Solved:
        excess: Sequence[float] = ()
        solved = Solved(0.0, (), (), 0, False)
        for _ in range(rounds):
            solved = self._round()
            if not solved.possible:
                return solved
            better, excess = zip(*map(self._better, range(len(self.points)), solved.prices), strict=True)
            if max(excess) <= ENOUGH:
                break
            self._chosen = [np.union1d(a, b) for a, b in zip(self._chosen, better, strict=True)]
        return replace(solved, joules=solved.joules * (1 - TIMES * max(ENOUGH, *excess)))

    def _first(self, points: Points) -> NDArray[np.int64]:
        """The cheapest points for some prices, so that there is a mixture to begin with; alone ones for small loads."""
        mixes = [(a, b, c) for a in (0.0, 1.0) for b in (0.0, 1.0) for c in (0.0, 1.0) if a + b + c]
        scale = self.units.work[:3]
        wanted = set()
        for end in {points.up_to(running) for running in self.load.running}:
            for mix in mixes:
                gain = (points.rates[:end, :3] / scale) @ np.array(mix)
                wanted |= {int(np.argmax(gain / points.watts[:end])), int(np.argmax(gain))}
        return np.array(sorted(wanted), dtype=np.int64)

    def _round(self) -> Solved:
        programme = Programme()
        inside = frame(programme, self.load, [one.tp for one in self.points], self._gpus, self.units)
        rows, columns = zip(*(self._energy(programme, inside, row) for row in range(len(self.points))), strict=True)
        self._more(programme, inside)
        cost, low, high, limit = programme.vectors()
        done = linprog(  # type: ignore[call-overload]  # the stubs do not know of sparse matrices
            cost, A_ub=programme.matrix(), b_ub=limit, bounds=np.stack([low, high], axis=1), method="highs",
            options={"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9},
        )  # fmt: skip
        if done.status == 2:
            return Solved(0.0, (), (), 0, False)
        if done.status != 0:
            raise RuntimeError(f"the linear programme of the bound was not solved: {done.message}")
        marginals = -np.asarray(done.ineqlin.marginals)
        prices = tuple(self._prices(marginals, one) for one in rows)
        used = [u for row, one in enumerate(columns) for u in self._used(row, one, done.x)]
        return Solved(done.fun * self.units.joules, prices, tuple(used), programme.columns, True)

    def _energy(self, programme: Programme, inside: Frame, row: int) -> tuple[Index, tuple[Index, Index, Index]]:
        """Rows (6, windows): four of supply, one of seconds, one of joules. Columns: (numbers, point, window)."""
        points, chosen, windows = self.points[row], self._chosen[row], self.load.windows
        signs = np.array([1.0, 1.0, 1.0, -1.0])
        rows = [
            programme.at_most([(inside.supply[row, :, kind], signs[kind])], 0.0, windows) for kind in range(4)
        ]  # fmt: skip
        rows.append(programme.at_most([(inside.seconds[row], -1.0)], 0.0, windows))
        idle = self.idle_w[row] / self.units.joules
        rows.append(programme.at_most([(inside.seconds[row], idle), (inside.joules[row], -1.0)], 0.0, windows))
        fits = chosen[:, None] < np.array(self._ends[row])[None, :]
        which, window = np.nonzero(fits)
        point = chosen[which]
        columns = programme.add(len(point))
        for kind in range(4):
            amount = points.rates[point, kind] / self.units.work[kind]
            programme.add_to(rows[kind][window], columns, -signs[kind] * amount)
        programme.add_to(rows[4][window], columns, 1.0)
        programme.add_to(rows[5][window], columns, points.watts[point] / self.units.joules - idle)
        return np.stack(rows), (columns, point, window)

    def _prices(self, marginals: Floats, rows: Index) -> tuple[Prices, ...]:
        value = np.maximum(0.0, marginals[rows])  # of a unit of work, in units of joules
        work = value[:4].T * self.units.joules / self.units.work
        return tuple(
            Prices(work[window], value[4, window] * self.units.joules) for window in range(rows.shape[1])
        )  # fmt: skip

    def _better(self, row: int, prices: Sequence[Prices]) -> tuple[NDArray[np.int64], float]:
        """For each window the point that earns most for what it costs; and the most that one earns beyond that."""
        points, ends = self.points[row], self._ends[row]
        found: dict[tuple[object, ...], tuple[int, float]] = {}
        for end, price in zip(ends, prices, strict=True):
            key = (end, price.second, *price.work)
            if key not in found:
                earned = worth(points, end, price) / costs(points, end, price, self.idle_w[row])
                best = int(np.argmax(earned))
                found[key] = best, float(earned[best]) - 1
        better = {best for best, excess in found.values() if excess > ENOUGH}
        return np.array(sorted(better), dtype=np.int64), max(excess for _, excess in found.values())

    def _used(self, row: int, columns: tuple[Index, Index, Index], x: Floats) -> list[Used]:
        points, (numbers, point, _) = self.points[row], columns
        seconds = np.bincount(point, weights=x[numbers], minlength=len(points.watts))
        out = []
        for at in np.nonzero(seconds > 1e-6)[0]:
            clock, running, prefill, context = (float(v) for v in points.step[at])
            joules = float(seconds[at] * points.watts[at])
            out.append(Used(points.tp, int(clock), running, prefill, context, float(seconds[at]), joules))
        return out


def worth(points: Points, end: int, price: Prices) -> Floats:
    """Joules that a busy second of each of the first `end` points earns at these prices."""
    return np.asarray(points.rates[:end, :3] @ price.work[:3], dtype=np.float64)


def costs(points: Points, end: int, price: Prices, idle_w: float) -> Floats:
    """And what it costs: watts above idle, the second itself, late gaps. A small floor keeps quotients finite."""
    late = points.rates[:end, 3] * price.work[3]
    return np.asarray(np.maximum(1e-9, points.watts[:end] - idle_w + price.second + late), dtype=np.float64)
