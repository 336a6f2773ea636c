"""Mends a plan that breaks a floor, a spare or the power cap, one instance at a time. Greedy: no proof of the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.plan_books import capacities, covered, peak_w, priced, shortfalls, violations
from controller.problem import Column, Exchange, Group, Plan, Problem


def trimmed(problem: Problem, plan: Plan) -> Plan:
    """Instances go, the last first, until the power cap holds; what they carried is shed."""
    groups = list(plan.groups)
    while groups and peak_w(Plan(tuple(groups))) > problem.power_cap_w:
        last = groups.pop()
        if last.count > 1:
            groups.append(replace(last, count=last.count - 1))
    room = capacities(groups)
    exchange, flows = Exchange.of(problem.columns), []
    for flow in plan.flows:
        factor = exchange.factors[flow.to][flow.pool]
        rps = min(flow.rps, room.get(flow.to, 0.0) / factor)
        if rps > 0:
            room[flow.to] -= rps * factor
            flows.append(replace(flow, rps=rps))
    return covered(problem, tuple(groups), flows)


def topped_up(problem: Problem, columns: Sequence[Column], plan: Plan) -> Plan:
    """Adds the cheapest instances that mend a floor or a spare, while GPUs and the cap allow it."""
    for service in problem.services:
        mine = [column for column in columns if column.kind.service == service]
        while mine and any(short.startswith(f"{service}: ") for short in shortfalls(problem, plan)):
            grown = [one for column in mine if not violations(problem, one := _grown(plan, column))]
            if not grown:
                break
            plan = min(grown, key=lambda one: (len(shortfalls(problem, one)), priced(problem, one).cost_w))
    return plan


def _grown(plan: Plan, column: Column) -> Plan:
    if not any(group.column == column for group in plan.groups):
        return replace(plan, groups=(*plan.groups, Group(column, 1)))
    groups = tuple(replace(g, count=g.count + 1) if g.column == column else g for g in plan.groups)
    return replace(plan, groups=groups)
