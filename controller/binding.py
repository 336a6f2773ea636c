"""What holds a plan back, told by asking again without it: each limit is lifted in turn and the cheaper plan counted.

Owns the questions; who solves is given, so that the answers are as exact, and take as long, as the solver asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from controller.problem import NodeShape, Plan, Problem

Solver = Callable[[Problem], Plan]
WORTH = 1e-3  # share of the plan's cost below which a limit is said not to bind: what solvers leave undecided
MORE_LOAD = 1.1


@dataclass(frozen=True, slots=True)
class Lifted:
    """A limit and what the plan would be without it. `saves_w`: of the objective; `serves_rps`: more than now."""

    limit: str
    text: str
    saves_w: float
    serves_rps: float


def binding(problem: Problem, plan: Plan, solve: Solver) -> tuple[Lifted, ...]:
    """The limits that bind, the dearest first."""
    found = [
        lifted
        for limit, text, other in _lifts(problem)
        if _binds(plan, lifted := _compared(limit, text, plan, solve(other)))
    ]
    return tuple(sorted(found, key=lambda one: (-one.serves_rps, -one.saves_w)))


def more_load(problem: Problem, solve: Solver) -> Plan:
    """The plan for 10 % more of every demand, at today's prices."""
    return solve(
        replace(problem, demands=tuple(replace(demand, rps=demand.rps * MORE_LOAD) for demand in problem.demands))
    )


def _binds(plan: Plan, lifted: Lifted) -> bool:
    served = max(1.0, sum(flow.rps for flow in plan.flows))
    return lifted.serves_rps > WORTH * served or lifted.saves_w > WORTH * plan.cost_w


def _lifts(problem: Problem) -> Iterator[tuple[str, str, Problem]]:
    for gpu in problem.gpus:
        if sizes := [column.kind.tp for column in problem.columns if column.kind.gpu == gpu]:
            group = min(sizes)
            more = replace(problem, nodes=(*problem.nodes, NodeShape(gpu, group)))
            yield f"gpus:{gpu}", f"with {group} more {gpu}" if group > 1 else f"with one more {gpu}", more
    if problem.floors:
        yield "floor", "without the ready floor", replace(problem, floors=())
    if problem.spare:
        yield "spare", "without N+1", replace(problem, spare=frozenset())
    if problem.power_cap_w < math.inf:
        yield "power_cap", "without the power cap", replace(problem, power_cap_w=math.inf)
    if problem.current and problem.switches:
        yield "switching", "if changes cost nothing", replace(problem, switches=(), moves=())


def _compared(limit: str, text: str, plan: Plan, other: Plan) -> Lifted:
    served = sum(rps for *_, rps in plan.shed) - sum(rps for *_, rps in other.shed)
    return Lifted(limit, text, plan.cost_w - other.cost_w, served)
