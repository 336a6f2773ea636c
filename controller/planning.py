"""From forecasts to a plan: what every pool is asked to carry, the problem that follows, the plan as a tick uses it.

Owns the head-room. Capacity for the mean is bought at the clock that is cheapest; for the peak of the period it is
enough that the same instances hold it at their fastest: a clock rises in milliseconds, an instance in minutes.
Pure, and slow: tenths of a second, so it runs beside the loop and not in a tick."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from controller.clock_prices import Alone, ClockPrice, alone, clock_prices
from controller.demand import Demand, pool_mixes
from controller.dynamic import first_plan
from controller.knowledge import Knowledge, ServiceKnowledge
from controller.loads import Mix, from_each_on, rate, scaled, sums
from controller.pricing import columns_of, sequence_w
from controller.problem import Bound, Column, Kind, Move, NodeShape, Plan, Problem, SwitchJoules
from controller.problem import Demand as PoolDemand
from core.instances import Shape
from predictor.load import Rates
from profiles.engine_model import EngineModel

Solver = Callable[[Problem], Plan]
SOON_S = 300.0
UNBOUNDED_GPUS = 1024
MEAN_ROOM = 1.1  # under a minute's mean the clocks would be at their highest half of the time
RESHAPES = 0.05
UNSERVED_W = 1e6  # of one request per second
SHORT = 0.1  # prices keep about that much in reserve: a plan that is short of less by them may still carry all
LEAST_RPS = 0.05  # a pool without load is still planned for one request in twenty seconds


@dataclass(frozen=True, slots=True)
class Asked:
    """One service's part of a plan. `trim` stretches the demand by what attainment has taught. `load`: to be planned
    for, in times of what is forecast."""

    knowledge: ServiceKnowledge
    demand: Demand
    trim: float = 1.0
    load: float = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """`count` instances of `kind`, at `clock_mhz` under the planned demand; `clocks` from slow to fast."""

    kind: Kind
    count: int
    clock_mhz: int
    clocks: tuple[ClockPrice, ...]


@dataclass(frozen=True, slots=True)
class Ordered:
    """What operators had ordered when a plan was asked for: numbers of instances, and GPUs that they took out."""

    bounds: tuple[Bound, ...] = ()
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """What one service should have from `at_s` on. The rates are those planned for: requests, prompt and answer tokens
    per second, head-room included. `alone`: by TP, for instances that serve although the plan does not name them.
    `from_pool`: by pool, which part of the planned load it and all longer ones are asked for."""

    at_s: float
    targets: tuple[Target, ...]
    planned: tuple[float, float, float]
    mean_rps: float
    upper_rps: float
    expected_w: float
    status: str
    ordered: Ordered = Ordered()
    alone: tuple[Alone, ...] = ()
    from_pool: tuple[tuple[str, float], ...] = ()

    def counts(self) -> dict[tuple[str, int], int]:
        counted: dict[tuple[str, int], int] = {}
        for target in self.targets:
            key = (target.kind.pool, target.kind.tp)
            counted[key] = counted.get(key, 0) + target.count
        return counted

    def shapes(self, knowledge: Knowledge, service: str) -> dict[tuple[str, int], Shape]:
        """How an instance of each (pool, TP) is started."""
        steps = knowledge.services[service].step_tokens
        return {
            (t.kind.pool, t.kind.tp): Shape(t.kind.tp, t.clock_mhz, 0, steps.get(t.kind.tp, 0)) for t in self.targets
        }


@dataclass(frozen=True, slots=True)
class Ask:
    """What a plan is made of, and why. `current`: live instances by (service, pool, TP); `asleep`: parked ones."""

    knowledge: Knowledge
    asked: Mapping[str, Asked]
    current: Mapping[tuple[str, str, int], int]
    now_s: float
    wall_s: float
    reason: str = ""
    ordered: Ordered = Ordered()
    asleep: Mapping[tuple[str, str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """One service with its pools merged in one way: what is asked of those that serve, and at which prices."""

    name: str
    model: EngineModel
    columns: tuple[Column, ...]
    demands: tuple[PoolDemand, ...]
    planned: tuple[float, float, float]
    mean_rps: float
    upper_rps: float
    whole: tuple[Column, ...]  # as if all pools were one
    from_pool: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan before it is read: how pools are merged and which TPs are kept is settled, and so is what a solver may
    still do better than `plan`."""

    ask: Ask
    parts: tuple[Part, ...]
    problem: Problem
    plan: Plan


