"""Everything the gateway holds for one service at run time, and the step from a parsed request to an `Ask`."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct

from core.errors import BadRequest
from core.request import Ask, Prediction, ask_for
from core.service import ServiceSpec
from gateway.parse import Parsed, prompt_text
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

    @property
    def spec(self) -> ServiceSpec:
        return self.fleet.spec

    @property
    def counts(self) -> LoadCounts:
        return self.fleet.counts


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
