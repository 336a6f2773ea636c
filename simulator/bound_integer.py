"""The integer bound: whole instances, their idle watts and what starting them costs, solved as a small MILP.

Instances are counted at the edges of windows. What work costs enters through cuts: for any prices at which no point of
a TP earns more than it costs, the joules of a window are at least what its work is worth at those prices. A cut that
is left out only lowers the bound, so that the dual bound of the MILP holds whatever cuts were found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import Bounds as Limits
from scipy.optimize import LinearConstraint, milp

from profiles.engine_model import EngineModel
from simulator.bound_fluid import Master, Prices, Solved, costs, worth
from simulator.bound_frame import Frame, Index, Programme, Units, frame
from simulator.bound_load import WINDOW_S, Floats, Load
from simulator.bound_points import Points

ROUNDS = 2
FEW = 3  # rounds of columns with the instances fixed: a cut holds at any prices, so these need not be the best
MOST_ROWS = 500  # of cuts, beyond which another round takes minutes and is left out
MOST_NODES = 20  # nodes, not seconds: the same input gives the same bound
GAP = 2e-3
OVERTIME = 100  # seconds of loaded idle that a second beyond the held ones is priced at, where cuts are looked for
DIGITS = 3  # of a price, so that alike cuts become one


@dataclass(frozen=True, slots=True)
class Switching:
    """`start_s` of loaded idle brings an instance up; one of another TP on the same GPUs takes `reshard_s` of it.
    `idle_w` of a GPU that is ready or parked."""

    idle_w: float
    start_s: float
    reshard_s: Mapping[tuple[int, int], float]


def switching_of(model: EngineModel, start_s: float) -> Switching:
    tps = sorted(model.points)
    known = model.switch.reshard_units
    reshard_s = {(a, b): model.reshard_s(a, b) for a in tps for b in tps if (a, b) in known}
    return Switching(min(model.idle_w, model.parked_w), start_s, reshard_s)


@dataclass(slots=True)
class Cut:
    prices: Prices
    end: int  # it holds for windows that run no more sequences than the first `end` points do


@dataclass(frozen=True, slots=True)
class Whole:
    """`gap`: between the bound and the best plan found, None if none was found. `switches`: that plan's
    whole numbers."""

    joules: float
    gap: float | None
    switches: Floats | None
    cuts: int


@dataclass(slots=True)
class Integer:
    load: Load
    points: Sequence[Points]
    gpus: int | None
    units: Units
    switching: Switching
    cuts: list[dict[tuple[object, ...], Cut]] = field(default_factory=list)

    def bound(self) -> Whole | None:
        """None if the GPUs cannot serve the load."""
        idle_w = [self.switching.idle_w * one.tp for one in self.points]
        self.cuts = [{} for _ in self.points]
        master = Master(self.load, self.points, self.gpus, self.units, idle_w, self._instances)
        if not self._learn(master.solve(), idle_w):
            return None
        best: Whole | None = None
        for _ in range(ROUNDS):
            whole = self._whole()
            if best is None or whole.joules > best.joules:
                best = whole
            if whole.switches is None:
                break
            held = whole.switches

            def fixed(programme: Programme, inside: Frame, held: Floats = held) -> None:
                self._instances(programme, inside, held)

            before = sum(len(one) for one in self.cuts)
            if before * self.load.windows > MOST_ROWS:
                break
            fixed_master = Master(self.load, self.points, self.gpus, self.units, idle_w, fixed)
            self._learn(fixed_master.solve(FEW), idle_w)
            if sum(len(one) for one in self.cuts) == before:
                break
        return best

    def _learn(self, solved: Solved, idle_w: Sequence[float]) -> bool:
        for row, prices in enumerate(solved.prices):
            points, known = self.points[row], self.cuts[row]
            both = (variant for price in prices for variant in (price, replace(price, second=0.0)))
            for number, price in enumerate(both):
                end = points.up_to(self.load.running[number // 2])
                cut = _cut(points, end, price, idle_w[row])
                if cut is not None:
                    known.setdefault((end, cut.prices.second, *(_rounded(v) for v in cut.prices.work)), cut)
        return solved.possible

    def _instances(self, programme: Programme, inside: Frame, held: Floats | None = None) -> Index:
        """Adds counts at window edges, starts, ends and re-shards; returns the columns that are whole. `held` fixes
        those."""
        tps, windows, s = [one.tp for one in self.points], self.load.windows, self.switching
        unit = self.units.joules
        whole = windows + 1
        count = programme.add(len(tps) * whole).reshape(len(tps), whole)
        draw = [s.idle_w * tp / unit for tp in tps]
        starts = np.stack([programme.add(windows, cost=s.start_s * watts) for watts in draw])
        ends = programme.add(len(tps) * windows).reshape(len(tps), windows)
        moved = {
            (a, b): programme.add(windows, cost=s.reshard_s[a, b] * draw[tps.index(b)])
            for a, b in s.reshard_s
        }  # fmt: skip
        for row, tp in enumerate(tps):
            out = [(column, 1.0) for (a, _), column in moved.items() if a == tp]
            into = [(column, -max(1.0, a / b)) for (a, b), column in moved.items() if b == tp]
            left = [(count[row, 1:], 1.0), (count[row, :-1], -1.0), (starts[row], -1.0), (ends[row], 1.0)]
            programme.at_most([*left, *out, *into], 0.0, windows)
            begun = [(count[row, :-1], -1.0), (starts[row], -1.0)]
            programme.at_most([(ends[row], 1.0), *out, *begun, *into], 0.0, windows)
            held_s = [(column, WINDOW_S * by) for column, by in [*begun, *into]]
            if held is not None:  # so that too few instances have a price as well
                held_s.append((programme.add(windows, cost=OVERTIME * draw[row]), -1.0))
            programme.at_most([(inside.seconds[row], 1.0), *held_s], 0.0, windows)
            stays = [(count[row, :-1], WINDOW_S), (ends[row], -WINDOW_S)]
            gone = [(column, -WINDOW_S) for column, _ in out]
            programme.at_most([*stays, *gone, (inside.seconds[row], -1.0)], 0.0, windows)
        gpu_s = [term for row, tp in enumerate(tps) for term in (
            (count[row, :-1], WINDOW_S * tp), (ends[row], -WINDOW_S * tp), (inside.seconds[row], -1.0 * tp)
        )]  # fmt: skip
        programme.at_most(gpu_s, 0.0, windows)  # a re-shard gives no GPU back
        if self.gpus is not None:
            programme.at_most([(count[row], float(tp)) for row, tp in enumerate(tps)], self.gpus, whole)
        switches = np.concatenate([count.ravel(), starts.ravel(), *moved.values()])
        if held is not None:
            programme.fix(switches, held)
        return switches

    def _whole(self) -> Whole:
        programme = Programme()
        inside = frame(programme, self.load, [one.tp for one in self.points], self.gpus, self.units)
        switches = self._instances(programme, inside)
        for row, one in enumerate(self.points):
            idle_w = self.switching.idle_w * one.tp
            ends = np.array([one.up_to(running) for running in self.load.running])
            for cut in self.cuts[row].values():
                self._add_cut(programme, inside, row, cut, np.nonzero(ends <= cut.end)[0], idle_w)
            self._add_capacity(programme, inside, row, ends)
        cost, low, high, limit = programme.vectors()
        whole = np.zeros(programme.columns, dtype=np.int64)
        whole[switches] = 1
        done = milp(
            cost, integrality=whole, bounds=Limits(low, high),
            constraints=LinearConstraint(programme.matrix(), -np.inf, limit),
            options={"node_limit": MOST_NODES, "mip_rel_gap": GAP},
        )  # fmt: skip
        dual = done.get("mip_dual_bound")
        joules = 0.0 if dual is None or not math.isfinite(dual) else dual * self.units.joules
        cuts = sum(len(one) for one in self.cuts)
        if done.x is None:
            return Whole(joules, None, None, cuts)
        return Whole(joules, 1 - joules / (done.fun * self.units.joules), np.round(done.x[switches]), cuts)

    def _add_cut(self, programme: Programme, inside: Frame, row: int, cut: Cut, windows: Index, idle_w: float) -> None:
        """worth of the work <= joules + what the seconds and late gaps cost at the cut's prices."""
        unit, price = self.units, cut.prices
        value = price.work * unit.work / unit.joules
        terms = [(inside.supply[row, windows, kind], value[kind] * (-1.0 if kind == 3 else 1.0)) for kind in range(4)]
        second = (idle_w - price.second) / unit.joules
        programme.at_most(
            [*terms, (inside.seconds[row, windows], second), (inside.joules[row, windows], -1.0)], 0.0, len(windows)
        )  # fmt: skip

    def _add_capacity(self, programme: Programme, inside: Frame, row: int, ends: Index) -> None:
        """Work, weighed by the mean of the cuts' prices, takes at least the seconds of the points that do most."""
        prices = [cut.prices.work for cut in self.cuts[row].values()]
        if prices:
            mean = Prices(np.mean(prices, axis=0), 0.0)
            points, value = self.points[row], mean.work * self.units.work
            done = [worth(points, end, mean) - points.rates[:end, 3] * mean.work[3] for end in ends]
            most = np.array([max(0.0, float(one.max())) for one in done])
            terms = [(inside.supply[row, :, kind], value[kind] * (-1.0 if kind == 3 else 1.0)) for kind in range(4)]
            scale = float(value.max())
            scaled = [(columns, by / scale) for columns, by in terms]
            programme.at_most([*scaled, (inside.seconds[row], -most / scale)], 0.0, len(ends))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _cut(points: Points, end: int, price: Prices, idle_w: float) -> Cut | None:
    """Prices rounded, the work's scaled until the best point earns what it costs; None if no work is worth anything."""
    rounded = Prices(np.array([_rounded(v) for v in price.work]), _rounded(price.second))
    earned = worth(points, end, rounded)
    best = float(np.max(earned / costs(points, end, rounded, idle_w)))
    if best <= 0:
        return None
    work = np.append(rounded.work[:3] / best, rounded.work[3])
    return Cut(Prices(work, rounded.second), end)
