"""What the same traffic would have used otherwise: the requests of a run log, simulated under a baseline and as they
were served, and the simulator's distance from the meter carried over from the one to the other.

Saved = sum over causes of ratio x baseline - meter, with ratio = metered / simulated as served, for prefill, decode,
idle and switching joules apart: what a model has wrong about idling says nothing of decode. Owns the interval: how much
the ratio of the whole differs from block to block of the time, how much seeds differ, and a model's error that is half
of what the meter differs from the simulator, as much as the causes differ from each other, and UNSEEN at tensor
parallelisms that did not serve, for nobody knows that the baseline would have differed alike. It is all modelled."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from controller.knowledge import Knowledge, ServiceKnowledge, Settings
from core.request import Prediction
from core.service import SIZES, ServiceSpec
from profiles.engine_model import load_engine_model
from simulator.case import Case, make_case
from simulator.lengths import Lengths
from simulator.policies import fewest
from simulator.run import Ran, Setup, simulate
from simulator.trace import Arrival
from simulator.trace_formats import rows_of

COVERED = 1.96  # standard deviations either way of an interval of 95 %
MOST_BLOCKS = 24
LEAST_BLOCK_S = 30.0
BASELINES = ("singlepool", "configured")
CAUSES = ("prefill", "decode", "idle", "switching")
TELLING = 0.02  # of all joules: a cause with less says too little of its ratio
RATIOS = (0.5, 2.0)
# Of joules at a TP that did not serve, so that no meter has corrected them: the engine models' error against published
# watts and times that they were not fitted on is 3 to 8 % in the median (docs/validation.md).
UNSEEN = 0.05


@dataclass(frozen=True, slots=True)
class Logged(Arrival):
    """A request of a run log, with what the gateway foretold of its answer."""

    prediction: Prediction | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one service. `begins_s`, `ends_s`: Unix seconds of the first arrival and the last end; `start_s`:
    median seconds from an instance's start to READY, None where none was seen."""

    arrivals: tuple[Logged, ...]
    begins_s: float
    ends_s: float
    start_s: float | None


@dataclass(frozen=True, slots=True)
class Interval:
    """Joules."""

    low: float
    mid: float
    high: float

    def plus(self, other: Interval) -> Interval:
        """Of two services: their errors are taken to be independent."""
        below = math.hypot(self.mid - self.low, other.mid - other.low)
        above = math.hypot(self.high - self.mid, other.high - other.mid)
        mid = self.mid + other.mid
        return Interval(mid - below, mid, mid + above)

    def kwh(self) -> dict[str, float]:
        return {"low": self.low / 3.6e6, "mid": self.mid / 3.6e6, "high": self.high / 3.6e6}


@dataclass(frozen=True, slots=True)
class Saved:
    """`ratio`: meter / simulated as served, `ratios` by cause. `instances`: of SinglePool, where that is the baseline.
    `proposed`: what the controller would have saved, where it only watched."""

    saved: Interval
    meter_j: float
    simulated_j: float
    baseline_j: float
    ratio: float
    ratios: Mapping[str, float]
    instances: int | None
    proposed: Interval | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """How the traffic was served: the plan that was in force, and whether it was the controller's."""

    gpus: int
    planned: bool
    settings: Settings
    tick_s: float


class Recorded:
    """Foretells what the gateway foretold."""

    def __init__(self, otherwise: Lengths) -> None:
        self._otherwise = otherwise

    def predict(self, arrival: Arrival, room_tokens: int) -> Prediction:
        if isinstance(arrival, Logged) and arrival.prediction is not None:
            return arrival.prediction
        return self._otherwise.predict(arrival, room_tokens)

    def learn(self, arrival: Arrival) -> None:
        self._otherwise.learn(arrival)


