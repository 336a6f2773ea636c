"""What simulator stories share: a small service on one kind of instance, and loads made by seed."""

import random
from collections.abc import Iterator

from core.service import Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from profiles.engine_model import EngineModel, load_engine_model
from simulator.cluster import Costs, costs_of
from simulator.lengths import Lengths, Oracle
from simulator.run import Setup
from simulator.trace import Arrival

SIZES = {"short": ("S",), "medium": ("M",), "long": ("L",)}


def model() -> EngineModel:
    return load_engine_model("llama-2-70b")


def service(counts: dict[str, int] | None = None, slots: int = 64) -> ServiceSpec:
    """Pools by name; the last one serves whatever the others do not."""
    counts = {"all": 2} if counts is None else counts
    limits = InstanceLimits(slots, model().kv_tokens(8))
    pools = tuple(
        PoolSpec(name, SIZES.get(name, ("S", "M", "L")), count, 8, 1980, limits) for name, count in counts.items()
    )
    return ServiceSpec("llama-2-70b", "m", 16_384, Slo(), Edges(), pools, LauncherSpec("emulated"), "llama-2-70b")


def poisson(seed: int, rps: float, seconds: float, longest_prompt: int = 3000) -> Iterator[Arrival]:
    rng = random.Random(seed)
    at_s = 0.0
    while at_s < seconds:
        yield Arrival(
            at_s, min(longest_prompt, int(rng.lognormvariate(6, 1)) + 1), int(rng.lognormvariate(4.9, 0.8)) + 1
        )
        at_s += rng.expovariate(rps)


def setup(spec: ServiceSpec | None = None, **changes: object) -> Setup:
    spec = spec or service()

    def lengths() -> Lengths:
        return Oracle(spec.edges)

    fields = {"gpus": 64, "costs": costs_of(model(), 0.1), "lengths": lengths, "seed": 1} | changes
    return Setup(spec, model(), **fields)  # type: ignore[arg-type]


def costs(**changes: object) -> Costs:
    from dataclasses import replace

    return replace(costs_of(model(), 0.1), **changes)  # type: ignore[arg-type]
