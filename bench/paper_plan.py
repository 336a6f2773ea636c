"""The paper's experiments as questions to the simulator. Owns what is run, and how much of it: see docs/paper.md.

The trace is the public conversation hour laid over itself SCALE times, which gives 60 thousand tokens/s on average
where the paper's Fig. 11 shows 49 to 74. Nothing here is chosen to make a figure fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench.paper_figures import ACCURACIES, DAY, HOUR, LOADS, POOLS, SIX, WEEK
from core.service import Edges
from simulator.case import shipped_service
from simulator.compare import Compared
from simulator.experiment import Experiment
from simulator.load import Load, PoissonLoad, TraceLoad, WeekLoad
from simulator.trace_synthetic import HOUR_S, read_week

SCALE = 8.0
EDGES = Edges((408, 1102, 8192), (94, 237))  # the trace's own terciles: the paper's shares of classes come out
SERVERS, TP = 12, 8
SHARES = {"low": 0.2, "medium": 0.5, "high": 0.8}
OURS = "joulegate"
Ask = Callable[[list[Experiment], tuple[str, ...]], list[Compared]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is run. Seconds."""

    hour_s: float = HOUR_S
    slice_s: float = 1200.0  # of the hour, for what is swept: from 20 minutes on
    slice_from_s: float = 1200.0
    poisson_s: float = 900.0
    probe_s: float = 300.0  # of each rate tried for SinglePool's capacity
    day_s: float = 24 * HOUR_S
    week_s: float = 168 * HOUR_S
    busiest_s: float = 2 * HOUR_S
    scale: float = SCALE
    servers: int = SERVERS
    thin: float = 0.1


QUICK = Sizes(40.0, 30.0, 10.0, 30.0, 20.0, 120.0, 240.0, 60.0, scale=1.0, servers=3, thin=0.5)


@dataclass(frozen=True, slots=True)
class Part:
    """One figure of the paper: its experiments by label, the policies, and what the paper has, by label and policy."""

    name: str
    title: str
    experiments: Mapping[str, Experiment]
    policies: tuple[str, ...]
    paper: Mapping[str, Mapping[str, float]]
    note: str = ""
    bounded: bool = False


def parts(trace: Path, week: Path, sizes: Sizes, capacity_rps: float, policies: tuple[str, ...]) -> list[Part]:
    """`policies`: those there are; a part's others are left out."""

    def there(*names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in policies)

    six, swept = there(*SIX, OURS), there("singlepool", "dynamollm", OURS)
    hour = base(TraceLoad(trace, 0.0, sizes.hour_s, sizes.scale))
    fixed = replace(hour, static_instances=sizes.servers, gpus=sizes.servers * TP)
    cut = replace(fixed, load=TraceLoad(trace, sizes.slice_from_s, sizes.slice_s, sizes.scale))
    loads = {
        name: replace(fixed, load=PoissonLoad(trace, share * capacity_rps, sizes.poisson_s))
        for name, share in SHARES.items()
    }
    peak = busiest_hour(week)
    thin = sizes.scale * sizes.thin

    def long(length_s: float, start_hour: int) -> Experiment:
        load = WeekLoad(trace, week, length_s, thin, start_hour)
        return replace(base(load), busiest=WeekLoad(trace, week, min(length_s, sizes.busiest_s), thin, peak))

    def hours(name: str, title: str, experiment: Experiment) -> Part:
        return Part(name, title, {"hour": experiment}, six, {"hour": HOUR}, bounded=True)

    slice_note = f"{sizes.slice_s / 60:g} minutes of the hour"
    accuracies = {accuracy: {"singlepool": 1.0, "dynamollm": ratio} for accuracy, ratio in ACCURACIES.items()}
    pools = {str(number): {"singlepool": 1.0, "dynamollm": ratio} for number, ratio in POOLS.items()}
    loads_note = (
        f"Poisson at 20, 50 and 80 % of the {capacity_rps:.1f} requests/s that {sizes.servers} servers hold, "
        f"{sizes.poisson_s / 60:g} minutes each"
    )
    by_accuracy = {accuracy: replace(cut, predictor=accuracy) for accuracy in accuracies}
    by_pools = {number: replace(cut, pools=int(number)) for number in pools}
    few = there("singlepool", "multipool", "dynamollm", OURS)
    day, week_long = long(sizes.day_s, peak // 24 * 24), long(sizes.week_s, 0)
    return [
        hours("hour-12", f"One hour, {sizes.servers} servers", fixed),
        hours("hour-own", "One hour, SinglePool resized", hour),
        Part("load", "Load", loads, six, LOADS, loads_note),
        Part("accuracy", "Accuracy of the predictor", by_accuracy, swept, accuracies, slice_note),
        Part("pools", "Number of pools", by_pools, few, pools, slice_note),
        Part("day", "A day", {"day": day}, six, {"day": DAY}, _thinned(sizes, "busiest day")),
        Part("week", "A week", {"week": week_long}, six, {"week": WEEK}, _thinned(sizes, "week")),
    ]


def base(load: Load) -> Experiment:
    return Experiment(replace(shipped_service("llama-2-70b"), edges=EDGES), load)


def busiest_hour(week: Path) -> int:
    rates = read_week(week)
    return rates.index(max(rates))


def capacity(trace: Path, sizes: Sizes, ask: Ask) -> float:
    """Requests/s: the most with which the servers keep every promise, found to 5 %."""

    def keeps(rate_rps: float) -> bool:
        load = PoissonLoad(trace, rate_rps, sizes.probe_s)
        one = replace(base(load), static_instances=sizes.servers, gpus=sizes.servers * TP)
        (compared,) = ask([one], ("singlepool",))
        return all(row["keeps_promise"] for row in compared.rows["singlepool"].values())

    low = high = 1.0 * sizes.servers
    while keeps(high):
        low, high = high, high * 1.5
    while low == high and not keeps(low / 1.5):
        low, high = low / 1.5, low / 1.5
    low = low / 1.5 if low == high else low
    while high > 1.05 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _thinned(sizes: Sizes, what: str) -> str:
    return (
        f"the {what} of the 2024 hourly totals, the trace's lengths and burstiness, thinned to {sizes.thin:g} of the "
        f"hour's rate; static sizes found on its busiest {sizes.busiest_s / HOUR_S:g} hours"
    )