def read_traffic(paths: Sequence[Path], service: str, since_s: float, until_s: float) -> Traffic | None:
    """Completed requests that arrived in [since, until); None if there is none. TraceError names file and line."""
    found: list[Logged] = []
    ends_s = 0.0
    began: dict[str, float] = {}
    starts: list[float] = []
    for row in (row for path in paths for _, row in rows_of(path)):
        if row.get("service") != service:
            continue
        kind = row.get("kind")
        if kind == "instance_starting":
            began[row["instance"]] = row["t"]
        elif kind == "instance_state" and row.get("to") == "ready" and row.get("from") == "starting":
            if row["instance"] in began:
                starts.append(row["t"] - began.pop(row["instance"]))
        elif kind == "request" and row.get("outcome") == "completed" and row.get("output_tokens"):
            at_s = row["t"] - row["e2e_s"]
            if since_s <= at_s < until_s and row["input_tokens"] >= 1:
                ends_s = max(ends_s, row["t"])
                found.append(Logged(at_s, row["input_tokens"], row["output_tokens"], _prediction(row.get("predicted"))))
    if not found:
        return None
    found.sort(key=lambda one: one.at_s)
    first_s = found[0].at_s
    arrivals = tuple(replace(one, at_s=one.at_s - first_s) for one in found)
    return Traffic(arrivals, first_s, ends_s, statistics.median(starts) if starts else None)


def _prediction(told: Mapping[str, object] | None) -> Prediction | None:
    if not told:
        return None
    p, q50, q90 = told.get("p"), told.get("q50"), told.get("q90")
    q99 = told.get("q99", q90)
    if not isinstance(p, list) or not (isinstance(q50, int) and isinstance(q90, int) and isinstance(q99, int)):
        return None
    return Prediction((float(p[0]), float(p[1]), float(p[2])), q50, q90, q99)


def savings(
    spec: ServiceSpec, traffic: Traffic, served: Served, baseline: str, metered_j: Sequence[float], bin_s: float,
    lines_j: Mapping[str, float], seeds: Sequence[int], say: Callable[[str], None] = lambda text: None,
) -> Saved:  # fmt: skip
    """`metered_j`: the counters' joules of each `bin_s` from the first arrival on; `lines_j`: the same by cause.
    ValueError: no such baseline, or nothing was counted."""
    if baseline not in BASELINES:
        raise ValueError(f"the baseline is {' or '.join(BASELINES)}, not {baseline}")
    meter_j = sum(metered_j)
    if meter_j <= 0:
        raise ValueError("no joule was counted in that time")
    cases = [_case(spec, traffic, seed) for seed in seeds]
    instances = fewest(cases[0], say).instances if baseline == "singlepool" else None
    as_served, otherwise, proposed = [], [], []
    for case in cases:
        as_served.append(_run(case, _held(case, served)))
        static = _single(case, instances) if instances is not None else _held(case, replace(served, planned=False))
        otherwise.append(_run(case, static))
        if not served.planned:
            proposed.append(_run(case, _held(case, replace(served, planned=True))))
    ratios = [_ratios(meter_j, lines_j, ran) for ran in as_served]
    spread = _block_spread(metered_j, bin_s, as_served[0])
    tps = _served_tps(as_served[0])
    seen = partial(_saved, meter_j, ratios, spread, [meter_j / ran.joules for ran in as_served], tps)
    mean_j = statistics.fmean(ran.joules for ran in otherwise)
    simulated_j = statistics.fmean(ran.joules for ran in as_served)
    shadow = seen(proposed) if proposed else None
    if shadow is not None:  # here the meter is what could have been less
        shadow = Interval(-shadow.high, -shadow.mid, -shadow.low)
    return Saved(
        seen(otherwise), meter_j, simulated_j, mean_j, meter_j / simulated_j, ratios[0], instances, shadow
    )  # fmt: skip


def _ratios(meter_j: float, lines_j: Mapping[str, float], ran: Ran) -> dict[str, float]:
    """Metered / simulated, by cause."""
    low, high = RATIOS
    found = {}
    for cause, simulated_j in ran.by_cause().items():
        telling = min(simulated_j, lines_j[cause]) >= TELLING * ran.joules
        found[cause] = min(high, max(low, lines_j[cause] / simulated_j if telling else meter_j / ran.joules))
    return found


