"""Which clock a kind of instance runs at now: the one that is cheapest for the load it has, among those that carry it.

Energy is U-shaped in the clock, so it is not the slowest feasible one but the one that draws least at this load. Up at
once, down one step of the grid at a time, and not for less than SAVES. Pure."""

from __future__ import annotations

from math import inf

from controller.clock_prices import ClockPrice
from controller.planning import Target
from core.instances import SeenInstance
from profiles.engine_model import EngineModel

FULL = 1.0  # of the priced capacity
SAVES = 0.02  # the noise of a power measurement (reference: 2-3 %); less is not worth a write


def wanted_mhz(target: Target, load: float, instances: int, now_mhz: int, *, boost: bool, may_fall: bool) -> int:
    """`load`: what arrives over what was planned for. Without a price the clock stays."""
    clocks = target.clocks
    if not clocks or instances < 1:
        return now_mhz
    fastest = max(clocks, key=lambda price: price.clock_mhz).clock_mhz
    if boost:
        return fastest
    fit = [price for price in clocks if price.needs * load <= FULL * instances]
    if not fit:
        return fastest
    best = min(fit, key=lambda price: (_watts(price, load, instances), price.clock_mhz))
    if best.clock_mhz >= now_mhz:
        return best.clock_mhz
    here = next((price for price in clocks if price.clock_mhz == now_mhz), None)
    if not may_fall or (here in fit and not _worth(best, here, load, instances)):
        return now_mhz
    return max(price.clock_mhz for price in fit if price.clock_mhz < now_mhz)


def finishing_mhz(model: EngineModel, instance: SeenInstance) -> int:
    """The clock at which what an instance decodes ends with the fewest joules and within its TBT limit; where none
    keeps that, the fastest."""
    joules = {mhz: _token_j(model, instance, mhz) for mhz in model.clocks_mhz}
    best = min(joules, key=lambda mhz: (joules[mhz], -mhz))
    if joules[best] == inf:
        return max(joules)
    now_j = joules.get(instance.clock_mhz, inf)
    return best if joules[best] <= (1 - SAVES) * now_j else instance.clock_mhz


def _token_j(model: EngineModel, i: SeenInstance, mhz: int) -> float:
    """Of one more token for everybody."""
    step_s = model.decode_step_s(i.tp, mhz, i.sequences, i.kv_tokens)
    return step_s * model.watts(i.tp, mhz, i.sequences) if step_s <= i.tbt_limit_s else inf


def _worth(best: ClockPrice, here: ClockPrice | None, load: float, instances: int) -> bool:
    """Judged by where the way down leads, not by its first step: near the top a step may save nothing."""
    return here is None or _watts(best, load, instances) <= (1 - SAVES) * _watts(here, load, instances)


def _watts(price: ClockPrice, load: float, instances: int) -> float:
    return price.watts_at(price.needs * load / instances)
