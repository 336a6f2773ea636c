"""What the optimiser is asked and what it answers, as frozen values that travel between processes.

Owns the words of planning: kinds of instances, columns, demands, nodes, switching costs, plans. Solves nothing, prices
nothing, and knows no clock: whoever asks has already put head-room on the demands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """What an instance is for as long as it lives. Its clock and its load change without a switch, this does not."""

    service: str
    pool: str
    gpu: str
    tp: int


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """A kind at a clock: instances that are alike but for their load."""

    kind: Kind
    clock_mhz: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What a column would carry of another pool's mix alone, and draw."""

    pool: str
    rps: float
    watts: float


@dataclass(frozen=True, slots=True)
class Column:
    """One way to run one instance: at `clock_mhz`, holding at most `slots` sequences, `level` of its capacity used.

    `rps`: requests/s of its own pool's mix that it carries there within the SLO. `watts`: mean at that load, all its
    GPUs. `peak_w`: the most it draws in any step. `running`: requests in flight, those waiting for prefill included.
    `takes`: what it would carry of earlier pools instead; only what is named may be merged.
    """

    kind: Kind
    clock_mhz: int
    level: float
    slots: int
    rps: float
    watts: float
    peak_w: float
    running: float = 0.0
    takes: tuple[Taken, ...] = ()

    @property
    def setting(self) -> Setting:
        return Setting(self.kind, self.clock_mhz)


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests/s that one pool must carry, head-room included. Pools of a service stand in their order, shortest
    answers first. `weight`: what shedding a request of it costs against one of the others."""

    service: str
    pool: str
    rps: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class NodeShape:
    """`count` machines alike, each with `gpus` usable GPUs. A TP group never straddles two of them."""

    gpu: str
    gpus: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class SwitchJoules:
    """Joules of bringing one instance up, of draining one and of waking one that sleeps, from the history of real
    transitions."""

    service: str
    gpu: str
    tp: int
    start_j: float
    stop_j: float
    wake_j: float = 0.0


@dataclass(frozen=True, slots=True)
class Bound:
    """How many instances an operator lets a pool have: at least, at most (None: as many as there is room for)."""

    service: str
    pool: str
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """An instance of kind `before` may become one of kind `after` for `joules`: a re-shard, or another pool's turn."""

    before: Kind
    after: Kind
    joules: float


