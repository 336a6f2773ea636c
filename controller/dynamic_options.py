"""The ways to serve neighbouring pools of one service, for the dynamic programme, priced all at once in numpy.

Owns what the restricted model allows: one column for a whole segment and one more instance of any column of the same
GPU type; when GPUs are short, fewer instances of one column and the rest shed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.problem import Bound, Column, Demand, Exchange, Problem

COUNTS = 48  # numbers of instances tried where part of a segment is shed
SHED = 1e6  # a request that is not served costs this many times the dearest one that is
SLIP = 1e-9
LARGEST = 1 << 40  # instances, where nobody bounds them
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Option:
    """Instances of one GPU type that serve a segment. `served`: the share of each pool's demand that they carry."""

    gpu: str
    gpus: int
    cost_w: float
    groups: tuple[tuple[Column, int], ...]
    served: float = 1.0


@dataclass(frozen=True, slots=True)
class Segment:
    """Demands `first` to `last`, by their places in `in_order`, and how the pool of the last one may serve them."""

    first: int
    last: int
    options: tuple[Option, ...]


def in_order(problem: Problem) -> tuple[Demand, ...]:
    """The demands, service by service."""
    return tuple(demand for service in problem.services for demand in problem.pools_of(service))


def segments(
    problem: Problem, columns: Sequence[Column], exchange: Exchange, cap_price: float, shedding: bool
) -> Iterator[Segment]:
    """`cap_price`: what a peak watt costs in watts. `shedding`: part of a segment may go unserved."""
    demands = in_order(problem)
    for last, server in enumerate(demands):
        mine = [c for c in columns if (c.kind.service, c.kind.pool) == (server.service, server.pool)]
        table = ColumnTable(problem, exchange, mine, cap_price, problem.bound_of(server.service, server.pool))
        for first in range(last, -1, -1):
            if demands[first].service != server.service:
                break
            merged = demands[first : last + 1]
            if not any(demand.rps for demand in merged):
                if first == last:
                    yield Segment(first, last, (Option("", 0, table.empty_w(merged), ()),))
            elif shedding:
                yield Segment(first, last, table.partial(merged))
            else:
                yield Segment(first, last, table.whole(merged))