def make_plan(ask: Ask, solve: Solver = first_plan) -> dict[str, ServicePlan]:
    draft = drafted(ask, solve)
    return finished(draft, draft.plan)


def drafted(ask: Ask, solve: Solver = first_plan) -> Draft:
    """How pools are merged is settled service by service, then all share the GPUs. A merge is priced as the mix that it
    makes, not as a sum of its parts: one large pool needs less head-room than two small ones."""
    solve = cache(solve)  # with one service, the way that wins is the whole problem
    parts = []
    for name, one in ask.asked.items():
        ways = _ways(name, one, ask)
        if ways:
            parts.append(min(ways, key=partial(_way_cost_w, ask, solve)) if len(ways) > 1 else ways[0])
    return Draft(ask, tuple(parts), *_settled(ask, _problem(ask, parts), solve))


def finished(draft: Draft, plan: Plan) -> dict[str, ServicePlan]:
    """`plan` as ticks use it."""
    return _read(draft.ask, draft.parts, draft.problem, plan)


def _way_cost_w(ask: Ask, solve: Solver, way: Part) -> float:
    """What has no room costs more than any watts; the pools that serve now are left for a saving of RESHAPES only."""
    plan = solve(_problem(ask, [way]))
    short = sum(rps for _, _, rps in plan.shed)
    here = {pool for (service, pool, _), count in ask.current.items() if service == way.name and count}
    kept = here == {demand.pool for demand in way.demands}
    if kept:
        short = max(0.0, short - SHORT * sum(demand.rps for demand in way.demands))
    return plan.cost_w * ((1 - RESHAPES) if kept else 1.0) + UNSERVED_W * short


def _settled(ask: Ask, problem: Problem, solve: Solver) -> tuple[Problem, Plan]:
    """The problem and its plan: the one that keeps to the TPs there are, unless another mix of them saves RESHAPES or
    serves more. Instances of another TP have to start while those there still serve."""
    best = solve(problem)
    here = {(service, tp) for (service, _, tp), count in ask.current.items() if count}
    kept = tuple(c for c in problem.columns if (c.kind.service, c.kind.tp) in here)
    demanded = {(demand.service, demand.pool) for demand in problem.demands}
    if not kept or {(c.kind.service, c.kind.pool) for c in kept} != demanded:
        return problem, best
    fewer = replace(problem, columns=kept)
    same = solve(fewer)
    shed = [sum(rps for _, _, rps in plan.shed) for plan in (same, best)]
    if shed[0] > shed[1] + SHORT * sum(demand.rps for demand in problem.demands):
        return problem, best
    cheaper = (1 - RESHAPES) * same.cost_w > best.cost_w and shed[1] <= shed[0]
    return (problem, best) if cheaper else (fewer, same)


def _ways(name: str, one: Asked, ask: Ask) -> list[Part]:
    """Neighbouring pools together, served by the last of them; all ways to do so."""
    spec, model, settings = one.knowledge.spec, one.knowledge.model, ask.knowledge.settings
    assert model is not None, "only services with an engine model are planned"
    forecast = one.demand.load.forecast(ask.wall_s, SOON_S, settings.coverage)
    means = {
        pool: _at_least(scaled(mix, one.load))
        for pool, mix in pool_mixes(one.demand, spec, forecast.mean).items()
        if mix
    }
    peaks = pool_mixes(one.demand, spec, forecast.shared())
    surge = _surge(one.demand.load.windows.excess(), forecast.total_mean)
    price = cache(partial(_priced, one.knowledge, settings.tbt_room * spec.slo.tbt_s, means))
    shared = from_each_on(means, [pool.name for pool in spec.pools])
    ways = []
    merges = _partitions(tuple(means)) if settings.merge else [tuple((pool,) for pool in means)]
    for groups in [way for way in merges if _as_ordered(way, name, ask.ordered)] or merges:
        columns: list[Column] = []
        demands: list[PoolDemand] = []
        for pools in groups:
            mix = _together(means, pools)
            columns += price(pools)
            peak_rps = sum(rate(peaks[pool]) for pool in pools)
            # The trim judges a forecast; a surge that came may come again, however well the time since has gone.
            fastest = max(one.trim * one.load * peak_rps, max(1.0, one.trim) * surge * rate(mix))
            wanted = max(MEAN_ROOM * rate(mix), fastest / _boost(price(pools)))
            demands.append(PoolDemand(name, pools[-1], wanted))
        stretch = sum(d.rps for d in demands) / max(1e-9, sum(rate(mix) for mix in means.values()))
        rps, prompt, answer = (stretch * value for value in sums(_together(means, tuple(means))))
        mean_rps = one.load * forecast.total_mean.requests_rps
        upper_rps = one.load * forecast.total_upper.requests_rps
        whole, planned = price(tuple(means)), (rps, prompt, answer)
        ways.append(Part(name, model, tuple(columns), tuple(demands), planned, mean_rps, upper_rps, whole, shared))
    return [way for way in ways if _able(way)]