def _saved(
    meter_j: float, ratios: Sequence[Mapping[str, float]], spread: float, wholes: Sequence[float], tps: set[int],
    others: Sequence[Ran],
) -> Interval:  # fmt: skip
    """`wholes`: meter / simulated of each seed; `tps`: those that served."""
    each, differ = [], []
    for by_cause, whole, other in zip(ratios, wholes, others, strict=True):
        spent = other.by_cause()
        each.append(sum(by_cause[cause] * spent[cause] for cause in CAUSES) - meter_j)
        apart = sum(spent[cause] * (by_cause[cause] - whole) ** 2 for cause in CAUSES) / other.joules
        unseen = UNSEEN * sum(one.total_j for one in other.energy if one.tp not in tps) / other.joules
        differ.append(other.joules * math.hypot(math.sqrt(apart), (whole - 1) / 2, unseen))
    mid, by_model = statistics.fmean(each), statistics.fmean(differ)
    by_seed = statistics.stdev(each) if len(each) > 1 else 0.0
    mean_j = statistics.fmean(other.joules for other in others)
    half = math.hypot(COVERED * math.hypot(spread * mean_j, by_seed), by_model)
    return Interval(mid - half, mid, mid + half)


def _served_tps(ran: Ran) -> set[int]:
    """Tensor parallelisms with a tenth of the joules or more."""
    return {tp for tp in {one.tp for one in ran.energy}
            if sum(one.total_j for one in ran.energy if one.tp == tp) >= 0.1 * ran.joules}  # fmt: skip


def _block_spread(metered_j: Sequence[float], bin_s: float, ran: Ran) -> float:
    """Standard error of the ratio of two sums, from blocks of the time (Cochran, Sampling Techniques, 6.4)."""
    whole_s = min(len(metered_j) * bin_s, len(ran.meter.per_bin_j) * ran.meter.bin_s)
    blocks = int(min(MOST_BLOCKS, whole_s // LEAST_BLOCK_S))
    if blocks < 2:
        return 0.5
    length_s = whole_s / blocks
    pairs = [
        (_between(metered_j, bin_s, n * length_s, (n + 1) * length_s),
         _between(ran.meter.per_bin_j, ran.meter.bin_s, n * length_s, (n + 1) * length_s))
        for n in range(blocks)
    ]  # fmt: skip
    counted, simulated = (sum(pair[place] for pair in pairs) for place in (0, 1))
    ratio = counted / simulated
    squares = sum((one - ratio * other) ** 2 for one, other in pairs)
    return math.sqrt(blocks / (blocks - 1) * squares) / simulated


def _between(bins: Sequence[float], bin_s: float, from_s: float, to_s: float) -> float:
    total = 0.0
    for place in range(int(from_s // bin_s), min(len(bins), math.ceil(to_s / bin_s))):
        begin_s = place * bin_s
        total += bins[place] * max(0.0, min(to_s, begin_s + bin_s) - max(from_s, begin_s)) / bin_s
    return total


def _case(spec: ServiceSpec, traffic: Traffic, seed: int) -> Case:
    def opened() -> Iterator[Arrival]:
        yield from traffic.arrivals

    case = make_case(spec, load_engine_model(spec.profile), opened, predictor="live", seed=seed)
    return case if traffic.start_s is None else replace(case, costs=replace(case.costs, start_s=traffic.start_s))


def _single(case: Case, instances: int) -> Setup:
    return _knowing(case, case.setup((case.pool("all", SIZES, instances),), instances * case.tp))


def _held(case: Case, served: Served) -> Setup:
    """The configured pools, READY as configured; planned from then on, if they were."""
    used = sum(pool.instances * pool.tp for pool in case.spec.pools)
    setup = _knowing(case, case.setup(case.spec.pools, max(served.gpus, used) if served.gpus else 1 << 20))
    setup = replace(setup, tick_s=served.tick_s)
    if not served.planned:
        return setup
    service = ServiceKnowledge(setup.spec, case.model, case.costs.step_tokens)
    return replace(setup, knowledge=Knowledge({setup.spec.name: service}, served.settings, served.gpus), weighs=True)


def _knowing(case: Case, setup: Setup) -> Setup:
    return replace(setup, lengths=lambda: Recorded(case.lengths()))


def _run(case: Case, setup: Setup) -> Ran:
    return simulate(setup, case.open_trace())
