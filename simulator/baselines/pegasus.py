"""Iso-latency feedback: one clock for all, which follows the measured latency and not the load.

Source: Lo et al., Pegasus (ISCA 2014): the controller compares a windowed latency with the SLO and moves one power
limit for all servers: above 1.35 of it to the highest for 5 min, above 1 to the highest, down by 1 % below 0.85 and by
3 % below 0.6 (steps and thresholds from secondary sources, reference energy.md section 3). Adapted: the power limit is
a locked clock; the latency is the worse of TTFT and TBT at their p99, each as a share of its limit, TTFT by input size.
Left open and swept: TP and number of instances, lowest clock. Left at their defaults: window, hold of the highest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from core.service import SIZES
from simulator.baselines.clocks import Ladder
from simulator.baselines.plant import Plant, run_plant
from simulator.case import Case
from simulator.policies import Say
from simulator.run import Ran
from simulator.sketch import Sketch

CLOCK_STEP_MHZ = 15  # the grid of an H100's clocks
QUANTILE = 0.99


@dataclass(frozen=True, slots=True)
class Options:
    period_s: float = 5.0
    window_s: float = 30.0
    hold_s: float = 300.0
    ladder: Ladder = field(default_factory=Ladder)


def moved(clock_mhz: int, ratio: float | None, lowest_mhz: int, highest_mhz: int) -> int:
    """The next clock after a window whose latency was `ratio` of its limit; None = nothing was measured."""
    if ratio is None or 0.85 <= ratio <= 1:
        return clock_mhz
    if ratio > 1:
        return highest_mhz
    share = 0.97 if ratio < 0.6 else 0.99
    return max(lowest_mhz, min(clock_mhz - CLOCK_STEP_MHZ, round(clock_mhz * share / CLOCK_STEP_MHZ) * CLOCK_STEP_MHZ))


def since(before: Mapping[int, int], now: Mapping[int, int]) -> Sketch:
    """What two readings of a growing sketch differ by."""
    grown = {index: count - before.get(index, 0) for index, count in now.items() if count > before.get(index, 0)}
    return Sketch(grown, sum(grown.values()))


class Pegasus(Plant):
    def __init__(self, case: Case, gpus: int, options: Options) -> None:
        shape = options.ladder.shape(case)
        super().__init__(options.ladder.plan(case, gpus), lambda pool, tp: shape, tick_s=options.period_s)
        self.options = options
        self.highest_mhz = self.clock_mhz = case.clock_mhz
        self.limits_s = [case.spec.slo.ttft_s[size] for size in SIZES] + [case.spec.slo.tbt_s]
        self._held_until_s = 0.0
        self._read: deque[list[dict[int, int]]] = deque()

    def decide(self, now_s: float) -> None:
        ratio = self._ratio()
        if ratio is not None and ratio > 1.35:
            self._held_until_s = now_s + self.options.hold_s
        if now_s < self._held_until_s:
            self.clock_mhz = self.highest_mhz
        else:
            self.clock_mhz = moved(self.clock_mhz, ratio, self.options.ladder.lowest_mhz, self.highest_mhz)
        self.set_clocks({member.instance.id: self.clock_mhz for member in self.ready()})

    def _ratio(self) -> float | None:
        """The worst of three TTFTs and the TBT in the window, as a share of its limit."""
        here = []
        for size in range(len(SIZES)):
            whole = Sketch()
            for one in self.tally.classes[3 * size : 3 * size + 3]:
                whole.merge(one.ttft)
            here.append(whole.counts)
        here.append(self.tally.gaps.pooled().counts)
        self._read.append(here)
        if len(self._read) > max(1, round(self.options.window_s / self.options.period_s)) + 1:
            self._read.popleft()
        ratios = []
        for before, now, limit_s in zip(self._read[0], here, self.limits_s, strict=True):
            latency_s = since(before, now).quantile(QUANTILE)
            if latency_s is not None:
                ratios.append(latency_s / limit_s)
        return max(ratios, default=None)


def run(case: Case, gpus: int, say: Say, options: Options = Options()) -> Ran:
    return run_plant(case, gpus, Pegasus(case, gpus, options))
