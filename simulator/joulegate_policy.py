"""joulegate itself as a policy: the controller that serves, with the operator's pools or three of its own.

The plan of the first window is made from that window's load, as history would have it; from then on the controller only
knows what it sees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from controller.demand import Demand, observed
from controller.knowledge import Knowledge, ServiceKnowledge, Settings
from controller.loop import Answers
from controller.planning import Ask, Asked, ServicePlan, make_plan
from core.instances import Shape
from core.service import CLASSES, SIZES, InstanceLimits, PoolSpec
from pools.load_counts import LoadCounts
from simulator.case import MOST_SLOTS, Case
from simulator.policies import Say
from simulator.request_life import MOVES_ON
from simulator.run import Ran, Setup

TICK_S = 1.0
FIRST_S = 300.0
LOOK_S = 10.0
POOLS = ("short", "medium", "long")


def joulegate(case: Case, gpus: int, say: Say) -> Ran:
    return case.run(joulegate_setup(case, gpus, Settings(power_cap_w=case.power_cap_w or math.inf)))


def joulegate_setup(
    case: Case, gpus: int, settings: Settings, planner: Callable[[Ask], Answers] | None = None
) -> Setup:  # fmt: skip
    """`planner`: makes the plans instead of the controller's own, for experiments."""
    planner = planner or make_plan
    pools = case.spec.pools or tuple(_pool(case, name, (size,)) for name, size in zip(POOLS, SIZES, strict=True))
    setup = case.setup(pools, gpus)
    service = ServiceKnowledge(setup.spec, case.model, case.costs.step_tokens)
    knowledge = Knowledge({setup.spec.name: service}, settings, gpus)
    plan = _first(case, knowledge, service, planner)
    shapes, first = plan.shapes(knowledge, setup.spec.name), dict[str, list[Shape]]()
    for (pool, tp), count in plan.counts().items():
        first.setdefault(pool, []).extend([shapes[pool, tp]] * count)
    return replace(
        setup,
        knowledge=knowledge,
        first_plan=plan,
        first=first,
        plan=planner,
        tick_s=TICK_S,
        weighs=True,
        moves=case.moves or MOVES_ON,
    )


def _pool(case: Case, name: str, serves: tuple[str, ...]) -> PoolSpec:
    tp = case.tp
    limits = InstanceLimits(MOST_SLOTS, case.model.kv_tokens(tp), case.costs.step_tokens.get(tp, 0))
    return PoolSpec(name, serves, 0, tp, case.clock_mhz, limits)


def _first(
    case: Case, knowledge: Knowledge, service: ServiceKnowledge, planner: Callable[[Ask], Answers]
) -> ServicePlan:  # fmt: skip
    """From the first five seen_ss, ten seconds by ten seconds."""
    counts, demand, seen_s = LoadCounts(), Demand(), 0.0
    edges = service.spec.edges
    demand = observed(demand, service.spec, 0.0, counts.seen())
    for arrival in case.open_trace():
        while arrival.at_s >= seen_s + LOOK_S:
            seen_s += LOOK_S
            demand = observed(demand, service.spec, seen_s, counts.seen())
        if seen_s >= FIRST_S:
            break
        place = CLASSES.index(edges.input_size(arrival.input_tokens) + edges.output_size(arrival.output_tokens))
        counts.asked(place, arrival.input_tokens)
        counts.completed(place, arrival.output_tokens, True)
    demand = observed(demand, service.spec, seen_s + LOOK_S, counts.seen()) if seen_s < FIRST_S else demand
    name = service.spec.name
    return planner(Ask(knowledge, {name: Asked(service, demand)}, {}, 0.0, min(seen_s, FIRST_S)))[name]
