"""The least energy that a clairvoyant could spend on a case: the fluid and the integer bound of docs/bounds.md.

Owns the answer's shape. Every joule here is modelled; a report puts its policies' joules beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.service import STEP_TOKENS
from simulator.bound_fluid import Master, Used
from simulator.bound_frame import units_of
from simulator.bound_integer import Integer, switching_of
from simulator.bound_load import WINDOW_S, Load, load_of
from simulator.bound_points import Points, points_of
from simulator.case import Case

BOUNDED, IMPOSSIBLE = "bounded", "impossible"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Joules below which no policy serves the case as promised; None when `status` is "impossible": the GPUs are too
    few for any. `gap`: between the integer bound and the best plan of whole instances found, as a share of that plan.
    `points` were to choose from, `used` is the fluid optimum's choice, most joules first."""

    status: str
    fluid_j: float | None
    integer_j: float | None
    gap: float | None
    windows: int
    window_s: float
    points: int
    used: tuple[Used, ...]


def bounds(case: Case, gpus: int | None = None) -> Bounds:
    """For any TPs, clocks, pools and routing on at most `gpus` GPUs (None: any number)."""
    load = load_of(case.open_trace(), case.spec)
    choice = [_points(case, tp, load) for tp in sorted(case.model.points)]
    units, many = units_of(load), sum(len(one.watts) for one in choice)
    fluid = Master(load, choice, gpus, units, [0.0] * len(choice)).solve()
    whole = None
    if fluid.possible:
        whole = Integer(load, choice, gpus, units, switching_of(case.model, case.costs.start_s)).bound()
    if whole is None:
        return Bounds(IMPOSSIBLE, None, None, None, load.windows, WINDOW_S, many, ())
    used = tuple(sorted(fluid.used, key=lambda one: -one.joules))
    integer_j = max(fluid.joules, whole.joules)  # whole instances and their costs only add to the fluid programme
    return Bounds(BOUNDED, fluid.joules, integer_j, whole.gap, load.windows, WINDOW_S, many, used)


def _points(case: Case, tp: int, load: Load) -> Points:
    """A step takes what the case's costs say, or more where the operator's pools do."""
    asked = [pool.limits.step_tokens for pool in case.spec.pools if pool.tp == tp]
    most = max([case.costs.step_tokens.get(tp, STEP_TOKENS), *asked])
    return points_of(case.model, tp, most, case.spec.slo.tbt_s, load.contexts, max(load.running))
