"""Plans made otherwise than the controller makes them: with foresight, with fewer knobs, with GPUs that stay.

Owns what is held fixed; prices, search and everything after the plan are the controller's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from controller.loop import Answers
from controller.planning import Ask, Asked, ServicePlan, Target, make_plan
from core.service import CLASSES
from predictor.load import Forecast, Rates
from predictor.load_windows import MINUTE_S, QUANTITIES
from profiles.engine_model import EngineModel, TpPoint
from simulator.case import Case

Planner = Callable[[Ask], Answers]


@dataclass(frozen=True, slots=True)
class Nothing:
    """No surge is remembered: the forecast tells the peaks."""

    def excess(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Stands where a plan asks for a forecast and tells what comes: mean and busiest minute of the horizon."""

    minutes: Any  # (minutes, classes, quantities), per second
    now_s: float
    windows: Nothing = Nothing()

    def forecast(self, wall_s: float, horizon_s: float, coverage: float) -> Forecast:
        first = min(len(self.minutes) - 1, int(self.now_s / MINUTE_S))
        ahead = self.minutes[first : first + max(1, round(horizon_s / MINUTE_S))]
        mean, busiest = ahead.mean(axis=0), ahead[ahead[:, :, 0].sum(axis=1).argmax()]
        upper = np.maximum(mean, busiest)
        return Forecast(
            wall_s, horizon_s, coverage, 0.0, _rates(mean), _rates(upper), Rates(*mean.sum(axis=0).tolist()),
            Rates(*upper.sum(axis=0).tolist()),
        )  # fmt: skip


def foreseen(case: Case) -> Planner:
    """Plans that know the requests of the next five minutes by their true classes."""
    edges = case.spec.edges
    counts = np.zeros((int(case.facts.duration_s / MINUTE_S) + 1, len(CLASSES), QUANTITIES))
    for one in case.open_trace():
        place = CLASSES.index(edges.input_size(one.input_tokens) + edges.output_size(one.output_tokens))
        counts[int(one.at_s / MINUTE_S), place] += (1, one.input_tokens, one.output_tokens)
    minutes = counts / MINUTE_S

    def planner(ask: Ask) -> Answers:
        return make_plan(_each(ask, lambda one: _knowing(one, Foreseen(minutes, ask.now_s))))

    return planner


def _knowing(one: Asked, load: Any) -> Asked:
    return replace(one, demand=replace(one.demand, load=load))


def restricted(case: Case, tps: Sequence[int], clocks: bool) -> Planner:
    """Plans that know these TPs only, and the highest clock only."""
    model = fewer(case.model, tps, clocks)

    def planner(ask: Ask) -> Answers:
        known = _each(ask, lambda one: replace(one, knowledge=replace(one.knowledge, model=model)))
        current = {key: count for key, count in ask.current.items() if key[2] in model.points}
        return make_plan(replace(known, current=current))

    return planner


def held(case: Case, tps: Sequence[int], clocks: bool, counts: bool) -> Planner:
    """As `restricted`; without `counts` the GPUs are those of singlepool, always."""
    planner, gpus = restricted(case, tps, clocks), (case.static_instances or 1) * max(case.model.points)

    def fixed(ask: Ask) -> Answers:
        plans = planner(ask)
        return plans if counts else {name: _filled(plan, gpus) for name, plan in plans.items()}

    return fixed


def _filled(plan: ServicePlan, gpus: int) -> ServicePlan:
    """All GPUs for the TP that has most of the plan's."""
    most: Target = max(plan.targets, key=lambda target: target.count * target.kind.tp)
    return replace(plan, targets=(replace(most, count=gpus // most.kind.tp),))


def fewer(model: EngineModel, tps: Sequence[int], clocks: bool) -> EngineModel:
    points = {tp: point for tp, point in model.points.items() if tp in tps}
    return regridded(replace(model, points=points), model.clocks_mhz if clocks else (max(model.clocks_mhz),))


def regridded(model: EngineModel, clocks_mhz: Sequence[int]) -> EngineModel:
    """The same GPU with other clocks to choose from; between those that were measured straight lines."""
    grid = tuple(clocks_mhz)

    def on(row: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(np.interp(grid, model.clocks_mhz, row).tolist())

    points = {
        tp: replace(point, tbt=on(point.tbt), ttft=on(point.ttft), watts=on(point.watts))
        for tp, point in model.points.items()
    }
    return replace(model, clocks_mhz=grid, points=points)


def slowed(model: EngineModel, times: float) -> EngineModel:
    """The same GPU with every step, of prefill and of decode, `times` as long."""

    def point(of: TpPoint) -> TpPoint:
        return replace(
            of,
            decode_knots_s=tuple(times * knot_s for knot_s in of.decode_knots_s),
            decode_per_context_token_s=times * of.decode_per_context_token_s,
            prefill_base_s=times * of.prefill_base_s,
            prefill_per_token_s=times * of.prefill_per_token_s,
        )

    return replace(model, points={tp: point(of) for tp, of in model.points.items()})


def _each(ask: Ask, change: Callable[[Asked], Asked]) -> Ask:
    return replace(ask, asked={name: change(one) for name, one in ask.asked.items()})


def _rates(rows: Any) -> tuple[Rates, ...]:
    return tuple(Rates(*row) for row in rows.tolist())
