"""The policies that are compared, each small and with its source. All share engine, costs, queue, shedding and what is
known of lengths; what differs is only what the source says.

singlepool  DynamoLLM (HPCA 2025), section VI: one pool at the highest TP and clock, static. Here: the fewest instances
            that reach 99 % in every class, by bisection.
multipool   the same paper: static pools for the nine classes, each sized for its own load. Here: each pool is sized
            alone on its class's requests with lengths known; a request may use its class's pool or any later one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from core.service import CLASSES, SIZES, ServiceSpec
from simulator.case import Case
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
    """The fewest static instances of one pool that keep every promise: upwards by quarters, then by halves."""
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
    pools, gpus = [], 0
    for index, name in enumerate(CLASSES):
        requests = case.facts.by_class[index]
        if requests:
            say(f"sizing pool {name} for {requests} requests")
            count = fewest(_one_class(case, index), lambda text: None).instances if requests >= JUDGED_FROM else 1
            gpus += count * case.tp
            pools.append(case.pool(name, (name[1],), count))
    names = [pool.name for pool in pools]
    rest = len(pools) - 1

    def pool_of(spec: ServiceSpec, arrival: Arrival, output_size: str) -> int:
        wanted = spec.edges.input_size(arrival.input_tokens) + output_size
        later = CLASSES.index(wanted)
        return next((n for n, name in enumerate(names) if CLASSES.index(name) >= later), rest)

    return case.run(case.setup(tuple(pools), gpus, pool_of))


def _one_class(case: Case, index: int) -> Case:
    """The case of one class's requests alone, their lengths known."""
    edges, facts, name = case.spec.edges, case.facts, CLASSES[index]

    def only() -> Iterator[Arrival]:
        for arrival in case.open_trace():
            if edges.input_size(arrival.input_tokens) + edges.output_size(arrival.output_tokens) == name:
                yield arrival

    share = facts.by_class[index] / facts.requests
    by_class = tuple(count if place == index else 0 for place, count in enumerate(facts.by_class))
    input_tokens = sum(arrival.input_tokens for arrival in only())
    own = replace(
        facts, requests=facts.by_class[index], by_class=by_class, input_tokens=input_tokens,
        output_tokens=round(share * facts.output_tokens),
    )  # fmt: skip
    return replace(case, open_trace=only, facts=own, predictor="oracle")
