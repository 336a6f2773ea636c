"""What is switched off, one at a time: causes of the distance from the bound, parts and levels of the controller.

Owns the list. A variant changes the question, the controller's settings, named constants of its code (in the process
that runs it alone), or how plans are made; everything else is the run as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.ablate_plans import Planner, foreseen, held, restricted
from bench.paper_plan import base
from predictor.load_headroom import COVERAGES
from simulator.case import Case, shipped_service
from simulator.experiment import Experiment
from simulator.load import PoissonLoad, TraceLoad
from simulator.whatif import apply_all

MODEL = "llama-2-70b"
CAPACITY_RPS = 84.5  # what 12 servers hold as SinglePool (docs/paper.md): for the Poisson loads
AZURE = Path("azure_llm_2023")
CONVERSATION, CODE = AZURE / "AzureLLMInferenceTrace_conv.csv", AZURE / "AzureLLMInferenceTrace_code.csv"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A trace with its promises and its GPUs."""

    trace: Path
    experiment: Experiment


@dataclass(frozen=True, slots=True)
class Variant:
    """`asks`: key=value of `joulegate simulate --set`. `settings`: fields of the controller's Settings. `constants`:
    "module:name" by value. `plan` makes the planner from the case."""

    name: str
    group: str
    note: str = ""
    asks: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    plan: Callable[[Case], Planner] | None = None
    clocks_mhz: tuple[int, ...] = ()  # of the GPUs, interpolated
    one_pool: bool = False
    weighs: bool = True


def loads(data: Path) -> dict[str, Loaded]:
    """By name: a trace, how often it is laid over itself, which minutes, how many GPUs."""
    conversation, code = data / CONVERSATION, data / CODE

    def conv(start_s: float, length_s: float, scale: float, static: int) -> Loaded:
        load = TraceLoad(conversation, start_s, length_s, scale)
        return Loaded(conversation, replace(base(load), static_instances=static, gpus=8 * static))

    def coded(start_s: float, length_s: float, scale: float, static: int) -> Loaded:
        load = TraceLoad(code, start_s, length_s, scale)
        experiment = Experiment(shipped_service(MODEL), load, static_instances=static, gpus=8 * static)
        return Loaded(code, replace(experiment, swept_on="conversation"))

    def poisson(share: float) -> Loaded:
        load = PoissonLoad(conversation, share * CAPACITY_RPS, 900.0)
        return Loaded(conversation, replace(base(load), static_instances=12, gpus=96))

    return {
        "conv-x8": conv(0.0, 3600.0, 8.0, 12),
        "conv-x8-own": conv(0.0, 3600.0, 8.0, 10),
        "conv-10": conv(600.0, 600.0, 4.0, 6),
        "conv-x4": conv(0.0, 3600.0, 4.0, 5),
        "conv-20": conv(1200.0, 1200.0, 4.0, 5),
        "code-x4": coded(0.0, 3600.0, 4.0, 14),
        "code-20": coded(1200.0, 1200.0, 4.0, 14),
        "low": poisson(0.2),
        "medium": poisson(0.5),
        "high": poisson(0.8),
    }


def _emptiest(instance: Any, ask: Any) -> float:
    return float(instance.sequences)


def _by_emptiness(router: Any, instances: list[Any]) -> list[Any]:
    return sorted(instances, key=lambda one: one.sequences)


def _no_excess(minutes: Any, surges: Any) -> float:
    return 0.0


def _no_room(room: Any, mean: Any) -> Any:
    return np.repeat(mean[:, :, None], len(COVERAGES), axis=2)


NEVER = 10**9
NO_SURGE = {"predictor.load_windows:excess": _no_excess}
NO_PEAK = {"predictor.load_headroom:HeadRoom.upper": _no_room}
ROOM_OFF = {"controller.planning:MEAN_ROOM": 1.0, **NO_SURGE}
NO_TRIM = {"controller.health:TRIMS": (1.0, 1.0)}
LOOSE = "slo.times=1000"
AT_ONCE = ("start_s=0", "back_after_s=0")
FINE_MHZ = tuple(range(800, 1981, 20))

