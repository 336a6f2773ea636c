"""What all policies of a comparison share: the service's promises, the engine model, the load, the costs, what is known
of lengths. Owns how a static plan becomes pools; decides no plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from core.instances import Shape
from core.service import CLASSES, STEP_TOKENS, Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from pools.shape import LEAST_STEP_TOKENS
from predictor.blend import Blend
from predictor.model_file import SHIPPED, read_model
from profiles.engine_model import EngineModel
from simulator.cluster import Costs, costs_of
from simulator.faults import NO_FAULTS, Faults
from simulator.lengths import (
    ALWAYS_LONG,
    NAMED,
    TELLS_NOTHING,
    Calibrated,
    Confused,
    Declared,
    Lengths,
    Oracle,
    Usual,
    even_confusion,
    usual_lengths,
)
from simulator.request_life import MOVES_OFF, Door, PoolOf, pool_by_output
from simulator.run import TICK_S, Ran, Setup, simulate
from simulator.tally import Tally
from simulator.timeline import Timeline
from simulator.trace import Arrival

CONTEXT_TOKENS = 16_384
PAPER_ACCURACY = 0.81  # DynamoLLM's BERT predictor (HPCA 2025, IV-E)
MOST_SLOTS = 256  # vLLM's default of sequences at once
SLOTS_STEP = 8
LEAST_BATCH = 64  # sequences beside a prompt's chunk, below which an instance is too empty to be worth its watts
SAMPLE = 20_000  # answers kept for the usual lengths of each size
OpenTrace = Callable[[], Iterable[Arrival]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What one reading of the trace tells. `by_class`: requests of each class in the order of CLASSES."""

    requests: int
    duration_s: float
    by_class: tuple[int, ...]
    input_tokens: int
    output_tokens: int
    usual: tuple[Usual, Usual, Usual]

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of the output sizes S, M, L."""
        small, medium, long = (sum(self.by_class[size::3]) / max(1, self.requests) for size in range(3))
        return small, medium, long

    @property
    def mean_context(self) -> float:
        """KV tokens of a running sequence, halfway through its answer."""
        return (self.input_tokens + self.output_tokens / 2) / max(1, self.requests)


def facts_of(trace: Iterable[Arrival], edges: Edges) -> Facts:
    by_class = [0] * len(CLASSES)
    sample: list[int] = []
    requests = input_tokens = output_tokens = 0
    last_s = 0.0
    for arrival in trace:
        size_class = edges.input_size(arrival.input_tokens) + edges.output_size(arrival.output_tokens)
        by_class[CLASSES.index(size_class)] += 1
        requests += 1
        input_tokens += arrival.input_tokens
        output_tokens += arrival.output_tokens
        last_s = arrival.at_s
        if len(sample) < SAMPLE:
            sample.append(arrival.output_tokens)
    usual = usual_lengths(sample, edges)
    return Facts(requests, last_s, tuple(by_class), input_tokens, output_tokens, usual)


@dataclass(frozen=True, slots=True)
class Case:
    """`predictor` is one of lengths.NAMED or the accuracy of a predictor. `spec` has the operator's pools, or none."""

    spec: ServiceSpec
    model: EngineModel
    open_trace: OpenTrace
    facts: Facts
    costs: Costs
    predictor: str = str(PAPER_ACCURACY)
    seed: int = 0
    door: Door = field(default_factory=Door)
    static_instances: int | None = None  # singlepool's answer, once it is known
    pools: int | None = None  # how many, where the policy is free to choose; None = its own number
    swept_on: str = "code"  # the trace on which the baselines' open settings were chosen (baselines/chosen.py)
    faults: Faults = NO_FAULTS
    moves: str | None = None  # which answers go on elsewhere (request_life.MOVES); None = as the policy does
    power_cap_w: float | None = None  # of the cluster; a policy may ignore it, the report does not
    tick_s: float = TICK_S
    open_busiest: OpenTrace | None = None  # the part that static sizes are found on; None = all of it
    sample_s: float | None = None  # how often runs are sampled for their pictures; None = not at all
    on_ran: Callable[[Ran], None] = lambda ran: None  # told of every run, tried ones included

    @property
    def tp(self) -> int:
        return max(self.model.points)

    @property
    def clock_mhz(self) -> int:
        return max(self.model.clocks_mhz)

    def known_tp(self, tp: int) -> int:
        """`tp`, or the largest where the model does not run on as many."""
        return tp if tp in self.model.points else self.tp

    def busiest(self) -> Case:
        """The case that static sizes are found on."""
        if self.open_busiest is None:
            return self
        facts = facts_of(self.open_busiest(), self.spec.edges)
        return replace(self, open_trace=self.open_busiest, open_busiest=None, facts=facts) if facts.requests else self

    def lengths(self) -> Lengths:
        edges = self.spec.edges
        if self.predictor == "oracle":
            return Oracle(edges)
        if self.predictor == "live":
            return Declared(Blend(None), edges)
        if self.predictor == "long":
            return Confused(ALWAYS_LONG, self.facts.usual, edges, self.seed)
        if self.predictor in ("model", "none"):
            return Calibrated(self._confusion(), self.facts.shares, self.facts.usual, edges, self.seed)
        return Confused(even_confusion(float(self.predictor)), self.facts.usual, edges, self.seed)

    def _confusion(self) -> Sequence[Sequence[float]]:
        """`model`: as the shipped model was measured on what was held out of its training, with history."""
        if self.predictor == "none":
            return TELLS_NOTHING
        measured = read_model(SHIPPED).confusion
        if measured is None:
            raise ValueError("the shipped model tells no confusion")
        return measured

    def limits(self, tp: int = 0, clock_mhz: int = 0, per_step: int = 0) -> InstanceLimits:
        """As many sequences as keep the TBT objective at the trace's mean context while a prompt is prefilled beside
        them, and the engine's KV room. 0: as the case says, that is its TP, its clock, the costs' tokens of a step."""
        model, tp, clock_mhz, slots = self.model, tp or self.tp, clock_mhz or self.clock_mhz, MOST_SLOTS
        per_step = per_step or self.costs.step_tokens.get(tp, STEP_TOKENS)
        while slots > SLOTS_STEP:
            context = round(slots * self.facts.mean_context)
            prefill = max(1, per_step - slots)
            if model.step_s(tp, clock_mhz, prefill, slots, context) <= self.spec.slo.tbt_s:
                break
            slots -= SLOTS_STEP
        return InstanceLimits(slots, model.kv_tokens(tp), per_step)

    def pool(self, name: str, serves: tuple[str, ...], instances: int) -> PoolSpec:
        return PoolSpec(name, serves, instances, self.tp, self.clock_mhz, self.limits())

    def shape(self, tp: int, clock_mhz: int, per_step: int = 0) -> Shape:
        """An instance at `clock_mhz`. Its step takes `per_step` tokens, or as many as leave room for a batch of
        LEAST_BATCH beside them within the TBT objective."""
        tokens = per_step or STEP_TOKENS
        limits = self.limits(tp, clock_mhz, tokens)
        while not per_step and limits.slots < LEAST_BATCH and tokens > LEAST_STEP_TOKENS:
            tokens //= 2
            limits = self.limits(tp, clock_mhz, tokens)
        return Shape(tp, clock_mhz, limits.slots, tokens)

    def setup(self, pools: tuple[PoolSpec, ...], gpus: int, pool_of: PoolOf = pool_by_output) -> Setup:
        spec = replace(self.spec, pools=pools)
        return Setup(
            spec, self.model, gpus, self.costs, self.lengths, self.door, pool_of, self.seed, self.tick_s,
            faults=self.faults, moves=self.moves or MOVES_OFF,
        )  # fmt: skip

    def run(self, setup: Setup, hopeless: Callable[[Tally], bool] | None = None) -> Ran:
        timeline = Timeline(self.sample_s) if self.sample_s else None
        ran = simulate(setup, self.open_trace(), hopeless=hopeless, timeline=timeline)
        self.on_ran(ran)
        return ran

    def least_instances(self) -> int:
        """Below this many the prefill alone takes longer than the trace lasts."""
        per_token_s = self.model.prefill_s(self.tp, self.clock_mhz, 2048) / 2048
        return max(1, math.floor(self.facts.input_tokens * per_token_s / max(1.0, self.facts.duration_s)))


def shipped_service(name: str, slo: Slo | None = None, edges: Edges | None = None) -> ServiceSpec:
    """The promises of a service that is simulated without a configuration; its pools are the policy's."""
    launcher = LauncherSpec("emulated")
    return ServiceSpec(name, name, CONTEXT_TOKENS, slo or Slo(), edges or Edges(), (), launcher, profile=name)


def make_case(
    spec: ServiceSpec, model: EngineModel, open_trace: OpenTrace, *, predictor: str = str(PAPER_ACCURACY), seed: int = 0
) -> Case:
    if predictor not in NAMED and not 0 <= _number(predictor) <= 1:
        raise ValueError(f"the predictor is {', '.join(NAMED)} or an accuracy from 0 to 1, not {predictor}")
    facts = facts_of(open_trace(), spec.edges)
    if not facts.requests:
        raise ValueError("the trace has no request that can be simulated")
    return Case(spec, model, open_trace, facts, costs_of(model, spec.slo.tbt_s), predictor, seed)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0
