"""Everything the gateway holds for one service at run time, and the step from a parsed request to an `Ask`."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct, structs

from core.errors import BadRequest
from core.request import Ask, Prediction, ask_for
from core.service import ServiceSpec
from gateway.parse import Parsed, prompt_text
from gateway.retry import RetryBudget
from pools.admission import Admission
from pools.fleet import Fleet
from pools.load_counts import LoadCounts
from predictor.length import Predictor, choose_size
from predictor.tokens import ExactCount, TokenEstimate

LONGEST_S = 86_400.0


@dataclass(slots=True)
class Service:
    """Mutable only through its parts; `fleet.spec` is the current promise."""

    fleet: Fleet
    admission: Admission
    predictor: Predictor
    estimate: TokenEstimate = field(default_factory=TokenEstimate)
    exact: ExactCount | None = None
    budget: RetryBudget = field(default_factory=RetryBudget)

    @property
    def spec(self) -> ServiceSpec:
        return self.fleet.spec

    @property
    def counts(self) -> LoadCounts:
        return self.fleet.counts

    @property
    def slots(self) -> int:
        """Sequences that all instances may run at once."""
        return sum(member.instance.limits.slots for member in self.fleet.members.values())


class Sized(Struct, frozen=True):
    """A request with its class: input size, output size, and what that rests on."""

    input_tokens: int
    input_exact: bool
    input_size: str
    output_size: str
    prediction: Prediction

    @property
    def name(self) -> str:
        return self.input_size + self.output_size


async def size_up(service: Service, parsed: Parsed) -> Sized:
    """Counts the prompt, predicts the answer. The real tokenizer runs only where an estimate could choose wrongly."""
    spec = service.spec
    exact = parsed.exact_tokens
    tokens = exact if exact is not None else service.estimate.tokens(parsed.prompt_bytes) + parsed.extra_tokens
    edges = (*spec.edges.input, spec.context_tokens)
    if exact is None and service.exact is not None and service.estimate.near(tokens, edges):
        exact = await service.exact.tokens(prompt_text(parsed.fields))
        tokens = exact + parsed.extra_tokens
    room = max(1, spec.context_tokens - tokens)
    declared = parsed.max_tokens
    limit = room if declared is None or declared <= 0 else min(declared, room)
    prediction = service.predictor.predict(parsed.template, limit, spec.edges)
    return Sized(tokens, exact is not None, spec.edges.input_size(tokens), choose_size(prediction), prediction)


def make_ask(
    spec: ServiceSpec, sized: Sized, parsed: Parsed, request_id: str, now_s: float, ttft_s: float, tbt_s: float
) -> Ask:
    return ask_for(
        request_id, spec.pool_for(sized.output_size), sized.input_tokens, parsed.sequences, sized.prediction,
        now_s, ttft_s, tbt_s,
    )  # fmt: skip


def rest_of(spec: ServiceSpec, ask: Ask, prompt_tokens: int, output_tokens: int, now_s: float) -> Ask:
    """The rest of a stream. Its client waits for the next token, within its TBT objective: before all who wait for
    their first. An answer that got longer than predicted is one of the longer class now."""
    tokens = prompt_tokens + output_tokens
    left = max(1, ask.q50_tokens - max(0, tokens - ask.input_tokens))
    return structs.replace(
        ask,
        pool_index=max(ask.pool_index, spec.pool_for(spec.edges.output_size(output_tokens + 1))),
        input_tokens=tokens,
        kv_tokens=max(ask.kv_tokens, tokens + left),
        q50_tokens=left,
        deadline_s=now_s + ask.tbt_limit_s,
    )


def header_seconds(value: bytes | None, name: str, default_s: float) -> float:
    """A request's own objective in milliseconds from its header; BadRequest when it is no positive number."""
    if value is None:
        return default_s
    try:
        seconds = float(value) / 1000
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= LONGEST_S:
        raise BadRequest(f"{name} must be a positive number of milliseconds", param=name, code="invalid_slo")
    return seconds
