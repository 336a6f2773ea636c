"""What DynamoLLM decides, as pure functions of loads and a profile: nodes of a pool, its TP mix, an instance's clock.

Loads are requests per second of a profile's class. A class of the trace counts as many of them as its work comes to,
because a profile is made with one length per class. Owns no state and no instance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import profiles.profile_file
from core.service import CLASSES, SIZES, Slo
from profiles.profile_file import SUFFIX, load_profile
from profiles.query import NotFeasible, ProfileIndex, build_index
from simulator.baselines.load import Work, work_of
from simulator.case import Case

PROFILES = Path(profiles.profile_file.__file__).parent / "data"
LENGTHS_IN, LENGTHS_OUT = (467, 1010, 4085), (96, 256, 600)  # of the authors' profile prompts
HELD = 0.75  # of an instance's work, where no profile was measured
Mix = Mapping[int, int]  # TP -> instances


@dataclass(frozen=True, slots=True)
class Table:
    """`capacity[class, TP, clock]`: requests/s of one instance within the SLO; what holds none is left out. `weight`:
    work of one profile request of each class, in TP8 instance-seconds. `index` tells watts; without one they rise
    evenly from idle to those of a full step."""

    case: Case
    index: ProfileIndex | None
    capacity: Mapping[tuple[int, int, int], float]
    weight: tuple[float, ...]

    def watts(self, place: int, tp: int, clock_mhz: int, rps: float) -> float:
        full = self.capacity[place, tp, clock_mhz]
        if self.index is not None:
            found = self.index.at(CLASSES[place], tp, clock_mhz, min(rps, full))
            if not isinstance(found, NotFeasible):
                return found.watts
        model, shape = self.case.model, self.case.shape(tp, clock_mhz)
        idle_w = model.watts(tp, clock_mhz, 0)
        return idle_w + min(1.0, rps / full) * (
            model.watts(tp, clock_mhz, shape.slots // 2, shape.step_tokens) - idle_w
        )

    def clocks(self, place: int, tp: int) -> list[int]:
        return [clock for clock in self.case.model.clocks_mhz if (place, tp, clock) in self.capacity]


def table_of(case: Case, work: Work) -> Table:
    """From the shipped profile of the case's model; without one, from the engine model."""
    path = PROFILES / f"h100-{case.model.model}{SUFFIX}"
    lengths = [(i, o) for i in LENGTHS_IN for o in LENGTHS_OUT]
    index = build_index(load_profile(path), case.model.idle_w) if path.exists() else None
    raw = {
        (place, tp, clock): _capacity(case, index, place, tp, clock, lengths[place])
        for place in range(len(CLASSES)) for tp in case.model.points for clock in case.model.clocks_mhz
    }  # fmt: skip
    # An answer that is shorter never takes more: a profile's coarse steps say so now and then.
    size = len(SIZES)
    eased = {
        (place, tp, clock): max(raw[longer, tp, clock] for longer in range(place, place - place % size + size))
        for place, tp, clock in raw
    }  # fmt: skip
    return Table(
        case, index, {key: rps for key, rps in eased.items() if rps > 0}, tuple(work.of(*length) for length in lengths)
    )


def _capacity(
    case: Case, index: ProfileIndex | None, place: int, tp: int, clock_mhz: int, length: tuple[int, int]
) -> float:  # fmt: skip
    slo: Slo = case.spec.slo
    if index is not None:
        found = index.capacity(CLASSES[place], tp, clock_mhz, slo)
        return 0.0 if isinstance(found, NotFeasible) else found
    if (
        case.model.kv_tokens(tp) < 16 * sum(length)
        or case.model.prefill_s(tp, clock_mhz, length[0]) > HELD * (slo.ttft_s[CLASSES[place][0]])
    ):
        return 0.0
    return HELD / work_of(case, tp, clock_mhz).of(*length)


