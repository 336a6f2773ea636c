"""Everything the gateway holds for one service at run time, and the step from a parsed request to an `Ask`."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct, structs

from core.errors import BadRequest
from core.request import Ask, Prediction, ask_for
from core.service import ServiceSpec
from gateway.asked import asked_of
from gateway.auth import Identity
from gateway.parse import Parsed, prompt_text
from gateway.retry import RetryBudget
from pools.admission import Admission
from pools.fleet import Fleet
from pools.load_counts import LoadCounts
from predictor.blend import Blend, Foretold
from predictor.challenger import Challenger
from predictor.tokens import ExactCount, TokenEstimate

LONGEST_S = 86_400.0


@dataclass(slots=True)
class Service:
    """Mutable only through its parts; `fleet.spec` is the current promise."""

    fleet: Fleet
    admission: Admission
    predictor: Blend
    challenger: Challenger | None = None
    crowned: str = ""  # the challenger that serves since it has won
    estimate: TokenEstimate = field(default_factory=TokenEstimate)
    exact: ExactCount | None = None
    budget: RetryBudget = field(default_factory=RetryBudget)

    @property
    def spec(self) -> ServiceSpec:
        return self.fleet.spec

    @property
    def model_name(self) -> str:
        """Of the length model that serves."""
        if self.predictor.model is None:
            return ""
        return self.crowned or self.spec.predictor.model or "shipped"

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
    told: Foretold

    @property
    def prediction(self) -> Prediction:
        return self.told.prediction

    @property
    def name(self) -> str:
        return self.input_size + self.output_size


async def size_up(service: Service, parsed: Parsed, client: str, hint: bytes | None, now_s: float) -> Sized:
    """Counts the prompt, predicts the answer, chooses its size by expected cost. The real tokenizer runs only where an
    estimate could choose wrongly."""
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
    told = service.predictor.foretell(
        parsed.template, limit, spec.edges, asked_of(parsed, hint), client.encode("utf-8", "replace")
    )
    output_size = service.admission.router.choose_size(told.prediction, tokens, now_s)
    return Sized(tokens, exact is not None, spec.edges.input_size(tokens), output_size, told)


def learn(service: Service, sized: Sized, parsed: Parsed, output_tokens: int, client: str, hint: bytes | None) -> bool:
    """An answer that is as long as it was let was cut: it may have been longer. Whether a challenger has won."""
    tokens = output_tokens // max(1, parsed.sequences)
    limit, told, champion, challenger = parsed.max_tokens, sized.told, service.predictor, service.challenger
    cut = (limit is not None and 0 < limit <= tokens) or sized.input_tokens + tokens >= service.spec.context_tokens
    won = challenger is not None and challenger.learn(
        champion, told, asked_of(parsed, hint), client.encode("utf-8", "replace"), tokens, cut
    )
    champion.learn(told, tokens, cut)
    return won


def crown(service: Service) -> dict[str, object]:
    """The challenger serves from now on; what is to be told of it."""
    challenger = service.challenger
    assert challenger is not None
    service.predictor, service.crowned, service.challenger = challenger.blend, challenger.name, None
    return {"kind": "predictor_changed", "service": service.spec.name, "model": challenger.name}


def make_ask(
    spec: ServiceSpec, sized: Sized, parsed: Parsed, request_id: str, now_s: float, ttft_s: float, tbt_s: float,
    whose: Identity,
) -> Ask:  # fmt: skip
    return ask_for(
        request_id, spec.pool_for(sized.output_size), sized.input_tokens, parsed.sequences, sized.prediction,
        now_s, ttft_s, tbt_s, whose.name, whose.batch,
    )  # fmt: skip


def rest_of(service: Service, sized: Sized, ask: Ask, prompt_tokens: int, output_tokens: int, now_s: float) -> Ask:
    """The rest of a stream. Its client waits for the next token, within its TBT objective: before all who wait for
    their first. An answer that got longer than predicted is one of the longer class now."""
    spec, tokens = service.spec, prompt_tokens + output_tokens
    whole = min(service.predictor.length(sized.told).quantile_after(output_tokens, 0.5), sized.prediction.q99_tokens)
    left = max(1, round(whole) - output_tokens)
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
