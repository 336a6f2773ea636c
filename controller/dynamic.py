"""The first plan, in milliseconds and without a solver: a dynamic programme over GPUs, in numpy.

Owns the search through the restricted model of dynamic_options.py and finds its cheapest plan that fits; what the
restriction costs against any mix of columns is the solver's to say. Demand that has no room is shed, so that a plan
always comes out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from controller.dynamic_options import Option, Segment, in_order, segments
from controller.plan_books import covered, peak_w, priced, shortfalls, unpacked
from controller.plan_repair import topped_up, trimmed
from controller.problem import Column, Exchange, Flow, Group, Plan, Problem, usable

GRID = 4096  # states of the programme at most; above, GPUs count in pairs, fours ...
CAP_STEPS = 12
Moves = list[tuple[Segment, Option, int]]


def first_plan(problem: Problem) -> Plan:
    """Never raises for want of GPUs, and sheds nothing that has room in the restricted model. Floors, spares and the
    power cap are kept by repair: the cheapest repair is not looked for."""
    columns = usable(problem)
    plan = _within_rooms(problem, columns, 0.0)
    if peak_w(plan) > problem.power_cap_w:
        plan = _within_cap(problem, columns)
    plan = priced(problem, topped_up(problem, columns, plan))
    status = "short" if shortfalls(problem, plan) else "shed" if plan.shed else "feasible"
    return replace(plan, source="dp", status=status)


def _within_rooms(problem: Problem, columns: Sequence[Column], cap_price: float) -> Plan:
    """Node shapes may leave less room for large groups than for small ones: a plan that does not pack is sought again
    for each largest size with the room that size has, which whatever is smaller may always take."""
    plan = _cheapest(problem, columns, 1, cap_price)
    if not unpacked(problem, plan):
        return plan
    sizes = sorted({column.kind.tp for column in columns})
    plans = [_cheapest(problem, [c for c in columns if c.kind.tp <= size], size, cap_price) for size in sizes]
    return min(plans, key=lambda plan: (_shed(problem, plan), priced(problem, plan).cost_w))


def _shed(problem: Problem, plan: Plan) -> float:
    weights = {(d.service, d.pool): d.weight for d in problem.demands}
    return round(sum(rps * weights[service, pool] for service, pool, rps in plan.shed), 9)


def _within_cap(problem: Problem, columns: Sequence[Column]) -> Plan:
    """A price on peak watts, halved in on until the cap holds; if no price does it, instances go, the last first."""
    low, high = 0.0, 16.0
    best, plan = None, Plan(())
    for _ in range(CAP_STEPS):
        price = (low + high) / 2
        plan = _within_rooms(problem, columns, price)
        if peak_w(plan) <= problem.power_cap_w:
            best, high = plan, price
        else:
            low = price
    return best or trimmed(problem, plan)


def _cheapest(problem: Problem, columns: Sequence[Column], group: int, cap_price: float) -> Plan:
    """With as many GPUs of each type as fit into the nodes in groups of `group`."""
    exchange = Exchange.of(problem.columns)
    room = {gpu: problem.room(gpu, group) for gpu in problem.gpus}
    for shedding in (False, True):
        found = _shortest(
            len(problem.demands), segments(problem, columns, exchange, cap_price, shedding=shedding), room
        )
        if found is not None:
            return _plan_of(problem, exchange, found)
    raise AssertionError("to shed everything always fits")


def _shortest(stages: int, ways: Iterable[Segment], room: dict[str, int]) -> list[tuple[Segment, Option]] | None:
    """Least cost through all demands in order. State: GPUs used at most, by type. None if nothing fits."""
    unit = dict.fromkeys(room, 1)
    while math.prod(room[gpu] // unit[gpu] + 1 for gpu in room) > GRID:
        unit[max(room, key=lambda gpu: room[gpu] // unit[gpu])] *= 2
    axes = {gpu: axis for axis, gpu in enumerate(room)}
    shape = tuple(room[gpu] // unit[gpu] + 1 for gpu in room) or (1,)
    costs = [np.full(shape, 0.0 if stage == 0 else math.inf) for stage in range(stages + 1)]
    choices = [np.full(shape, -1, dtype=np.int64) for _ in costs]
    moves: list[Moves] = [[] for _ in costs]
    for segment in ways:  # in the order of their last demand, so that what they build on is done
        to = segment.last + 1
        for option in segment.options:
            used = -(-option.gpus // unit[option.gpu]) if option.gpus else 0
            axis = axes.get(option.gpu, 0)
            if used >= shape[axis]:
                continue
            source = tuple(slice(0, size - used if a == axis else size) for a, size in enumerate(shape))
            target = tuple(slice(used if a == axis else 0, size) for a, size in enumerate(shape))
            reached = costs[segment.first][source] + option.cost_w
            better = reached < costs[to][target]
            costs[to][target][better] = reached[better]
            choices[to][target][better] = len(moves[to])
            moves[to].append((segment, option, used))
    if not np.isfinite(costs[stages].flat[-1]):
        return None
    return _walk_back(choices, moves, axes)


def _walk_back(
    choices: Sequence[NDArray[np.int64]], moves: Sequence[Moves], axes: dict[str, int]
) -> list[tuple[Segment, Option]]:
    stage, at = len(choices) - 1, [size - 1 for size in choices[0].shape]
    chosen = []
    while stage:
        segment, option, used = moves[stage][choices[stage][tuple(at)]]
        chosen.append((segment, option))
        at[axes.get(option.gpu, 0)] -= used
        stage = segment.first
    return chosen[::-1]


def _plan_of(problem: Problem, exchange: Exchange, chosen: Sequence[tuple[Segment, Option]]) -> Plan:
    demands = in_order(problem)
    groups: list[Group] = []
    flows: list[Flow] = []
    for segment, option in chosen:
        groups += [Group(column, count) for column, count in option.groups]
        left = {d.pool: d.rps * option.served for d in demands[segment.first : segment.last + 1] if d.rps}
        whole = sum(left.values())
        for place, (column, count) in enumerate(option.groups, start=1):
            needs = sum(rps * exchange.rates[column.setting][pool].counts for pool, rps in left.items())
            share = 1.0 if place == len(option.groups) else min(1.0, count * column.rps / needs)
            if whole > 0:
                flows += [Flow(pool, column.setting, rps * share) for pool, rps in left.items() if rps * share > 0]
                left = {pool: rps * (1 - share) for pool, rps in left.items()}
    return covered(problem, tuple(groups), flows)
