"""What a plan costs and whether it holds: the books that every solver's answer is read against.

Owns the definition of a plan's cost and of a broken plan; looks for no better one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from controller.problem import Column, Exchange, Flow, Group, Kind, Plan, Problem, Setting

SLIP = 1e-5  # relative: solvers keep their rows to about 1e-7


def switch_joules(problem: Problem, counts: Mapping[Kind, int]) -> dict[str, float]:
    """By service, joules from what runs now to `counts`: moves first, the ones that save most before the others, then
    what sleeps is woken, then starts and stops. Where several moves compete the solver may find a cheaper pairing."""
    costs = {(one.service, one.gpu, one.tp): one for one in problem.switches}
    current = dict(problem.current)
    more: dict[Kind, int] = {}
    less: dict[Kind, int] = {}
    for kind in {*counts, *current}:
        change = counts.get(kind, 0) - current.get(kind, 0)
        (more if change > 0 else less)[kind] = abs(change)

    def start_j(kind: Kind) -> float:
        known = costs.get((kind.service, kind.gpu, kind.tp))
        return known.start_j if known else 0.0

    def stop_j(kind: Kind) -> float:
        known = costs.get((kind.service, kind.gpu, kind.tp))
        return known.stop_j if known else 0.0

    joules: dict[str, float] = dict.fromkeys(problem.services, 0.0)

    def spend(kind: Kind, spent_j: float) -> None:
        joules[kind.service] = joules.get(kind.service, 0.0) + spent_j

    saving = [(stop_j(m.before) + start_j(m.after) - m.joules, m) for m in problem.moves]
    for saved_j, move in sorted(saving, key=lambda item: (-item[0], item[1].before, item[1].after)):
        moved = min(less.get(move.before, 0), more.get(move.after, 0))
        if saved_j > 0 and moved:
            less[move.before] -= moved
            more[move.after] -= moved
            spend(move.after, moved * move.joules)
    for kind, asleep in problem.asleep:
        woken = min(asleep, more.get(kind, 0))
        if woken and (known := costs.get((kind.service, kind.gpu, kind.tp))):
            more[kind] -= woken
            spend(kind, woken * known.wake_j)
    for kind, count in more.items():
        spend(kind, count * start_j(kind))
    for kind, count in less.items():
        spend(kind, count * stop_j(kind))
    return joules


def priced(problem: Problem, plan: Plan) -> Plan:
    """The plan with its watts, its switching joules and its cost filled in."""
    running_w = sum(group.count * problem.cost_w(group.column) for group in plan.groups)
    switch_j = switch_joules(problem, plan.counts())
    exchange, services = Exchange.of(problem.columns), {flow.to.kind.service for flow in plan.flows}
    more_w = {name: exchange.more_w(f for f in plan.flows if f.to.kind.service == name) for name in sorted(services)}
    expected_w = sum(group.count * group.column.watts for group in plan.groups) + sum(more_w.values())
    cost_w = running_w + sum(problem.eta_of(name) * watts for name, watts in more_w.items())
    cost_w += sum(problem.switch_w(name, joules) for name, joules in switch_j.items())
    return replace(plan, cost_w=cost_w, expected_w=expected_w, switch_j=sum(switch_j.values()))


def violations(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """What no plan may do, in words: empty for one that can be carried out. Shedding, a floor or a spare that the GPUs
    do not allow are no violation; `shortfalls` tells of the latter two."""
    return tuple(_wrong(problem, plan))


def _wrong(problem: Problem, plan: Plan) -> Iterator[str]:
    known = set(problem.columns)
    for group in plan.groups:
        if group.count < 1 or group.column not in known:
            yield f"{group.count} instances of an unknown column {group.column}"
    yield from unpacked(problem, plan)
    if (most_w := peak_w(plan)) > problem.power_cap_w * (1 + SLIP):
        yield f"{most_w:.0f} W at most, the cap is {problem.power_cap_w:.0f} W"
    for bound in problem.bounds:
        count = pool_count(plan, bound.service, bound.pool)
        if bound.most is not None and count > bound.most:
            yield f"{bound.service}/{bound.pool} has {count} instances, {bound.most} at most are ordered"
    yield from _unserved(problem, plan)


def pool_count(plan: Plan, service: str, pool: str) -> int:
    return sum(g.count for g in plan.groups if (g.column.kind.service, g.column.kind.pool) == (service, pool))


def unpacked(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Where the groups do not fit into whole nodes. Sizes divide each other, so counts alone tell: placed largest
    first, what is taken of a node is always a multiple of the next size."""
    wrong, counts = [], plan.counts()
    for gpu in sorted({kind.gpu for kind in counts}):
        for tp in sorted({kind.tp for kind in counts if kind.gpu == gpu}):
            used = sum(kind.tp * n for kind, n in counts.items() if kind.gpu == gpu and kind.tp >= tp)
            if used > problem.room(gpu, tp):
                wrong.append(f"{used} {gpu} in groups of {tp} and more, {problem.room(gpu, tp)} fit into the nodes")
    return tuple(wrong)


