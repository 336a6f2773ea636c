"""What a service is asked to carry: counts become windows, windows forecasts, forecasts a mix per pool. Pure.

Owns the step from what was seen to `controller.loads`. What is not seen yet, how long the answers under way will be, is
taken from the answers of the same predicted class that have ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.loads import Load as ClassLoad
from controller.loads import Mix
from core.instances import ClassCount
from core.service import CLASSES, ServiceSpec
from predictor.load import Load, Rates

# Mean square of the prompts of a size over the square of their mean. Assumed: the Azure 2023 traces have 1.13 to 1.34
# for S, 1.13 to 1.21 for M, 1.39 to 1.40 for L.
SPREAD = {"S": 1.2, "M": 1.1, "L": 1.5}
TELLING = 20  # ended answers from which their mean counts; before, the middle of the class
NONE = (ClassCount(),) * len(CLASSES)


@dataclass(frozen=True, slots=True)
class Demand:
    """One service's load so far. `answers`: mean output tokens by class."""

    load: Load = field(default_factory=Load)
    counts: tuple[ClassCount, ...] | None = None
    answers: tuple[float, ...] = ()


def observed(demand: Demand, spec: ServiceSpec, wall_s: float, counts: tuple[ClassCount, ...]) -> Demand:
    """Counters that fell belong to a new process: what they say now is all there was."""
    before = demand.counts or NONE
    fell = any(now.asked < then.asked for now, then in zip(counts, before, strict=True))
    if fell:
        before = NONE
    answers = tuple(_answer(spec, place, count, demand.answers) for place, count in enumerate(counts))
    rows = [
        (now.asked - then.asked, now.input_tokens - then.input_tokens, (now.asked - then.asked) * tokens)
        for now, then, tokens in zip(counts, before, answers, strict=True)
    ]
    return Demand(demand.load.observed(wall_s, rows), counts, answers)


def _answer(spec: ServiceSpec, place: int, count: ClassCount, before: tuple[float, ...]) -> float:
    """What is known from before, where too few have ended since this process began."""
    if count.done >= TELLING:
        return count.output_tokens / count.done
    if before:
        return before[place]
    short, medium = spec.edges.output
    return {"S": short / 2, "M": (short + medium) / 2, "L": medium * 1.6}[CLASSES[place][1]]


def pool_mixes(demand: Demand, spec: ServiceSpec, rates: tuple[Rates, ...]) -> dict[str, Mix]:
    """By pool in their order; a class goes to the first pool that serves its output size."""
    found: dict[str, list[ClassLoad]] = {pool.name: [] for pool in spec.pools}
    for place, (name, rate) in enumerate(zip(CLASSES, rates, strict=True)):
        if rate.requests_rps <= 0:
            continue
        prompt = max(1.0, rate.input_tokens_per_s / rate.requests_rps)
        size = name[0]
        edge = spec.edges.input["SML".index(size)]
        load = ClassLoad(
            name, rate.requests_rps, prompt, demand.answers[place], spec.slo.ttft_s[size],
            input_sq=SPREAD[size] * prompt * prompt, longest_tokens=min(edge, 3 * prompt),
        )  # fmt: skip
        found[spec.pools[spec.pool_for(name[1])].name].append(load)
    return {pool: tuple(loads) for pool, loads in found.items()}