@dataclass(frozen=True, slots=True)
class Problem:
    """One plan over all services of an inventory, for `horizon_s`. `asleep`: parked instances, which are woken before
    any of their kind is started.

    `floors`: (service, instances that must be ready whatever the load). `bounds`: of pools, at most one each.
    `spare`: services whose capacity without their largest instance must still carry their load (N+1 of the cluster, not
    of a pool). `eta`: 1 counts joules alone, 0
    latency alone: eta x watts + (1 - eta) x `latency_w` x requests in flight (the knob of Zeus, NSDI 2023). `etas`: of
    services that have their own.
    ValueError names what can not be planned.
    """

    columns: tuple[Column, ...]
    demands: tuple[Demand, ...]
    nodes: tuple[NodeShape, ...]
    horizon_s: float = 1800.0
    current: tuple[tuple[Kind, int], ...] = ()
    asleep: tuple[tuple[Kind, int], ...] = ()
    switches: tuple[SwitchJoules, ...] = ()
    moves: tuple[Move, ...] = ()
    floors: tuple[tuple[str, int], ...] = ()
    bounds: tuple[Bound, ...] = ()
    spare: frozenset[str] = frozenset()
    eta: float = 1.0
    etas: tuple[tuple[str, float], ...] = ()
    latency_w: float = 0.0
    power_cap_w: float = math.inf

    def __post_init__(self) -> None:
        for eta in (self.eta, *(eta for _, eta in self.etas)):
            if not 0 <= eta <= 1:
                raise ValueError(f"eta is {eta:g}, not between 0 and 1")
        if not self.horizon_s > 0:
            raise ValueError(f"the horizon is {self.horizon_s:g} s")
        if bad := [d for d in self.demands if not 0 <= d.rps < math.inf]:
            raise ValueError(f"the demand of {bad[0].service}/{bad[0].pool} is {bad[0].rps} requests/s")
        named = {(d.service, d.pool) for d in self.demands}
        if len(named) < len(self.demands):
            raise ValueError("a pool has two demands")
        for column in self.columns:
            if (column.kind.service, column.kind.pool) not in named:
                raise ValueError(f"{column.kind.service}/{column.kind.pool} has columns but no demand")
            if not column.rps > 0 or not 0 <= column.watts < math.inf:
                raise ValueError(f"a column of {column.kind} carries {column.rps} requests/s for {column.watts} W")
        sizes = sorted({column.kind.tp for column in self.columns})
        if any(large % small for small, large in pairwise(sizes)):
            raise ValueError(f"TP sizes {sizes}: each must divide the next, or whole nodes can not be packed by counts")

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.gpu for node in self.nodes))

    def room(self, gpu: str, tp: int) -> int:
        """GPUs of this type in groups of `tp` that fit into whole nodes."""
        return sum(node.count * (node.gpus // tp) * tp for node in self.nodes if node.gpu == gpu)

    def bound_of(self, service: str, pool: str) -> Bound:
        known = (one for one in self.bounds if (one.service, one.pool) == (service, pool))
        return next(known, Bound(service, pool))

    def pools_of(self, service: str) -> tuple[Demand, ...]:
        return tuple(demand for demand in self.demands if demand.service == service)

    @property
    def services(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(demand.service for demand in self.demands))

    def cost_w(self, column: Column) -> float:
        """What one instance there counts in the objective, in watts."""
        eta = self.eta_of(column.kind.service)
        return eta * column.watts + (1 - eta) * self.latency_w * column.running

    def eta_of(self, service: str) -> float:
        return dict(self.etas).get(service, self.eta)

    def switch_w(self, service: str, joules: float) -> float:
        """Joules of a change of a service as watts over the horizon."""
        return self.eta_of(service) * joules / self.horizon_s


@dataclass(frozen=True, slots=True)
class Group:
    """`count` instances that run alike."""

    column: Column
    count: int

    @property
    def gpus(self) -> int:
        return self.count * self.column.kind.tp


@dataclass(frozen=True, slots=True)
class Flow:
    """`rps` requests of `pool` that instances of `to` serve; a merge where that is another pool's kind."""

    pool: str
    to: Setting
    rps: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. `cost_w`: the objective; `expected_w`: mean watts of the instances alone; `switch_j`: joules of the
    changes it asks for; `bound_w`: no plan costs less (0: not known). `source`: milp, dp or none. `status`: optimal,
    feasible (within its gap), or why the solver's answer is missing."""

    groups: tuple[Group, ...]
    flows: tuple[Flow, ...] = ()
    shed: tuple[tuple[str, str, float], ...] = ()
    cost_w: float = 0.0
    expected_w: float = 0.0
    switch_j: float = 0.0
    bound_w: float = 0.0
    source: str = "none"
    status: str = "empty"

    @property
    def gap(self) -> float:
        """Share of its cost that a better plan might save at most; infinity where no bound is known."""
        if self.bound_w <= 0:
            return 0.0 if self.cost_w <= 0 else math.inf
        return max(0.0, 1 - self.bound_w / self.cost_w)

    def counts(self) -> dict[Kind, int]:
        counted: dict[Kind, int] = {}
        for group in self.groups:
            counted[group.column.kind] = counted.get(group.column.kind, 0) + group.count
        return counted

    def gpus(self, gpu: str) -> int:
        return sum(group.gpus for group in self.groups if group.column.kind.gpu == gpu)


class Rate(NamedTuple):
    """One request/s of another pool: as how many of the own pool it counts, and how many watts it draws more."""

    counts: float
    more_w: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a setting serves, by pool. Its levels share this, the worst of them where they differ. Watts are mixed in
    proportion. Made once of a problem's columns."""

    rates: dict[Setting, dict[str, Rate]] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: Iterable[Column]) -> Exchange:
        found: dict[Setting, dict[str, Rate]] = {}
        for column in columns:
            mine = {
                one.pool: Rate(column.rps / one.rps, (one.watts - column.watts) / one.rps)
                for one in column.takes
                if one.rps > 0
            }
            mine[column.kind.pool] = Rate(1.0, 0.0)
            known = found.setdefault(column.setting, mine)
            if known is not mine:
                both = known.keys() & mine.keys()
                found[column.setting] = {p: Rate(*map(max, known[p], mine[p])) for p in known if p in both}
        return cls(found)

    def serves(self, setting: Setting, pool: str) -> Rate | None:
        return self.rates.get(setting, {}).get(pool)

    def more_w(self, flows: Iterable[Flow]) -> float:
        """What merges draw above the watts of the columns that serve them; negative where they draw less."""
        return sum(flow.rps * rate.more_w for flow in flows if (rate := self.serves(flow.to, flow.pool)) is not None)


def usable(problem: Problem) -> tuple[Column, ...]:
    """Columns that fit into some node, without those another one of the same kind beats or equals in all respects."""
    by_kind: dict[Kind, list[Column]] = {}
    for column in problem.columns:
        if problem.room(column.kind.gpu, column.kind.tp) and column.peak_w <= problem.power_cap_w:
            by_kind.setdefault(column.kind, []).append(column)
    return tuple(kept for columns in by_kind.values() for kept in _pruned(problem, columns))


def _pruned(problem: Problem, columns: list[Column]) -> list[Column]:
    capped = problem.power_cap_w < math.inf
    kept: list[Column] = []
    for column in sorted(columns, key=lambda c: (-c.rps, problem.cost_w(c), c.peak_w, c.clock_mhz)):
        cost_w = problem.cost_w(column)
        if not any(problem.cost_w(k) <= cost_w and (not capped or k.peak_w <= column.peak_w) for k in kept):
            kept.append(column)
    return kept