def _priced(
    known: ServiceKnowledge, tbt_s: float, means: Mapping[str, Mix], pools: tuple[str, ...]
) -> tuple[Column, ...]:  # fmt: skip
    """These pools as one, which is the last of them."""
    assert known.model is not None
    return columns_of(known.spec.name, [(pools[-1], _together(means, pools))], known.model, tbt_s, known.step_tokens)


def _together(means: Mapping[str, Mix], pools: Sequence[str]) -> Mix:
    return tuple(load for pool in pools for load in means[pool])


def _surge(excess_tokens_per_s: float, mean: Rates) -> float:
    """How many times the forecast's mean a surge may be: it comes sooner than an instance."""
    tokens = mean.input_tokens_per_s
    return 1.0 + excess_tokens_per_s / tokens if tokens > 0 else 1.0


def _able(way: Part) -> bool:
    priced = {column.kind.pool for column in way.columns}
    return bool(way.demands) and all(demand.pool in priced for demand in way.demands)


def _partitions(pools: tuple[str, ...]) -> list[tuple[tuple[str, ...], ...]]:
    if not pools:
        return []
    if len(pools) == 1:
        return [((pools[0],),)]
    found = []
    for rest in _partitions(pools[1:]):
        found += [((pools[0],), *rest), ((pools[0], *rest[0]), *rest[1:])]
    return found


def _as_ordered(way: tuple[tuple[str, ...], ...], name: str, ordered: Ordered) -> bool:
    """A pool that must have instances serves its own requests; one that may have none hands them on."""
    serving = {pools[-1] for pools in way}
    mine = [bound for bound in ordered.bounds if bound.service == name and any(bound.pool in pools for pools in way)]
    return all(b.pool not in serving if b.most == 0 else b.pool in serving or not b.least for b in mine)


def _problem(ask: Ask, parts: Sequence[Part]) -> Problem:
    settings, knowledge = ask.knowledge.settings, ask.knowledge
    named = {part.name: part for part in parts}
    demanded = {(demand.service, demand.pool) for part in parts for demand in part.demands}

    def kinds(there: Mapping[tuple[str, str, int], int]) -> tuple[tuple[Kind, int], ...]:
        return tuple(
            (Kind(service, pool, named[service].model.gpu, tp), count)
            for (service, pool, tp), count in there.items()
            if count and (service, pool) in demanded
        )

    return Problem(
        columns=tuple(column for part in parts for column in part.columns),
        demands=tuple(demand for part in parts for demand in part.demands),
        nodes=tuple(node for gpu in dict.fromkeys(p.model.gpu for p in parts) for node in _nodes(gpu, knowledge)),
        horizon_s=settings.horizon_s,
        current=kinds(ask.current),
        asleep=kinds(ask.asleep),
        switches=tuple(
            switch_joules(part.name, part.model, tp, ask.asked[part.name].knowledge)
            for part in parts
            for tp in part.model.points
        ),
        moves=tuple(move for part in parts for move in _moves(part, ask.asked[part.name].knowledge)),
        floors=tuple((part.name, settings.floor) for part in parts),
        bounds=tuple(bound for bound in ask.ordered.bounds if (bound.service, bound.pool) in demanded),
        spare=frozenset(named) if settings.spare else frozenset(),
        eta=settings.eta,
        etas=tuple((part.name, eta) for part in parts if (eta := ask.asked[part.name].knowledge.spec.eta) is not None),
        latency_w=max((sequence_w(part.model) for part in parts), default=0.0),
        power_cap_w=settings.power_cap_w,
    )


