"""The generating endpoints: body -> job -> ticket -> bytes. Owns that chain and the injected faults' countdown."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from simulator import server_messages, server_responses
from simulator.server_chat import ChatFace
from simulator.server_completions import CompletionFace
from simulator.server_errors import ApiError, bad_request, engine_failed, to_json, too_long, unknown_model
from simulator.server_fields import Sampling, check_types, read_sampling
from simulator.server_http import Exchange, Fault, answer_json
from simulator.server_job import Face, Job, outlets_of
from simulator.server_loop import EngineLoop
from simulator.server_outlet import Delta, Ticket
from simulator.server_prompt import chat_prompt, forced_text, text_prompts, tool_name
from simulator.tokens import Tokenizer

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions, the real server's too


class Generation:
    def __init__(self, loop: EngineLoop, tokenizer: Tokenizer, model: str) -> None:
        self.loop = loop
        self.tokenizer = tokenizer
        self.model = model
        self._faults: list[Fault] = []

    # --- endpoints

    async def chat(self, exchange: Exchange) -> None:
        body = await exchange.json_object()
        await self.chat_of(exchange, body)

    async def chat_of(self, exchange: Exchange, body: dict[str, Any]) -> None:
        job = self._chat_job(exchange, body, "chatcmpl-")
        await self._run(exchange, job, ChatFace(job))

    async def completions(self, exchange: Exchange) -> None:
        body = await exchange.json_object()
        await self.completions_of(exchange, body)

    async def completions_of(self, exchange: Exchange, body: dict[str, Any]) -> None:
        check_types(body)
        self.check_model(body)
        prompts = text_prompts(self.tokenizer, body)
        asked = body.get("max_tokens")
        sampling = self._sampling(body, COMPLETION_MAX_TOKENS if asked is None else asked)
        job = self._job(exchange, body, "cmpl-", prompts, sampling)
        await self._run(exchange, job, CompletionFace(job, self.tokenizer))

    async def invocations(self, exchange: Exchange) -> None:
        """SageMaker's route: any of the two bodies."""
        body = await exchange.json_object()
        await (self.chat_of if "messages" in body else self.completions_of)(exchange, body)

    async def responses(self, exchange: Exchange) -> None:
        body = await exchange.json_object()
        job = self._chat_job(exchange, server_responses.chat_body(body), "resp_")
        await self._run(exchange, job, server_responses.ResponsesFace(job, body))

    async def messages(self, exchange: Exchange) -> None:
        try:
            body = server_messages.chat_body(await exchange.json_object())
            job = self._chat_job(exchange, body, "chatcmpl-")
            await self._run(exchange, job, server_messages.MessagesFace(job))
        except ApiError as error:
            await answer_json(exchange, server_messages.error_body(error), error.status)

    async def count_tokens(self, exchange: Exchange) -> None:
        try:
            body = server_messages.chat_body(await exchange.json_object(), counting=True)
            self.check_model(body)
            count = len(chat_prompt(self.tokenizer, body))
        except ApiError as error:
            return await answer_json(exchange, server_messages.error_body(error), error.status)
        await answer_json(exchange, {"input_tokens": count, "context_management": {"original_input_tokens": count}})

    # --- faults

    def inject(self, fault: Fault, times: int) -> None:
        """The next `times` generating requests meet the fault; 0 clears all."""
        self._faults = [*self._faults, *([fault] * times)] if times > 0 else []

    # --- body to job

    def check_model(self, body: dict[str, Any]) -> None:
        asked = body.get("model")
        if asked is not None and asked != self.model:
            raise unknown_model(str(asked), self.model)

    def _chat_job(self, exchange: Exchange, body: dict[str, Any], prefix: str) -> Job:
        check_types(body)
        self.check_model(body)
        prompt = chat_prompt(self.tokenizer, body)
        newer, older = body.get("max_completion_tokens"), body.get("max_tokens")
        sampling = self._sampling(body, older if newer is None else newer)
        return self._job(exchange, body, prefix, [prompt], sampling)

    def _sampling(self, body: dict[str, Any], max_tokens: int | None) -> Sampling:
        return read_sampling(body, max_tokens, self.loop.engine.context_limit)

    def _job(
        self, exchange: Exchange, body: dict[str, Any], prefix: str, prompts: list[list[int]], sampling: Sampling
    ) -> Job:
        text = forced_text(body)
        if not all(prompts):
            raise bad_request("The decoder prompt cannot be empty")
        own = exchange.header(b"x-request-id") or body.get("request_id") or os.urandom(8).hex()
        return Job(
            id=f"{prefix}{own}",
            created=int(self.loop.clock.wall_s()),
            model=self.model,
            prompts=prompts,
            sampling=sampling,
            forced=() if text is None else tuple(self.tokenizer.encode(text)),
            tool=tool_name(body),
            tool_required=body.get("tool_choice") == "required",
            echo=bool(body.get("echo")),
        )

    # --- job to bytes

    async def _run(self, exchange: Exchange, job: Job, face: Face) -> None:
        fault = self._faults.pop(0) if self._faults else None
        if fault is not None and fault.kind == "status500":
            raise engine_failed()
        ticket = self._submit(job)
        exchange.fault = fault
        watch = asyncio.create_task(exchange.watch(lambda: self.loop.drop(ticket)))
        try:
            if job.sampling.stream:
                await self._stream(exchange, ticket, face)
            else:
                await self._answer(exchange, ticket, face)
        finally:
            watch.cancel()
            self.loop.drop(ticket)

    def _submit(self, job: Job) -> Ticket:
        engine = self.loop.engine
        longest = max(map(len, job.prompts))
        if longest >= engine.context_limit:
            raise too_long(engine.context_limit, longest)
        outlets = outlets_of(job, self.tokenizer, engine.context_limit, self.loop.clock.now_s())
        self.loop.meters.asked_n.observe(job.sampling.n)
        return self.loop.submit(outlets)

    async def _stream(self, exchange: Exchange, ticket: Ticket, face: Face) -> None:
        await exchange.open_stream()
        opened = False
        while not ticket.gone:
            await ticket.ready.wait()
            ticket.ready.clear()
            if ticket.gone:
                return
            if ticket.dead:
                await exchange.write(b"data: %b\n\ndata: [DONE]\n\n" % to_json(engine_failed().body()))
                return await exchange.close_stream()
            if not opened:
                opened = True
                if first := face.opening(ticket.outlets):
                    await exchange.write(first)
            for outlet in ticket.outlets:
                delta = outlet.take()
                if delta is not None and (chunk := face.delta(outlet, delta)):
                    await exchange.write(chunk)
            if ticket.finished:
                await exchange.write(face.closing(ticket.outlets))
                return await exchange.close_stream()

    async def _answer(self, exchange: Exchange, ticket: Ticket, face: Face) -> None:
        while not ticket.finished and not ticket.gone:
            await ticket.ready.wait()
            ticket.ready.clear()
            if ticket.dead:
                raise engine_failed()
        if not ticket.gone:
            await exchange.answer(200, to_json(face.whole(_deltas(ticket))))


def _deltas(ticket: Ticket) -> Sequence[Delta]:
    empty = Delta("", [], "abort", None, 0)
    return [outlet.take() or empty for outlet in ticket.outlets]
