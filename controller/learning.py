"""What clocks really draw, learnt while serving: for cells that nobody measured. Off unless `controller.learn`. Pure.

Zeus' idea (You et al., NSDI 2023) on clocks: begin at the fastest, try others by Thompson sampling while there is
slack, prune what cannot win, keep what was learnt over a restart. A price is the engine model's; what is learnt is how
many times the priced watts a clock draws, so that a minute at one load teaches for others. A clock at which a minute
broke its promise is out for good, and so are all slower ones, for slower is never sooner. The next slower one is only
tried when the one above it is known."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

KNOWN = 3  # minutes at a clock from which its mean counts
PRIOR = 0.3  # deviation of measured over priced watts where nothing is known: the model's misses (docs/validation.md)
NOISE = 0.05  # of a minute's mean: no arm is surer than that over the root of its minutes
SPENT = 0.5  # share of the hour's error budget beyond which slack is thin


@dataclass(frozen=True, slots=True)
class Arm:
    """Minutes at one clock: how many, and mean and summed squared deviation of measured over priced watts."""

    clock_mhz: int
    minutes: int = 0
    mean: float = 1.0
    squares: float = 0.0

    def with_minute(self, times: float) -> Arm:
        minutes = self.minutes + 1
        mean = self.mean + (times - self.mean) / minutes if self.minutes else times
        return replace(self, minutes=minutes, mean=mean, squares=self.squares + (times - self.mean) * (times - mean))

    def deviation(self) -> float:
        """Of the mean."""
        seen = math.sqrt(self.squares / (self.minutes - 1)) if self.minutes > 1 else NOISE
        return max(NOISE, seen) / math.sqrt(max(1, self.minutes))


@dataclass(frozen=True, slots=True)
class Learning:
    """One service's. `clock_mhz`: of the minute that runs, 0 = none yet; `measured_j`, `priced_j`: since it began.
    `pruned_mhz`: this clock and slower ones are out."""

    arms: tuple[Arm, ...] = ()
    pruned_mhz: int = 0
    clock_mhz: int = 0
    measured_j: float = 0.0
    priced_j: float = 0.0

    def arm(self, clock_mhz: int) -> Arm:
        return next((arm for arm in self.arms if arm.clock_mhz == clock_mhz), Arm(clock_mhz))


def metered(learning: Learning, measured_w: float, priced_w: float) -> Learning:
    """One tick of the minute that runs, all instances at its clock."""
    return replace(
        learning, measured_j=learning.measured_j + measured_w, priced_j=learning.priced_j + priced_w
    )  # fmt: skip


def learnt(learning: Learning, kept: bool) -> Learning:
    """The minute is over: `kept`, or it broke its promise. One in which clocks were moving says nothing of watts."""
    fresh = replace(learning, clock_mhz=0, measured_j=0.0, priced_j=0.0)
    if not learning.clock_mhz:
        return fresh
    if not kept:
        return replace(fresh, pruned_mhz=max(learning.pruned_mhz, learning.clock_mhz))
    if learning.priced_j <= 0:
        return fresh
    arm = learning.arm(learning.clock_mhz).with_minute(learning.measured_j / learning.priced_j)
    others = tuple(one for one in learning.arms if one.clock_mhz != arm.clock_mhz)
    return replace(fresh, arms=(*others, arm))


def allowed(learning: Learning, clocks_mhz: Sequence[int]) -> list[int]:
    """Fastest first: those that are known, and the next slower one. The fastest is always allowed."""
    found: list[int] = []
    for clock_mhz in sorted(clocks_mhz, reverse=True):
        if found and clock_mhz <= learning.pruned_mhz:
            break
        found.append(clock_mhz)
        if learning.arm(clock_mhz).minutes < KNOWN:
            break
    return found


def chosen(learning: Learning, priced_w: Mapping[int, float], slack: bool, luck: random.Random) -> Learning:
    """The clock of the next minute. `priced_w`: watts of the service by clock, of those that carry the load by the
    model. With thin slack nothing is tried: the cheapest that is known, or the fastest."""
    clocks = allowed(learning, tuple(priced_w))
    known = [clock for clock in clocks if learning.arm(clock).minutes >= KNOWN]
    if not slack:
        best = min(known, key=lambda clock: learning.arm(clock).mean * priced_w[clock], default=clocks[0])
        return replace(learning, clock_mhz=best)
    drawn = {clock: priced_w[clock] * luck.gauss(*_belief(learning, clock, clocks)) for clock in clocks}
    return replace(learning, clock_mhz=min(clocks, key=lambda clock: drawn[clock]))


def _belief(learning: Learning, clock_mhz: int, clocks: Sequence[int]) -> tuple[float, float]:
    """Mean and deviation of measured over priced watts. One that is not known is taken to be off as the one above."""
    arm = learning.arm(clock_mhz)
    if arm.minutes >= KNOWN:
        return arm.mean, arm.deviation()
    above = [learning.arm(clock) for clock in clocks if clock > clock_mhz]
    mean = above[-1].mean if above else 1.0
    return (mean + arm.mean * arm.minutes) / (1 + arm.minutes), PRIOR / (1 + arm.minutes)
