"""The policies that are compared, each small and with its source. All share engine, costs, queue, shedding and what is
known of lengths; what differs is only what the source says.

singlepool  DynamoLLM (HPCA 2025), section VI: one pool at the highest TP and clock, static. Here: the fewest instances
            that reach 99 % in every class, by bisection.
multipool   the same paper: static pools for the nine classes, each sized for its own load. Here: each pool is sized
            alone on its class's requests with lengths known; a request may use its class's pool or any later one.
             Another number of pools is cut as simulator/pool_grid.py says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from core.service import SIZES
from simulator.case import Case, OpenTrace, facts_of
from simulator.pool_grid import NINE, Cell, cells, pool_of_cells
from simulator.run import Ran
from simulator.tally import JUDGED_FROM, PROMISED, Tally
from simulator.trace import Arrival

MOST_TIMES = 40  # instances tried, as a multiple of what the prefill alone needs
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sized:
    """The answer of a bisection. `ran` is the run with `instances`; `kept` is False if no number tried was enough."""

    instances: int
    ran: Ran
    kept: bool


def hopeless(by_class: tuple[int, ...]) -> Callable[[Tally], bool]:
    """True once a class has missed more than its 1 %, whatever comes."""
    limits = [
        math.inf if count < JUDGED_FROM else count - math.ceil(PROMISED * count - 1e-9) for count in by_class
    ]  # fmt: skip

    def is_hopeless(tally: Tally) -> bool:
        return any(one.missed > limit for one, limit in zip(tally.classes, limits, strict=True))

    return is_hopeless


def fewest(case: Case, say: Say) -> Sized:
    """The fewest static instances of one pool that keep every promise: upwards by quarters, then by halves. Of a trace
    whose busiest part is told, that part is run, and so is what `ran` holds."""
    case = case.busiest()
    known: dict[int, Ran | None] = {}

    def kept(instances: int, *, whole: bool = False) -> Ran | None:
        setup = case.setup((case.pool("all", SIZES, instances),), instances * case.tp)
        ran = case.run(setup, None if whole else hopeless(case.facts.by_class))
        good = not ran.in_flight and ran.tally.keeps_promise()
        say(f"{instances} instances: {'enough' if good else 'not enough'}")
        known[instances] = ran if good or whole else None
        return known[instances]

    least = case.least_instances()
    bad, count, most = least - 1, least, max(4, MOST_TIMES * least)
    while kept(count) is None:
        bad = count
        if count >= most:
            ran = kept(count, whole=True)
            assert ran is not None
            return Sized(count, ran, False)
        count = min(most, max(count + 1, math.ceil(count * 1.25)))
    while count - bad > 1:
        middle = (bad + count) // 2
        bad, count = (bad, middle) if kept(middle) is not None else (middle, count)
    best = known[count]
    assert best is not None
    return Sized(count, best, True)


def singlepool(case: Case, gpus: int, say: Say) -> Ran:
    """As many instances as the case's static size; the GPUs that are available follow from it, not it from them."""
    if case.static_instances is None:
        return fewest(case, say).ran
    return case.run(case.setup((case.pool("all", SIZES, case.static_instances),), case.static_instances * case.tp))


def multipool(case: Case, gpus: int, say: Say) -> Ran:
    """May take more GPUs than there are."""
    pools, used, gpus = [], [], 0
    for cell in cells(case.open_trace(), case.spec.edges, case.pools or NINE):
        own = only_of(case, cell)
        if own.facts.requests:
            say(f"sizing pool {cell.name} for {own.facts.requests} requests")
            judged = own.facts.requests >= JUDGED_FROM
            count = fewest(own, lambda text: None).instances if judged else 1
            gpus += count * case.tp
            pools.append(own.pool(cell.name, cell.sizes, count))
            used.append(cell)
    return case.run(case.setup(tuple(pools), gpus, pool_of_cells(used)))


def only_of(case: Case, cell: Cell) -> Case:
    """The case of one cell's requests alone, their lengths known."""
    edges = case.spec.edges

    def only(trace: OpenTrace) -> Iterator[Arrival]:
        return (one for one in trace() if cell.holds(one.input_tokens, edges.output_size(one.output_tokens)))

    facts = facts_of(only(case.open_trace), edges)
    own = replace(facts, duration_s=case.facts.duration_s)
    busiest = case.open_busiest
    return replace(
        case, open_trace=lambda: only(case.open_trace), facts=own, predictor="oracle",
        open_busiest=None if busiest is None else lambda: only(busiest),
    )  # fmt: skip
