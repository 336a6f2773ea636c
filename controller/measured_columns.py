"""Columns from a measured profile, for services whose engine nobody has modelled. Owns no measurement and no formula:
what a mix needs and draws is the profile's to say, and where it does not know there is no column."""

from __future__ import annotations

from collections.abc import Sequence

from controller.loads import Mix, rate
from controller.pricing import LEVELS
from controller.problem import Column, Kind, Taken
from core.service import Slo
from profiles.query import NotFeasible, Operating, ProfileIndex


def columns_of_profile(
    service: str, pools: Sequence[tuple[str, Mix]], index: ProfileIndex, slo: Slo, slots: int,
    *, levels: Sequence[float] = LEVELS, slack: float = 1.0,
) -> tuple[Column, ...]:  # fmt: skip
    """As pricing.columns_of. `slots`: sequences that the servers of the profile hold at most. `slack` divides the
    limits: live latency over profiled. Peak watts are those at capacity."""
    found: list[Column] = []
    cells = sorted({(tp, clock_mhz) for _, tp, clock_mhz in index.cells})
    for tp, clock_mhz in cells:
        able: list[tuple[str, Mix, float]] = []
        for pool, mix in pools:
            shares = {load.size_class: load.rps for load in mix if load.rps > 0}
            capacity = index.mix_capacity(shares, tp, clock_mhz, slo, slack)
            if isinstance(capacity, NotFeasible):
                continue
            able.append((pool, mix, capacity))
            full = _at(index, mix, tp, clock_mhz, slo, capacity)
            for level in levels:
                held = _at(index, mix, tp, clock_mhz, slo, capacity * level)
                if full is None or held is None:
                    continue
                others = ((p, rps * level, _at(index, m, tp, clock_mhz, slo, rps * level)) for p, m, rps in able[:-1])
                takes = tuple(Taken(p, rps, other.watts) for p, rps, other in others if other is not None)
                kind = Kind(service, pool, index.profile.gpu, tp)
                rps = capacity * level
                column = Column(kind, clock_mhz, level, slots, rps, held.watts, full.watts, held.running, takes)
                found.append(column)
    return tuple(found)


def _at(index: ProfileIndex, mix: Mix, tp: int, clock_mhz: int, slo: Slo, rps: float) -> Operating | None:
    """One instance at `rps` of this mix; None where the profile does not tell its watts."""
    times = rps / rate(mix)
    answer = index.mix_at({load.size_class: load.rps * times for load in mix if load.rps > 0}, tp, clock_mhz, slo)
    return None if isinstance(answer, NotFeasible) or "watts" in answer.missing else answer
