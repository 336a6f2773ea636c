"""The rest of a stream: whether another instance can make it, and what is asked of that one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Any

import msgspec

from core.errors import UpstreamFailed
from gateway.attempt import AttemptFailed
from gateway.client import Headers
from gateway.config import Limits
from gateway.continuation import Seam, continuous, cut_of, left_of, request_of, stays_because, stops_of
from gateway.job import Job
from gateway.joined_stream import JoinedStream, closing
from gateway.service import Service
from pools.connection import Wires
from pools.fleet import Fleet, Member
from pools.probe import health

ALIVE_S = 0.5  # that an instance has to say that it lives
TEXT_LIMIT_BYTES = 16 * 1024 * 1024


def why_it_stays(job: Job) -> str:
    """Why the rest of a stream cannot come from another instance; empty if it can."""
    answer = job.answer
    if answer is not None and answer.fold().finish:
        return ""
    return stays_because(asked_of(job), answer)


def asked_of(job: Job) -> dict[str, Any]:
    asked: dict[str, Any] = msgspec.json.decode(job.body)
    return asked


async def prepare(job: Job, service: Service, member: Member, limits: Limits) -> bytes | tuple[bytes, JoinedStream]:
    """The request for the rest of a stream and the way of its answer; or the bytes that end the stream, if only they
    are missing. The ids become text at the instance that goes on, so that both mean the same by them."""
    answer, parsed = job.answer, job.parsed
    assert answer is not None and parsed is not None
    asked = asked_of(job)
    left = left_of(asked, answer, service.spec.context_tokens, chat=job.route.chat)
    if answer.finish or left <= 0:
        job.usage = len(answer.prompt), len(answer.ids)
        return closing(answer, finish="" if answer.finish else "length", wants_usage=parsed.wants_usage)

    async def decode(ids: list[int]) -> str:
        return await detokenize(member.wires, ids, engine_headers(job, service), service.spec.model, limits)

    cut = await cut_of(answer, decode)
    if cut is None:
        error = UpstreamFailed("the stream broke off, and there is no clean place to continue it from")
        raise AttemptFailed(error, kind="no_place", ill=False, final=True)
    body = request_of(asked, answer, cut, left, chat=job.route.chat)
    stops = stops_of(asked) if len(cut.ids) >= int(asked.get("min_tokens") or 0) else ()
    seam = Seam(answer.text, cut.held, stops, include_stop=bool(asked.get("include_stop_str_in_output")))
    chat_logprobs = int(asked.get("top_logprobs") or 0) if job.route.chat and asked.get("logprobs") else None
    stream = JoinedStream(
        answer,
        cut,
        seam,
        wants_usage=parsed.wants_usage,
        running_usage=parsed.wants_usage and continuous(asked.get("stream_options") or {}),
        logprobs=chat_logprobs,
    )
    return body, stream


async def detokenize(wires: Wires, ids: list[int], headers: Headers, model: str, limits: Limits) -> str:
    body = msgspec.json.encode({"model": model, "tokens": ids})
    async with await wires.send(b"POST", b"/detokenize", headers, body) as exchange:
        head = await exchange.head(limits.stall_timeout_s)
        said = await exchange.body(limits.stall_timeout_s, TEXT_LIMIT_BYTES)
    if head.status != 200:
        error = UpstreamFailed(f"the instance answered {head.status} when asked for the text of token ids")
        raise AttemptFailed(error, kind="5xx", ill=head.status >= 500, answered=True)
    try:
        text: str = msgspec.json.decode(said)["prompt"]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise UpstreamFailed("the instance sent an answer that is not JSON") from None
    return text


async def alive_of(fleet: Fleet, instances: Iterable[str]) -> list[str]:
    """Those that answer `/health` at once: only their connections were cut."""
    asked = [one for one in dict.fromkeys(instances) if one in fleet.members]
    told = await asyncio.gather(*(health(fleet.members[one].probes, ALIVE_S) for one in asked))
    return [one for one, (healthy, _) in zip(asked, told, strict=True) if healthy]


def engine_headers(job: Job, service: Service) -> Headers:
    headers = [*job.client.forwarded_headers(), (b"x-request-id", job.request_id.encode())]
    variable = service.spec.engine_api_key_env
    key = os.environ.get(variable) if variable else None
    if key:
        headers.append((b"authorization", b"Bearer " + key.encode()))
    return headers