def peak_w(plan: Plan) -> float:
    return sum(group.count * group.column.peak_w for group in plan.groups)


def capacities(groups: Iterable[Group]) -> dict[Setting, float]:
    """Requests/s of its own pool's mix that each setting carries."""
    room: dict[Setting, float] = {}
    for group in groups:
        setting = group.column.setting
        room[setting] = room.get(setting, 0.0) + group.count * group.column.rps
    return room


def covered(problem: Problem, groups: tuple[Group, ...], flows: Sequence[Flow]) -> Plan:
    """The plan of these groups and flows; what no flow serves is shed."""
    served: dict[tuple[str, str], float] = {}
    for flow in flows:
        place = flow.to.kind.service, flow.pool
        served[place] = served.get(place, 0.0) + flow.rps
    left = [(d.service, d.pool, d.rps - served.get((d.service, d.pool), 0.0), d.rps) for d in problem.demands]
    shed = tuple((service, pool, rps) for service, pool, rps, whole in left if rps > SLIP * whole)
    return Plan(_merged(groups), tuple(flows), shed)


def _merged(groups: Iterable[Group]) -> tuple[Group, ...]:
    counts: dict[Column, int] = {}
    for group in groups:
        counts[group.column] = counts.get(group.column, 0) + group.count
    return tuple(Group(column, count) for column, count in counts.items() if count)


def _unserved(problem: Problem, plan: Plan) -> Iterator[str]:
    exchange = Exchange.of(problem.columns)
    room = capacities(plan.groups)
    served = {(service, pool): rps for service, pool, rps in plan.shed}
    held = dict(room)
    for flow in plan.flows:
        rate = exchange.serves(flow.to, flow.pool) if flow.to in room else None
        if rate is None:
            yield f"{flow.to} can not serve {flow.pool}"
            continue
        room[flow.to] -= flow.rps * rate.counts
        place = flow.to.kind.service, flow.pool
        served[place] = served.get(place, 0.0) + flow.rps
    for setting, left in room.items():
        if left < -SLIP * max(1.0, held[setting]):
            yield f"{setting} carries {-left:.4g} requests/s more than it can"
    for demand in problem.demands:
        rps = served.get((demand.service, demand.pool), 0.0)
        if rps < demand.rps - SLIP * max(1.0, demand.rps):
            yield f"{demand.service}/{demand.pool}: {rps:.4g} of {demand.rps:.4g} requests/s are planned"


def shortfalls(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Floors, what operators ordered and spares that the plan does not reach."""
    missing: list[str] = []
    for service, least in problem.floors:
        count = sum(g.count for g in plan.groups if g.column.kind.service == service)
        if count < least:
            missing.append(f"{service}: {count} instances, the floor is {least}")
    for bound in problem.bounds:
        count = pool_count(plan, bound.service, bound.pool)
        if count < bound.least:
            missing.append(f"{bound.service}/{bound.pool}: {count} instances, {bound.least} are ordered")
    for service in sorted(problem.spare):
        if (spare := spare_share(problem, plan, service)) < -SLIP:
            missing.append(f"{service}: without its largest instance {-spare:.1%} of its load has no room")
    return tuple(missing)


def sizes(problem: Problem, service: str) -> dict[Kind, float]:
    """What one instance of each kind can carry, in the service's own unit: seconds of the pool's most able instance,
    so that pools can be added up. Clock and load are free to rise, so the kind's best column counts."""
    best: dict[Kind, float] = {}
    for column in problem.columns:
        if column.kind.service == service:
            best[column.kind] = max(best.get(column.kind, 0.0), column.rps)
    most = _most_able(best)
    return {kind: rps / most[kind.pool] for kind, rps in best.items()}


def load_size(problem: Problem, service: str) -> float:
    """The service's demand in the unit of `sizes`."""
    most: dict[str, float] = {}
    for column in problem.columns:
        if column.kind.service == service:
            most[column.kind.pool] = max(most.get(column.kind.pool, 0.0), column.rps)
    return sum(d.rps / most[d.pool] for d in problem.pools_of(service) if d.pool in most)


def spare_share(problem: Problem, plan: Plan, service: str) -> float:
    """Capacity without the largest instance, less the load, as a share of the load."""
    size, load = sizes(problem, service), load_size(problem, service)
    held = [(count, size[kind]) for kind, count in plan.counts().items() if kind.service == service]
    if load <= 0:
        return 0.0
    return (sum(count * each for count, each in held) - max((each for _, each in held), default=0.0)) / load - 1


def _most_able(best: Mapping[Kind, float]) -> dict[str, float]:
    most: dict[str, float] = {}
    for kind, rps in best.items():
        most[kind.pool] = max(most.get(kind.pool, 0.0), rps)
    return most