def _nodes(gpu: str, knowledge: Knowledge) -> tuple[NodeShape, ...]:
    """Whole machines, and one with the GPUs that are left."""
    whole, rest = divmod(knowledge.gpus or UNBOUNDED_GPUS, knowledge.node_gpus)
    shapes = (NodeShape(gpu, knowledge.node_gpus, whole), NodeShape(gpu, rest))
    return tuple(shape for shape in shapes if shape.gpus * shape.count)


def _moves(part: Part, known: ServiceKnowledge) -> Iterator[Move]:
    """Re-shards within a pool cost what they were recorded to cost, where that is less than a start and a stop."""
    for before, after, joules in known.reshard_j:
        for demand in part.demands:
            kind = partial(Kind, part.name, demand.pool, part.model.gpu)
            yield Move(kind(before), kind(after), joules)


def switch_joules(service: str, model: EngineModel, tp: int, known: ServiceKnowledge) -> SwitchJoules:
    """As recorded; for a TP that never was, as a GPU of the others; else idle watts for the model's time."""
    recorded = known.switch_j
    wake_j = known.wake_j.get(tp, model.parked_w * tp * model.switch.unpark_s)
    if not recorded:
        return SwitchJoules(service, model.gpu, tp, model.idle_w * tp * model.start_s, 0.0, wake_j)
    per_gpu = [(start_j / size, stop_j / size) for size, (start_j, stop_j) in recorded.items()]
    mean_j, mean_stop_j = (sum(side) / len(per_gpu) for side in zip(*per_gpu, strict=True))
    start_j, stop_j = recorded.get(tp, (tp * mean_j, tp * mean_stop_j))
    return SwitchJoules(service, model.gpu, tp, start_j, stop_j, wake_j)


def _at_least(mix: Mix) -> Mix:
    whole = rate(mix)
    return scaled(mix, LEAST_RPS / whole) if 0 < whole < LEAST_RPS else mix


def _boost(columns: Sequence[Column]) -> float:
    """How much more an instance of the cheapest kind carries at its fastest than at its cheapest clock."""
    full = [column for column in columns if column.level == 1.0]
    if not full:
        return 1.0
    best = min(full, key=lambda c: c.watts / c.rps)
    return max(c.rps for c in full if c.kind == best.kind) / best.rps


def _read(ask: Ask, parts: Sequence[Part], problem: Problem, plan: Plan) -> dict[str, ServicePlan]:
    """Each service's share of the plan, with what its clocks would cost."""
    found: dict[str, ServicePlan] = {}
    for part in parts:
        counts: dict[Kind, list[tuple[Column, int]]] = {}
        for group in plan.groups:
            if group.column.kind.service == part.name and group.count:
                counts.setdefault(group.column.kind, []).append((group.column, group.count))
        targets = tuple(_target(problem, plan, kind, groups, part.model.idle_w) for kind, groups in counts.items())
        watts = sum(column.watts * count for groups in counts.values() for column, count in groups)
        found[part.name] = ServicePlan(
            ask.now_s, targets, part.planned, part.mean_rps, part.upper_rps, watts, f"{plan.source}: {plan.status}",
            ask.ordered, alone(part.whole, part.planned[0], part.model.idle_w), part.from_pool,
        )  # fmt: skip
    return found


def _target(problem: Problem, plan: Plan, kind: Kind, groups: list[tuple[Column, int]], idle_w: float) -> Target:
    count = sum(number for _, number in groups)
    clock_mhz = max(groups, key=lambda group: group[1])[0].clock_mhz
    times = _asked_times(plan, kind.service, problem.demands)
    flows = [(flow.pool, flow.rps * times[flow.pool]) for flow in plan.flows if flow.to.kind == kind]
    return Target(kind, count, clock_mhz, clock_prices(problem.columns, kind, flows, idle_w))


def _asked_times(plan: Plan, service: str, demands: Sequence[PoolDemand]) -> dict[str, float]:
    """By pool, what is planned for over what the plan carries of it: where GPUs are short the flows are less than the
    load, and clocks that were priced for them would be too low for what comes."""
    shed = {pool: rps for name, pool, rps in plan.shed if name == service}
    mine = [demand for demand in demands if demand.service == service]
    return {d.pool: d.rps / max(1e-9, d.rps - shed.get(d.pool, 0.0)) for d in mine}