AS_IS = Variant("as it is", "")
VARIANTS: tuple[Variant, ...] = (
    AS_IS,
    Variant("no objectives", "cause", "every objective a thousand times looser: full batches", (LOOSE,)),
    Variant("TTFT only", "cause", "TBT objective a thousand times looser", ("slo.tbt=100",)),
    Variant(
        "TBT only", "cause", "TTFT objectives loose",
        ("slo.ttft.S=250", "slo.ttft.M=400", "slo.ttft.L=2000"),
    ),
    Variant("no start-up", "cause", "instances start at once, GPUs return at once", AT_ONCE),
    Variant("foresight", "cause", "plans know the next five minutes", plan=foreseen),
    Variant("foresight, no start-up", "cause", "both", AT_ONCE, plan=foreseen),
    Variant("lengths known", "cause", "predictor never wrong", ("predictor=oracle",)),
    Variant("no head-room", "cause", "plans carry the forecast's mean: no tenth more, no peak, no surge",
            constants={**ROOM_OFF, **NO_PEAK}),
    Variant("fine clocks", "cause", "a clock every 20 MHz", clocks_mhz=FINE_MHZ),
    Variant("floor 1", "cause", "one instance may do", settings={"floor": 1}),
    Variant("N+1", "cause", "one instance more than needed (off as shipped)", settings={"spare": True}),
    Variant("probabilities: none", "part", "predictor that knows its errors, likeliest size taken",
            ("predictor=model",), weighs=False),
    Variant("probabilities: weighed", "part", "the same, size by expected joules", ("predictor=model",)),
    Variant("no consolidation", "part", "emptiest instance instead of least added joules",
            constants={"pools.router:added_joules": _emptiest, "pools.router:Router._fullest_first": _by_emptiness}),
    Variant("no error budget", "part", "the trim never spends", constants={"controller.health:DOWN": 1.0}),
    Variant("no trim", "part", "plans never learn of attainment", constants=NO_TRIM),
    Variant("no guard", "part", "no do-no-harm", settings={"harm_windows": NEVER}),
    Variant("no ladder", "part", "no boost, spill, move, shed", constants={"controller.pressure:LADDER": ()}),
    Variant("no merging", "part", "three pools stay three", settings={"merge": False}),
    Variant("no moves of overruns", "part", "only a dead instance's answers move", ("migration=failure",)),
    Variant("no surges", "part", "room for the forecast's own peak only", constants=NO_SURGE),
    Variant("no peak", "part", "room for surges only, not for the forecast's own peak", constants=NO_PEAK),
    Variant("static", "level", "TP8 at the highest clock, as many as SinglePool, this router", one_pool=True,
            plan=lambda case: held(case, tps=(8,), clocks=False, counts=False)),
    Variant("clocks only", "level", "TP8, as many as SinglePool", one_pool=True,
            plan=lambda case: held(case, tps=(8,), clocks=True, counts=False)),
    Variant("counts only", "level", "TP8 at the highest clock", one_pool=True,
            plan=lambda case: held(case, tps=(8,), clocks=False, counts=True)),
    Variant("TP only", "level", "highest clock, as many GPUs as SinglePool", one_pool=True,
            plan=lambda case: held(case, tps=(2, 4, 8), clocks=False, counts=False)),
    Variant("TP and clocks", "level", "as many GPUs as SinglePool", one_pool=True,
            plan=lambda case: held(case, tps=(2, 4, 8), clocks=True, counts=False)),
    Variant("no TP", "level", "TP8; counts and clocks", plan=lambda case: restricted(case, tps=(8,), clocks=True)),
    Variant("no clocks", "level", "highest clock; counts and TP",
            plan=lambda case: restricted(case, tps=(2, 4, 8), clocks=False)),
)  # fmt: skip


def asked_of(variant: Variant, loaded: Loaded) -> Experiment:
    return apply_all(loaded.experiment, list(variant.asks))