@dataclass(frozen=True, slots=True)
class Nodes:
    """Of one epoch. `passed[c]`: the share of class c's pool's requests that goes on to the next larger pool."""

    count: tuple[int, ...]
    passed: tuple[float, ...]

    def load(self, needs: Sequence[float]) -> list[float]:
        """What each pool serves of these needs, its own and those passed on to it."""
        found, carried = [], 0.0
        for need, passed in zip(needs, self.passed, strict=True):
            found.append((need + carried) * (1 - passed))
            carried = (need + carried) * passed
        return found


def nodes(needs: Sequence[float], most: int) -> Nodes:
    """`needs`: nodes that each class's peak takes, smallest class first. Whole nodes for every class but the largest,
    which alone is rounded up; what is left of the others is passed on. With too few nodes all needs shrink alike."""
    share = 1.0
    while True:
        found = _nodes([need * share for need in needs])
        if sum(found.count) <= most:
            return found
        share *= 0.98


def _nodes(needs: Sequence[float]) -> Nodes:
    largest = max((place for place, need in enumerate(needs) if need > 0), default=len(needs) - 1)
    counts, passed, carried = [], [], 0.0
    for place, need in enumerate(needs):
        here = need + carried
        if place == largest:
            counts.append(max(1, math.ceil(here - 1e-9)))
            passed.append(0.0)
            carried = 0.0
            continue
        counts.append(math.floor(here + 1e-9))
        carried = max(0.0, here - counts[-1])
        passed.append(carried / here if here > 0 else 1.0)
    return Nodes(tuple(counts), tuple(passed))


def mix_watts(table: Table, place: int, rps: float, mix: Mix) -> float | None:
    """At the highest clock, the load spread by capacity; None if the mix does not hold it."""
    clock = table.case.clock_mhz
    capacity = sum(count * table.capacity.get((place, tp, clock), 0.0) for tp, count in mix.items())
    if rps > capacity + 1e-9 or not capacity:
        return None
    used = rps / capacity
    return sum(
        count * table.watts(place, tp, clock, used * table.capacity[place, tp, clock])
        for tp, count in mix.items() if count
    )  # fmt: skip


def best_mix(table: Table, place: int, rps: float, gpus: int) -> Mix:
    """Least watts within the pool's GPUs (the paper's equation 1 with the clock fixed); if nothing holds the load, the
    TP that holds most of it. Of the smallest TP as many as the rest needs: more would only idle."""
    clock = table.case.clock_mhz
    tps = sorted((tp for tp in table.case.model.points if (place, tp, clock) in table.capacity), reverse=True)
    if not tps:
        return {table.case.tp: gpus // table.case.tp}
    most = max(tps, key=lambda tp: table.capacity[place, tp, clock] * (gpus // tp))
    best, least_w = {most: gpus // most}, math.inf
    for mix in _mixes(table, place, rps, gpus, tps, clock):
        watts = mix_watts(table, place, rps, mix)
        if watts is not None and watts < least_w - 1e-6:
            best, least_w = mix, watts
    return best


def _mixes(table: Table, place: int, rps: float, gpus: int, tps: Sequence[int], clock: int) -> list[dict[int, int]]:
    tp, capacity = tps[0], table.capacity[place, tps[0], clock]
    enough = min(gpus // tp, max(0, math.ceil(rps / capacity - 1e-9)))
    if len(tps) == 1:
        return [{tp: enough}]
    return [
        {tp: count} | rest
        for count in range(enough + 1)
        for rest in _mixes(table, place, max(0.0, rps - count * capacity), gpus - count * tp, tps[1:], clock)
    ]  # fmt: skip


def best_clock(table: Table, place: int, tp: int, rps: float) -> int:
    """The least watts of the clocks that hold the load; the highest clock if none does."""
    held = [clock for clock in table.clocks(place, tp) if table.capacity[place, tp, clock] >= rps]
    return min(held, key=lambda clock: table.watts(place, tp, clock, rps), default=table.case.clock_mhz)
