"""How far an adaptive profile is off where nobody measured: dense points that the sweep did not take, taken for long,
against what the profile answers. Only under simulated time is that affordable."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from pools.measure import Lengths, Probe, Rule, Target
from pools.measure_profile import DENSE_STEP_RPS, cliffs
from pools.measure_stats import measured_of, nearest_rank
from pools.measure_sweep import Sweep
from profiles.profile import Point, Profile
from profiles.query import NotFeasible, ProfileIndex, build_index

QUANTITIES = ("watts", "ttft_p50_s", "tbt_p50_s", "ttft_p99_s", "tbt_p99_s")
LONG = {"window_s": 120.0, "window_max_s": 600.0, "requests": 400}
STEEP = 0.85  # of the cliff


@dataclass(frozen=True, slots=True)
class Held:
    """One held-out point: the profile's relative error by quantity, or why there is none."""

    key: str
    utilisation: float
    errors: dict[str, float]
    saturated: bool
    refused: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Over all held-out points. `median`, `p90` and `largest` are relative errors by quantity; `steep_*` those of the
    points above STEEP of their cliff, which the others leave out."""

    points: int
    refused: int
    saturated_answered: int
    median: dict[str, float]
    p90: dict[str, float]
    largest: dict[str, float]
    steep_points: int
    steep_p90: dict[str, float]
    steep_largest: dict[str, float]
    worst: dict[str, str]


async def verify(
    sweep: Sweep, profile: Profile, target: Target, rule: Rule, most: int, told: Callable[[int, int], None]
) -> Verdict:
    chosen = held_out(sweep, most)
    index = build_index(profile)
    long = replace(rule, **LONG)  # type: ignore[arg-type]
    found: list[Held] = []
    for number, (probe, utilisation) in enumerate(chosen):
        await target.configure(probe.tp, probe.clock_mhz)
        window = await target.run(probe, long)
        found.append(compared(index, measured_of(window, "emulated").point, probe, utilisation))
        told(number + 1, len(chosen))
    return verdict(found)


def held_out(sweep: Sweep, most: int) -> list[tuple[Probe, float]]:
    """(probe, share of the cliff): dense points of all cells that nobody measured, at most so many, drawn by seed."""
    space = sweep.space
    every: list[tuple[Probe, float]] = []
    for tp in space.tps:
        for lengths in space.classes:
            for clock_mhz, cliff in cliffs(sweep, tp, lengths).items():
                every += _dense(sweep, tp, lengths, clock_mhz, cliff)
    draw = random.Random(space.seed)
    return draw.sample(every, most) if len(every) > most else every


def _dense(sweep: Sweep, tp: int, lengths: Lengths, clock_mhz: int, cliff: float) -> list[tuple[Probe, float]]:
    cell = sweep.cells.get((tp, lengths.name, clock_mhz))
    taken = [one.probe.rps for one in cell.probes] if cell else []
    loads = [DENSE_STEP_RPS * step for step in range(1, int(cliff / DENSE_STEP_RPS) + 1)]
    return [
        (Probe(tp, clock_mhz, lengths, rps, 0, sweep.space.seed + 1), rps / cliff)
        for rps in loads
        if all(abs(rps - other) > 0.02 * rps for other in taken)
    ]


def compared(index: ProfileIndex, truth: Point, probe: Probe, utilisation: float) -> Held:
    answer = index.at(probe.lengths.name, probe.tp, probe.clock_mhz, probe.rps)
    if isinstance(answer, NotFeasible):
        return Held(probe.key, utilisation, {}, truth.saturated, answer.reason)
    errors = {q: abs(getattr(answer, q) / max(1e-9, getattr(truth, q)) - 1) for q in QUANTITIES}
    return Held(probe.key, utilisation, errors, truth.saturated, "")


def verdict(found: list[Held]) -> Verdict:
    answered = [one for one in found if one.errors and not one.saturated]
    flat = [one for one in answered if one.utilisation <= STEEP]
    steep = [one for one in answered if one.utilisation > STEEP]

    def rank(held: list[Held], q: float) -> dict[str, float]:
        return {n: round(nearest_rank([(one.errors[n], 1) for one in held], q), 4) for n in QUANTITIES}

    return Verdict(
        points=len(flat),
        refused=sum(1 for one in found if one.refused),
        saturated_answered=sum(1 for one in found if one.errors and one.saturated),
        median=rank(flat, 0.5),
        p90=rank(flat, 0.9),
        largest=rank(flat, 1.0),
        steep_points=len(steep),
        steep_p90=rank(steep, 0.9),
        steep_largest=rank(steep, 1.0),
        worst={n: max(flat, key=lambda one: one.errors[n]).key for n in QUANTITIES} if flat else {},
    )