class ColumnTable:
    """The columns of one pool as arrays. `bound`: how many instances it may have."""

    def __init__(
        self, problem: Problem, exchange: Exchange, columns: Sequence[Column], cap_price: float, bound: Bound
    ) -> None:
        self._least = bound.least
        self._most = LARGEST if bound.most is None else bound.most
        self._columns = columns
        self._exchange = exchange
        self._eta = problem.eta_of(bound.service)
        self._current = dict(problem.current)
        self._switch = {
            (s.service, s.gpu, s.tp): tuple(
                problem.switch_w(s.service, joules) for joules in (s.start_j, s.stop_j, s.wake_j)
            )
            for s in problem.switches
        }
        self._kinds = list(dict.fromkeys(column.kind for column in columns))
        places = {kind: place for place, kind in enumerate(self._kinds)}
        self._kind = np.array([places[column.kind] for column in columns], dtype=np.int64)
        self._rps = np.array([column.rps for column in columns])
        self._tp = np.array([column.kind.tp for column in columns], dtype=np.int64)
        self._cost_w = np.array([problem.cost_w(c) + cap_price * c.peak_w for c in columns])
        known = [self._switch.get((k.service, k.gpu, k.tp), (0.0, 0.0, 0.0)) for k in self._kinds]
        self._start_w, self._stop_w, self._wake_w = (np.array([k[at] for k in known]) for at in range(3))
        asleep = dict(problem.asleep)
        self._asleep = np.array([asleep.get(kind, 0) for kind in self._kinds], dtype=np.int64)
        self._held = np.array([self._current.get(kind, 0) for kind in self._kinds], dtype=np.int64)

    def empty_w(self, pools: Sequence[Demand]) -> float:
        """Stopping whatever runs in these pools."""
        names = {(demand.service, demand.pool) for demand in pools}
        return sum(
            count * self._switch.get((k.service, k.gpu, k.tp), (0.0, 0.0, 0.0))[1]
            for k, count in self._current.items()
            if (k.service, k.pool) in names
        )

    def whole(self, pools: Sequence[Demand]) -> tuple[Option, ...]:
        """Everything served, by one column alone or with one more instance of any for the rest."""
        needed, more_w = self._needs(pools)
        base_w = self.empty_w(pools)
        found: list[Option] = []
        for gpu in dict.fromkeys(kind.gpu for kind in self._kinds):
            here = np.array(
                [i for i, c in enumerate(self._columns) if c.kind.gpu == gpu and np.isfinite(needed[i])], dtype=np.int64
            )
            if len(here):
                found += self._of_one_gpu(gpu, here, needed[here], more_w[here], base_w)
        return tuple(found)

    def _of_one_gpu(self, gpu: str, here: Ints, needed: Floats, more_w: Floats, base_w: float) -> Iterator[Option]:
        cost_w, tp, kind = self._cost_w[here], self._tp[here], self._kind[here]
        alone = np.maximum(self._least, np.ceil(needed - SLIP).astype(np.int64))
        full = np.floor(needed + SLIP).astype(np.int64)
        rest = np.maximum(0.0, needed - full) / needed
        alone_w = alone * cost_w + more_w + self._change_w(kind, alone)
        one = np.ones_like(full)
        change_w = self._change_w(kind, full)[:, None] + self._change_w(kind, one)[None, :]
        together_w = self._change_w(kind, full + 1)[:, None]
        change_w = np.where(kind[:, None] == kind[None, :], together_w, change_w)
        first_w = full * cost_w + (1 - rest) * more_w
        pair_w = first_w[:, None] + cost_w[None, :] + rest[:, None] * more_w[None, :] + change_w
        fits = (rest[:, None] * needed[None, :] <= 1 + SLIP) & (full > 0)[:, None] & (rest > SLIP)[:, None]
        fits &= ((full + 1 >= self._least) & (full + 1 <= self._most))[:, None]
        a, b = np.nonzero(fits)
        alone_w = np.where(alone <= self._most, alone_w, np.inf)
        gpus = np.concatenate([alone * tp, full[a] * tp[a] + tp[b]])
        costs = np.concatenate([alone_w, pair_w[a, b]])
        for at in _frontier(gpus, costs):
            if not np.isfinite(costs[at]):
                continue
            if at < len(here):
                groups: tuple[tuple[Column, int], ...] = ((self._columns[here[at]], int(alone[at])),)
            else:
                i, j = a[at - len(here)], b[at - len(here)]
                groups = ((self._columns[here[i]], int(full[i])), (self._columns[here[j]], 1))
            yield Option(gpu, int(gpus[at]), float(costs[at]) + base_w, groups)

    def partial(self, pools: Sequence[Demand]) -> tuple[Option, ...]:
        """Also fewer instances than needed, the same share of every pool shed; none at all in the last place."""
        weighted = sum(demand.rps * demand.weight for demand in pools)
        price_w = SHED * max(1.0, float(np.max(self._cost_w / self._rps, initial=1.0)))
        base_w = self.empty_w(pools)
        found = [*self.whole(pools), Option("", 0, base_w + price_w * weighted, (), 0.0)]
        needed, more_w = self._needs(pools)
        for gpu in dict.fromkeys(kind.gpu for kind in self._kinds):
            rows: list[tuple[int, float, Column, int, float]] = []
            for at, column in enumerate(self._columns):
                if column.kind.gpu == gpu and np.isfinite(needed[at]) and needed[at] > 1 and self._most:
                    most = min(self._most, int(np.ceil(needed[at] - SLIP)) - 1)
                    counts = np.unique(np.linspace(1, most, min(most, COUNTS)).astype(np.int64))
                    served = np.minimum(1.0, counts / needed[at])
                    costs_w = counts * self._cost_w[at] + served * more_w[at]
                    costs_w += self._change_w(np.full_like(counts, self._kind[at]), counts)
                    costs_w += price_w * weighted * (1 - served)
                    sizes = (counts * self._tp[at]).tolist()
                    for size, cost_w, n, share in zip(sizes, costs_w, counts.tolist(), served, strict=True):
                        rows.append((size, float(cost_w), column, n, float(share)))
            if rows:
                gpus, costs = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
                for place in _frontier(gpus, costs):
                    size, cost_w, column, n, share = rows[place]
                    found.append(Option(gpu, size, cost_w + base_w, ((column, n),), share))
        return tuple(found)

    def _needs(self, pools: Sequence[Demand]) -> tuple[Floats, Floats]:
        """By column: how many instances, in fractions, carry all of these pools, infinite where it may not; and what
        that draws above the column's own watts."""
        needed, more_w = np.zeros(len(self._columns)), np.zeros(len(self._columns))
        for place, column in enumerate(self._columns):
            for demand in pools:
                rate = self._exchange.serves(column.setting, demand.pool)
                if demand.rps > 0 and rate is None:
                    needed[place] = np.inf
                elif demand.rps > 0 and rate is not None:
                    needed[place] += demand.rps * rate.counts / column.rps
                    more_w[place] += demand.rps * rate.more_w * self._eta
        return needed, more_w

    def _change_w(self, kind: Ints, counts: Ints) -> Floats:
        """Of having `counts` instances, against stopping all that run."""
        held = self._held[kind]
        missing = np.maximum(0, counts - held)
        woken = np.minimum(missing, self._asleep[kind])
        kept = np.minimum(counts, held) * self._stop_w[kind]
        changed: Floats = woken * self._wake_w[kind] + (missing - woken) * self._start_w[kind] - kept
        return changed


def _frontier(gpus: Ints, costs: Floats) -> list[int]:
    """Places of those that nothing with as few GPUs beats, fewest GPUs first."""
    order = np.lexsort((costs, gpus))
    least = np.minimum.accumulate(costs[order])
    first = np.concatenate([[True], least[1:] < least[:-1]])
    return [int(place) for place in order[first]]
