"""The static plan that would have been best: one pool, one TP, one clock, one count, found with hindsight on the trace
itself. No source; it is what an operator could reach at best who tries every static setting. It needs no forecast and
switches nothing.

The search goes from the highest clock down. A lower clock never needs fewer instances, so each count is looked for from
the last one up, and a clock whose count does not fit the GPUs ends its TP.
The energy of a TP falls and rises again with the clock: the search ends where it rises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.baselines.load import first_work, work_of
from simulator.baselines.plant import Plant, run_plant
from simulator.case import Case
from simulator.policies import Say, hopeless
from simulator.run import Ran

RISES = 1.01
BATCH = 16


@dataclass(frozen=True, slots=True)
class Options:
    """`tps`: which are tried; none: all."""

    tps: tuple[int, ...] = ()


def fits(case: Case, tp: int) -> bool:
    """Whether an instance's KV room holds a batch of the trace's sequences: without one it reads its weights for too
    few tokens to be cheap, and would only take up the search's time."""
    return case.model.kv_tokens(tp) >= BATCH * case.facts.mean_context


def run(case: Case, gpus: int, say: Say, options: Options = Options()) -> Ran:
    best: Ran | None = None
    for tp in options.tps or tuple(tp for tp in sorted(case.model.points, reverse=True) if fits(case, tp)):
        least, of_tp = max(1, int(first_work(case, work_of(case, tp, case.clock_mhz), 60.0) / 2)), math.inf
        for clock_mhz in sorted(case.model.clocks_mhz, reverse=True):
            found = _fewest(case, gpus, tp, clock_mhz, least)
            if found is None or found[1].joules > RISES * of_tp:
                break
            least, ran = found
            of_tp = min(of_tp, ran.joules)
            say(f"TP{tp} at {clock_mhz} MHz: {least} instances, {ran.joules / 3.6e6:.2f} kWh")
            if best is None or ran.joules < best.joules:
                best = ran
    return best or run_plant(case, gpus, _static(case, case.tp, case.clock_mhz, max(1, gpus // case.tp)))


def _static(case: Case, tp: int, clock_mhz: int, count: int) -> Plant:
    shape = case.shape(tp, clock_mhz)
    return Plant({("all", tp): count}, lambda pool, tp: shape, tick_s=60.0)


def _fewest(case: Case, gpus: int, tp: int, clock_mhz: int, least: int) -> tuple[int, Ran] | None:
    """Upwards by quarters, then by halves."""

    def kept(count: int) -> Ran | None:
        plant = _static(case, tp, clock_mhz, count)
        ran = run_plant(case, gpus, plant, given_up=hopeless(case.facts.by_class))
        return ran if not ran.in_flight and ran.tally.keeps_promise() else None

    bad, count, most = least - 1, least, gpus // tp
    while (good := kept(count)) is None:
        if count >= most:
            return None
        bad, count = count, min(most, max(count + 1, count * 5 // 4))
    while count - bad > 1:
        middle = (bad + count) // 2
        here = kept(middle)
        bad, count, good = (middle, count, good) if here is None else (bad, middle, here)
    return count, good
