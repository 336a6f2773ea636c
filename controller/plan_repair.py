"""Mends a plan that breaks what is ordered, a floor, a spare or the power cap, one instance at a time. Greedy: no proof
of the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from controller.plan_books import capacities, covered, peak_w, pool_count, shortfalls, unpacked
from controller.problem import Column, Exchange, Flow, Group, Kind, Plan, Problem


def trimmed(problem: Problem, plan: Plan) -> Plan:
    """Instances go, the last first, until the power cap holds; what they carried is shed."""
    groups = list(plan.groups)
    while groups and peak_w(Plan(tuple(groups))) > problem.power_cap_w:
        last = groups.pop()
        if last.count > 1:
            groups.append(replace(last, count=last.count - 1))
    return covered(problem, tuple(groups), within_room(problem, groups, plan.flows))


def within_room(problem: Problem, groups: Sequence[Group], flows: Iterable[Flow]) -> list[Flow]:
    """These flows, cut to what whole instances carry: nothing flows to what has none."""
    room = capacities(groups)
    exchange, kept = Exchange.of(problem.columns), list[Flow]()
    for flow in flows:
        counts = exchange.rates[flow.to][flow.pool].counts
        rps = min(flow.rps, room.get(flow.to, 0.0) / counts)
        if rps > 0:
            room[flow.to] -= rps * counts
            kept.append(replace(flow, rps=rps))
    return kept


def topped_up(problem: Problem, columns: Sequence[Column], plan: Plan) -> Plan:
    """Adds instances that mend what is ordered, a floor or a spare, while GPUs and the cap allow it: each time the kind
    that mends most, the cheapest first, at its cheapest column."""
    plan = _as_ordered(problem, columns, plan)
    for service in problem.services:
        cheapest: dict[Kind, Column] = {}
        for column in columns:
            known = cheapest.get(column.kind)
            if column.kind.service == service and (known is None or problem.cost_w(column) < problem.cost_w(known)):
                cheapest[column.kind] = column
        while any(short.startswith(f"{service}: ") for short in shortfalls(problem, plan)):
            grown = [one for column in cheapest.values() if _fits(problem, one := _grown(plan, column))]
            if not grown:
                break
            plan = min(grown, key=lambda one: (len(shortfalls(problem, one)), _running_w(problem, one)))
    return plan


def _as_ordered(problem: Problem, columns: Sequence[Column], plan: Plan) -> Plan:
    for bound in problem.bounds:
        mine = [c for c in columns if (c.kind.service, c.kind.pool) == (bound.service, bound.pool)]
        mine.sort(key=problem.cost_w)
        for _ in range(bound.least - pool_count(plan, bound.service, bound.pool)):
            plan = next((one for c in mine if _fits(problem, one := _grown(plan, c))), plan)
    return plan


def _running_w(problem: Problem, plan: Plan) -> float:
    return sum(group.count * problem.cost_w(group.column) for group in plan.groups)


def _fits(problem: Problem, plan: Plan) -> bool:
    over = any(b.most is not None and pool_count(plan, b.service, b.pool) > b.most for b in problem.bounds)
    return not over and not unpacked(problem, plan) and peak_w(plan) <= problem.power_cap_w


def _grown(plan: Plan, column: Column) -> Plan:
    if not any(group.column == column for group in plan.groups):
        return replace(plan, groups=(*plan.groups, Group(column, 1)))
    groups = tuple(replace(g, count=g.count + 1) if g.column == column else g for g in plan.groups)
    return replace(plan, groups=groups)
