"""Which (TP, clock, number of instances) serves a load within its SLO for the least joules, and against what.

ML.ENERGY's question: the model and its answers stay as they are, only how it is run changes. Pure; rests on
profiles/query.py and refuses what that refuses. GPUs that a configuration does not use count as given back (0 W).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from profiles.profile import UNKNOWN
from profiles.query import NotFeasible, Operating, ProfileIndex, Promise

MORE = 3  # counts above the fewest that are tried too: spreading pays where a lower load leaves room for a lower clock


@dataclass(frozen=True, slots=True)
class Choice:
    """`count` instances of one configuration, each with an equal share of the load."""

    tp: int
    clock_mhz: int
    count: int
    each: Operating
    utilisation: float  # of one instance: its load over the largest within the SLO

    @property
    def watts(self) -> float:
        return self.count * self.each.watts

    @property
    def gpus(self) -> int:
        return self.count * self.tp


@dataclass(frozen=True, slots=True)
class Recommendation:
    """`best` serves the load for the least watts. `fastest` is the largest TP at its highest clock, in as many
    instances as the load needs; None, with `no_fastest` saying why, if the profile cannot price it.

    `spread` is the best configuration with one more instance: what not consolidating costs. `alternatives` are the next
    best (TP, clock), each at its best count; `rejected` says why a configuration is out.
    """

    load: str
    rps: float
    best: Choice
    fastest: Choice | None
    no_fastest: str
    spread: Choice | None
    alternatives: tuple[Choice, ...]
    rejected: Mapping[tuple[int, int], str]

    @property
    def saving(self) -> float | None:
        """Share of the energy of `fastest` that `best` does without."""
        return None if self.fastest is None else 1 - self.best.watts / self.fastest.watts


def recommend(
    index: ProfileIndex, mix_rps: Mapping[str, float], slo: Promise, max_gpus: float = math.inf
) -> Recommendation | NotFeasible:
    """For a load in requests/s by class (one class, or a mix that every instance serves in the same proportions)."""
    mix = {load: rps for load, rps in mix_rps.items() if rps > 0}
    if not mix or not all(math.isfinite(rps) for rps in mix_rps.values()):
        return NotFeasible("the load must be more than 0 rps")
    name = next(iter(mix)) if len(mix) == 1 else "+".join(f"{load}={rps:.4g}" for load, rps in mix.items())
    for load in mix:
        if load not in index.loads:
            return NotFeasible(f"{load} is not in the profile, which has {', '.join(index.loads)}")
    choices: list[Choice] = []
    rejected: dict[tuple[int, int], str] = {}
    for tp, clock in configurations(index, mix):
        found = counts(index, mix, tp, clock, slo, max_gpus)
        if isinstance(found, NotFeasible):
            rejected[tp, clock] = found.reason
        else:
            choices.append(min(found, key=order))
    if not choices:
        reasons = list(dict.fromkeys(rejected.values()))
        told = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more reasons" if len(reasons) > 3 else "")
        return NotFeasible(f"no configuration serves {name} at {sum(mix.values()):g} rps: {told or 'nothing held'}")
    choices.sort(key=order)
    best = choices[0]
    fastest = _fastest(index, mix, slo)
    spread = choice(index, mix, best.tp, best.clock_mhz, best.count + 1, slo)
    return Recommendation(
        load=name,
        rps=sum(mix.values()),
        best=best,
        fastest=None if isinstance(fastest, NotFeasible) else fastest,
        no_fastest=fastest.reason if isinstance(fastest, NotFeasible) else "",
        spread=None if isinstance(spread, NotFeasible) else spread,
        alternatives=tuple(choices[1:6]),
        rejected=rejected,
    )


def configurations(index: ProfileIndex, mix: Mapping[str, float]) -> list[tuple[int, int]]:
    """Every (TP, clock) that the profile knows for each class of the mix."""
    known = [{(tp, clock) for tp in index.tps for clock in index.clocks_mhz(load, tp)} for load in mix]
    return sorted(set.intersection(*known)) if known else []


def counts(
    index: ProfileIndex, mix: Mapping[str, float], tp: int, clock_mhz: int, slo: Promise, max_gpus: float
) -> list[Choice] | NotFeasible:
    """The fewest instances that hold the load, and a few more."""
    used = index.utilisation(mix, tp, clock_mhz, slo)
    if isinstance(used, NotFeasible):
        return used
    fewest = max(1, math.ceil(used * (1 - 1e-12)))
    if fewest * tp > max_gpus:
        return NotFeasible(f"TP{tp} at {clock_mhz} MHz needs {fewest * tp} GPUs, there are {max_gpus:g}")
    found: list[Choice] = []
    refused = NotFeasible("")
    for count in range(fewest, fewest + MORE + 1):
        if count * tp > max_gpus:
            break
        one = choice(index, mix, tp, clock_mhz, count, slo)
        if isinstance(one, NotFeasible):
            refused = refused if refused.reason else one
        else:
            found.append(one)
    return found or refused


def choice(
    index: ProfileIndex, mix: Mapping[str, float], tp: int, clock_mhz: int, count: int, slo: Promise
) -> Choice | NotFeasible:
    share = {load: rps / count for load, rps in mix.items()}
    used = index.utilisation(share, tp, clock_mhz, slo)
    each = index.mix_at(share, tp, clock_mhz, slo)
    if isinstance(used, NotFeasible):
        return used
    if isinstance(each, NotFeasible):
        return each
    if each.watts == UNKNOWN:
        return NotFeasible(f"watts of {each.load} TP{tp} at {clock_mhz} MHz are not in the profile")
    return Choice(tp, clock_mhz, count, each, used)


def order(one: Choice) -> tuple[float, int, int, int]:
    """Least watts; of equals the fewest GPUs, then the fewest instances, then the higher clock."""
    return (one.watts, one.gpus, one.count, -one.clock_mhz)


def _fastest(index: ProfileIndex, mix: Mapping[str, float], slo: Promise) -> Choice | NotFeasible:
    """The largest TP at its highest clock with the fewest instances that hold the load."""
    tp, clock_mhz = max(configurations(index, mix))
    used = index.utilisation(mix, tp, clock_mhz, slo)
    if isinstance(used, NotFeasible):
        return used
    return choice(index, mix, tp, clock_mhz, max(1, math.ceil(used * (1 - 1e-12))), slo)
