"""One question to the simulator, as a frozen value: promises, load, GPUs, what is known of lengths, costs.

Owns what can be asked and how it becomes a case; whatif.py owns its names on the command line. A question can be
sent to another process, and its text is the key under which an answer may be kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from core.service import ServiceSpec
from profiles.engine_model import load_engine_model
from simulator.case import PAPER_ACCURACY, Case, OpenTrace, make_case
from simulator.faults import NO_FAULTS, Faults
from simulator.load import Load, TraceRows, in_context
from simulator.request_life import Door
from simulator.run import TICK_S


@dataclass(frozen=True, slots=True)
class Experiment:
    """`gpus` None: what singlepool needs. `static_instances` None: found by bisection, on `busiest` if that is told.
    `pools`: how many, where the policy is free to choose. `swept_on`: which trace chose the baselines' open settings.
    `costs`: (field of Costs, value), the others are the engine model's."""

    spec: ServiceSpec
    load: Load
    predictor: str = str(PAPER_ACCURACY)
    gpus: int | None = None
    static_instances: int | None = None
    busiest: Load | None = None
    pools: int | None = None
    swept_on: str = "code"
    faults: Faults = NO_FAULTS
    moves: str | None = None
    power_cap_w: float | None = None
    costs: tuple[tuple[str, float], ...] = ()
    door: Door = field(default_factory=Door)
    tick_s: float = TICK_S


def static_tp(experiment: Experiment) -> int:
    """GPUs of one static instance."""
    return max(load_engine_model(experiment.spec.profile or experiment.spec.name).points)


def case_of(experiment: Experiment, rows: TraceRows, seed: int) -> Case:
    """ValueError: the load has nothing to simulate, or no such engine model."""
    spec = experiment.spec
    model = load_engine_model(spec.profile or spec.name)

    def opened(load: Load) -> OpenTrace:
        arrivals = load.open(rows, seed)
        return lambda: in_context(arrivals(), spec.context_tokens)

    case = make_case(spec, model, opened(experiment.load), predictor=experiment.predictor, seed=seed)
    others: dict[str, Any] = dict(experiment.costs)
    costs = replace(case.costs, **others)
    return replace(
        case, costs=costs, door=experiment.door, tick_s=experiment.tick_s, pools=experiment.pools,
        power_cap_w=experiment.power_cap_w, swept_on=experiment.swept_on, static_instances=experiment.static_instances,
        faults=experiment.faults, moves=experiment.moves,
        open_busiest=opened(experiment.busiest) if experiment.busiest else None,
    )  # fmt: skip
