"""The plan as an integer programme: OR-Tools' MathOpt with HiGHS. The only file that imports ortools.

Owns the formulation. Synchronous and pure but for its time limit; runs in a worker process (solve_worker.py), or inline
where a run must repeat itself (limited by nodes and gap, never by seconds). It always answers: whatever goes wrong,
with the dynamic programme's plan. HiGHS rejects some parameters and MathOpt then fails on its own error path with an
AttributeError (9.15), so every Exception counts as no answer.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from ortools.math_opt.python import mathopt

from controller.dynamic import first_plan
from controller.plan_books import covered, load_size, priced, shortfalls, sizes, violations
from controller.plan_repair import within_room
from controller.problem import Column, Exchange, Flow, Group, Kind, Plan, Problem, Setting, usable

LARGE_GPUS = 128  # from there: LP first, then only what it leaves fractional
# Reduced cost, as a share of the column's own, up to which a column that the LP does not use stays: a few first, whose
# best is found in a fifth of a second, then as many as can be searched within the second from there.
NEARS = (0.02, 0.07)
SHORT = {"shed": 100.0, "floor": 10.0, "spare": 1.0}  # order in which promises give way, last first
SLIP = 1e-7


@dataclass(frozen=True, slots=True)
class Limits:
    """Ends the search: at `gap`, after `time_s` in all, after `nodes` of the tree. A run that must repeat itself sets
    `time_s` to None."""

    time_s: float | None = 1.0
    nodes: int | None = None
    gap: float = 0.001


def solve(problem: Problem, limits: Limits = Limits(), start: Plan | None = None) -> Plan:
    """The best plan found, with the bound that was proved. `start`: a plan to begin from; default the first plan."""
    first = start if start is not None and not violations(problem, start) else first_plan(problem)
    try:
        answer = _solved(problem, limits, first)
    except Exception as error:
        return replace(first, status=f"solver failed: {type(error).__name__}: {error}")
    if answer is None:
        return replace(first, status="no answer within the limits")
    if wrong := violations(problem, answer):
        return replace(first, status=f"solver's plan refused: {wrong[0]}")
    if _lacks(problem, first) <= _lacks(problem, answer) and first.cost_w <= answer.cost_w:
        return replace(first, bound_w=answer.bound_w, status=answer.status)
    return answer


def _lacks(problem: Problem, plan: Plan) -> tuple[float, int]:
    weights = {(d.service, d.pool): d.weight for d in problem.demands}
    shed = sum(rps * weights[service, pool] for service, pool, rps in plan.shed)
    return round(shed, 6), len(shortfalls(problem, plan))


def _solved(problem: Problem, limits: Limits, first: Plan) -> Plan | None:
    """What has no room is found first and then held to, so that its price never drowns the watts."""
    short = bool(first.shed or shortfalls(problem, first))
    programme = Programme(problem, short)
    if short:
        share = replace(limits, time_s=limits.time_s and limits.time_s / 3)
        if not programme.hold_shortage(share):
            return None
    if sum(problem.room(gpu, 1) for gpu in problem.gpus) >= LARGE_GPUS:
        return programme.by_parts(limits)
    return programme.whole(limits, None if short else first)


class Programme:
    """One model, made once, solved in steps. Variables: instances per column, requests/s per (pool, kind), and per kind
    what is started, stopped and moved."""

    def __init__(self, problem: Problem, short: bool) -> None:
        self.problem = problem
        self.model = mathopt.Model()
        self.columns = usable(problem)
        self.exchange = Exchange.of(problem.columns)
        self.n = [self.model.add_integer_variable(lb=0.0, ub=self._most(c)) for c in self.columns]
        self.by_kind: dict[Kind, list[int]] = {}
        self.by_setting: dict[Setting, list[int]] = {}
        for place, column in enumerate(self.columns):
            self.by_kind.setdefault(column.kind, []).append(place)
            self.by_setting.setdefault(column.setting, []).append(place)
        self.flow: dict[tuple[str, Setting], mathopt.Variable] = {}
        self.shed: dict[tuple[str, str], mathopt.Variable] = {}
        self.moved: list[tuple[float, mathopt.Variable]] = []  # watts of one change, how many
        self.shortage: list[tuple[float, mathopt.Variable]] = []
        self._nodes()
        self._demands(short)
        self._capacities()
        self._floors(short)
        self._ordered(short)
        self._spares(short)
        self._changes()
        self._cap()
        self.cost = self._cost()
        self.model.minimize(self.cost)

    # --- rows

    def _most(self, column: Column) -> float:
        return float(self.problem.room(column.kind.gpu, column.kind.tp) // column.kind.tp)

    def _row(
        self, terms: Mapping[mathopt.Variable, float], *, least: float = -math.inf, most: float = math.inf
    ) -> None:
        row = self.model.add_linear_constraint(lb=least, ub=most)
        for variable, factor in terms.items():
            row.set_coefficient(variable, factor)

    def _nodes(self) -> None:
        """GPUs in groups of a size and larger never exceed what fits into whole nodes in groups of that size."""
        problem = self.problem
        for gpu in problem.gpus:
            before = None
            for tp in sorted({c.kind.tp for c in self.columns if c.kind.gpu == gpu}):
                terms = {
                    n: float(c.kind.tp)
                    for n, c in zip(self.n, self.columns, strict=True)
                    if c.kind.gpu == gpu and c.kind.tp >= tp
                }
                if problem.room(gpu, tp) != before:  # the same room for fewer groups says nothing new
                    self._row(terms, most=float(problem.room(gpu, tp)))
                before = problem.room(gpu, tp)

    def _demands(self, short: bool) -> None:
        for demand in self.problem.demands:
            if demand.rps <= 0:
                continue
            terms: dict[mathopt.Variable, float] = {}
            for setting in self.by_setting:
                if setting.kind.service == demand.service and self.exchange.serves(setting, demand.pool) is not None:
                    flow = self.model.add_variable(lb=0.0, ub=demand.rps)
                    self.flow[demand.pool, setting] = flow
                    terms[flow] = 1.0
            if short:
                unserved = self.model.add_variable(lb=0.0, ub=demand.rps)
                self.shed[demand.service, demand.pool] = unserved
                self.shortage.append((SHORT["shed"] * demand.weight, unserved))
                terms[unserved] = 1.0
            self._row(terms, least=demand.rps)

    def _capacities(self) -> None:
        for setting, places in self.by_setting.items():
            terms = {self.n[place]: self.columns[place].rps for place in places}
            for pool, rate in self.exchange.rates[setting].items():
                if (pool, setting) in self.flow:
                    terms[self.flow[pool, setting]] = -rate.counts
            self._row(terms, least=0.0)

    def _floors(self, short: bool) -> None:
        for service, floor in self.problem.floors:
            terms = {n: 1.0 for n, column in zip(self.n, self.columns, strict=True) if column.kind.service == service}
            if short:
                terms[self._short("floor", float(floor))] = 1.0
            self._row(terms, least=float(floor))

    def _ordered(self, short: bool) -> None:
        for bound in self.problem.bounds:
            place = bound.service, bound.pool
            mine = [n for n, c in zip(self.n, self.columns, strict=True) if (c.kind.service, c.kind.pool) == place]
            terms = dict.fromkeys(mine, 1.0)
            if bound.most is not None:
                self._row(terms, most=float(bound.most))
            if short and bound.least:
                terms = {**terms, self._short("floor", float(bound.least)): 1.0}
            self._row(terms, least=float(bound.least))

    def _spares(self, short: bool) -> None:
        """Size of all instances less that of the largest kind in use is at least the load's."""
        for service in sorted(self.problem.spare):
            size, load = sizes(self.problem, service), load_size(self.problem, service)
            if load <= 0:
                continue
            largest = self.model.add_variable(lb=0.0)
            terms = {largest: -1.0}
            for kind, places in self.by_kind.items():
                if kind.service == service:
                    used = self.model.add_binary_variable()
                    terms |= {self.n[place]: size[kind] for place in places}
                    self._row({largest: 1.0, used: -size[kind]}, least=0.0)
                    most = self._most(self.columns[places[0]])
                    self._row({used: -most} | {self.n[place]: 1.0 for place in places}, most=0.0)
            if short:
                terms[self._short("spare", load)] = 1.0
            self._row(terms, least=load)

    def _short(self, what: str, most: float) -> mathopt.Variable:
        missing = self.model.add_variable(lb=0.0, ub=most)
        self.shortage.append((SHORT[what], missing))
        return missing

    def _changes(self) -> None:
        """Instances of a kind = those there now + started + woken - stopped + moved in - moved out."""
        problem, switches = self.problem, {(s.service, s.gpu, s.tp): s for s in self.problem.switches}
        held, asleep = dict(problem.current), dict(problem.asleep)
        balance: dict[Kind, dict[mathopt.Variable, float]] = {}
        for kind in {**self.by_kind, **held}:
            terms = {self.n[place]: 1.0 for place in self.by_kind.get(kind, ())}
            if costs := switches.get((kind.service, kind.gpu, kind.tp)):
                started, stopped = self.model.add_variable(lb=0.0), self.model.add_variable(lb=0.0)
                terms |= {started: -1.0, stopped: 1.0}
                switch_w = partial(problem.switch_w, kind.service)
                self.moved += [(switch_w(costs.start_j), started), (switch_w(costs.stop_j), stopped)]
                if sleepers := asleep.get(kind, 0):
                    woken = self.model.add_variable(lb=0.0, ub=float(sleepers))
                    terms[woken] = -1.0
                    self.moved.append((switch_w(costs.wake_j), woken))
                balance[kind] = terms
        for move in problem.moves:
            if move.before in balance and move.after in balance:
                count = self.model.add_variable(lb=0.0, ub=float(held.get(move.before, 0)))
                balance[move.before][count], balance[move.after][count] = 1.0, -1.0
                self.moved.append((problem.switch_w(move.after.service, move.joules), count))
        for kind, terms in balance.items():
            self._row(terms, least=float(held.get(kind, 0)), most=float(held.get(kind, 0)))

    def _cap(self) -> None:
        if self.problem.power_cap_w < math.inf:
            terms = {n: column.peak_w for n, column in zip(self.n, self.columns, strict=True)}
            self._row(terms, most=self.problem.power_cap_w)

    def _cost(self) -> mathopt.LinearSum:
        watts = [n * self.problem.cost_w(column) for n, column in zip(self.n, self.columns, strict=True)]
        changes = [variable * watts for watts, variable in self.moved if watts]
        merges = [
            flow * (self.problem.eta_of(setting.kind.service) * more_w)
            for (pool, setting), flow in self.flow.items()
            if (more_w := self.exchange.rates[setting][pool].more_w)
        ]
        return mathopt.LinearSum((*watts, *changes, *merges))

    # --- solving

    def hold_shortage(self, limits: Limits) -> bool:
        """Finds the least that must give way and lets no later answer give way more."""
        lacking = mathopt.LinearSum([weight * variable for weight, variable in self.shortage])
        self.model.minimize(lacking)
        found = self._run(limits)
        if found is None:
            return False
        most = found.objective_value()
        self._row({variable: weight for weight, variable in self.shortage}, most=most * (1 + SLIP) + SLIP)
        self.model.minimize(self.cost)
        return True

    def whole(self, limits: Limits, first: Plan | None) -> Plan | None:
        found = self._run(limits, self._hint(first))
        return None if found is None else self._plan(found, found.best_objective_bound())

    def by_parts(self, limits: Limits) -> Plan | None:
        """The LP's whole instances are kept but one of each column, and columns far from use are left out; what remains
        is a small integer programme, solved again with more columns from the plan it gave. The LP's cost is the bound.
        Where no answer is near enough to that, the whole programme goes on for as long as is left."""
        for n in self.n:
            n.integer = False
        lp = self._run(limits)
        if lp is None:
            return None
        spent_s, best = lp.solve_time().total_seconds(), None
        for near in (*NEARS, None):
            if limits.time_s is not None and spent_s >= limits.time_s:
                break
            self._narrow(lp, near)
            left = limits if limits.time_s is None else replace(limits, time_s=limits.time_s - spent_s)
            found = self._run(left, self._hint(best))
            if found is None:
                continue
            spent_s += found.solve_time().total_seconds()
            bound_w = max(lp.objective_value(), found.best_objective_bound() if near is None else 0.0)
            plan = self._plan(found, bound_w)
            if best is not None:
                plan = replace(min(best, plan, key=lambda one: one.cost_w), bound_w=bound_w)
            best = plan
            if best.gap <= limits.gap:
                break
        return best

    def _narrow(self, lp: mathopt.SolveResult, near: float | None) -> None:
        """To what is `near` to the LP's answer; None: to nothing."""
        values, reduced = lp.variable_values(self.n), lp.reduced_costs(self.n)
        for n, column, value, price in zip(self.n, self.columns, values, reduced, strict=True):
            n.integer, n.lower_bound, n.upper_bound = True, 0.0, self._most(column)
            if near is None:
                continue
            if value > 1:
                n.lower_bound = max(0.0, math.floor(value + SLIP) - 1.0)
            elif value < SLIP and price > near * self.problem.cost_w(column):
                n.upper_bound = 0.0

    def _run(self, limits: Limits, hint: mathopt.SolutionHint | None = None) -> mathopt.SolveResult | None:
        parameters = mathopt.SolveParameters(relative_gap_tolerance=limits.gap, node_limit=limits.nodes, random_seed=1)
        if limits.time_s is not None:
            parameters.time_limit = datetime.timedelta(seconds=limits.time_s)
        hints = mathopt.ModelSolveParameters(solution_hints=[hint] if hint is not None else [])
        found = mathopt.solve(self.model, mathopt.SolverType.HIGHS, params=parameters, model_params=hints)
        return found if found.has_primal_feasible_solution() else None

    def _hint(self, first: Plan | None) -> mathopt.SolutionHint | None:
        if first is None:
            return None
        counts = {group.column: group.count for group in first.groups}
        flows = {(flow.pool, flow.to): flow.rps for flow in first.flows}
        values = {n: float(counts.get(column, 0)) for n, column in zip(self.n, self.columns, strict=True)}
        values |= {variable: flows.get(key, 0.0) for key, variable in self.flow.items()}
        return mathopt.SolutionHint(variable_values=values)

    def _plan(self, found: mathopt.SolveResult, bound_w: float) -> Plan:
        groups = tuple(
            Group(column, count)
            for column, value in zip(self.columns, found.variable_values(self.n), strict=True)
            if (count := round(value))
        )
        flows = within_room(self.problem, groups, self._flows(found))
        plan = priced(self.problem, covered(self.problem, groups, flows))
        status = "shed" if plan.shed else "short" if shortfalls(self.problem, plan) else ""
        if not status:
            ended = found.termination.reason is mathopt.TerminationReason.OPTIMAL
            status = "optimal" if ended and plan.cost_w <= bound_w * (1 + 1e-6) else "feasible"
        return replace(plan, bound_w=max(0.0, bound_w), source="milp", status=status)

    def _flows(self, found: mathopt.SolveResult) -> list[Flow]:
        """The solver covers to its tolerance and beyond the demand: both are cut to measure. Its counts are whole to a
        millionth only, so that a little may flow to what is no instance at all; `within_room` takes that away."""
        values = {key: max(0.0, found.variable_values(variable)) for key, variable in self.flow.items()}
        flows: list[Flow] = []
        for demand in self.problem.demands:
            place = demand.service, demand.pool
            mine = {key: rps for key, rps in values.items() if (key[1].kind.service, key[0]) == place}
            unserved = self.shed.get(place)
            shed = found.variable_values(unserved) if unserved is not None else 0.0
            whole = sum(mine.values())
            scale = min(1.0, (demand.rps - max(0.0, shed)) / whole) if whole > 0 else 0.0
            flows += [Flow(pool, to, rps * scale) for (pool, to), rps in mine.items() if rps * scale > SLIP]
        return flows
