"""What instances of a kind need and draw at each clock, read off the columns of a plan. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.problem import Column, Kind


@dataclass(frozen=True, slots=True)
class ClockPrice:
    """One kind at one clock: instances that the planned demand needs there, and watts of one by used share of it."""

    clock_mhz: int
    needs: float
    shares: tuple[float, ...]
    watts: tuple[float, ...]
    idle_w: float

    def watts_at(self, share: float) -> float:
        """Linear between levels; an idle instance draws `idle_w`."""
        low_share, low_w = 0.0, self.idle_w
        for high_share, high_w in zip(self.shares, self.watts, strict=True):
            if share <= high_share:
                return low_w + (share - low_share) / (high_share - low_share) * (high_w - low_w)
            low_share, low_w = high_share, high_w
        return low_w


@dataclass(frozen=True, slots=True)
class Alone:
    """If instances of one TP carried all that a service is planned for, whatever their pools: how many at each clock,
    from slow to fast. It prices those that serve beside a plan, and says what is left when one goes."""

    tp: int
    clocks: tuple[ClockPrice, ...]

    @property
    def part(self) -> float:
        """Of the planned load, carried by one at its fastest."""
        return 1 / min(price.needs for price in self.clocks)


def clock_prices(
    columns: Iterable[Column], kind: Kind, flows: Sequence[tuple[str, float]], idle_w: float
) -> tuple[ClockPrice, ...]:
    """Of the clocks at which `kind` carries these flows, (pool, requests/s). `idle_w`: of one GPU."""
    by_clock: dict[int, list[Column]] = {}
    for column in columns:
        if column.kind == kind:
            by_clock.setdefault(column.clock_mhz, []).append(column)
    found = []
    for mhz, levels in sorted(by_clock.items()):
        levels.sort(key=lambda column: column.level)
        needs = _needs(levels[-1], flows)
        if needs < math.inf:
            shares, watts = tuple(c.level for c in levels), tuple(c.watts for c in levels)
            found.append(ClockPrice(mhz, needs, shares, watts, idle_w * kind.tp))
    return tuple(found)


def alone(columns: Sequence[Column], rps: float, idle_w: float) -> tuple[Alone, ...]:
    """`columns`: all of one pool, whose mix is the whole service's. A TP that cannot carry it in time is left out."""
    kinds = dict.fromkeys(column.kind for column in columns)
    found = (Alone(kind.tp, clock_prices(columns, kind, [(kind.pool, rps)], idle_w)) for kind in kinds)
    return tuple(one for one in found if one.clocks)


def parts(prices: Iterable[Alone]) -> Mapping[int, float]:
    """By TP, what one instance carries of the planned load at its fastest."""
    return {one.tp: one.part for one in prices}


def _needs(full: Column, flows: Sequence[tuple[str, float]]) -> float:
    """Instances at their full capacity that carry these flows; infinity where one of them can not be carried there."""
    able = {taken.pool: taken.rps for taken in full.takes} | {full.kind.pool: full.rps}
    return sum(rps / able[pool] if able.get(pool) else math.inf for pool, rps in flows)
