"""/v1/completions: the shapes of its answers and chunks. Owns bytes only; what is generated is the job's."""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from simulator.server_chat import FINGERPRINT, ids_json, running_usage, stream_end, usage_of
from simulator.server_errors import to_json
from simulator.server_job import Job
from simulator.server_outlet import Delta, Outlet
from simulator.tokens import Tokenizer


class CompletionFace:
    def __init__(self, job: Job, tokenizer: Tokenizer) -> None:
        self._job = job
        self._ids = job.sampling.return_token_ids
        self._continuous = job.sampling.include_usage and job.sampling.continuous_usage
        self._echoes = [tokenizer.decode(prompt) for prompt in job.prompts] if job.echo else []
        self._begun: set[int] = set()
        head = to_json({"id": job.id, "object": "text_completion", "created": job.created, "model": job.model})
        self._head = "data: " + head[:-1].decode() + ',"choices":['

    def opening(self, outlets: Sequence[Outlet]) -> bytes:
        return b""

    def delta(self, outlet: Outlet, delta: Delta) -> bytes:
        text, prompt_ids = delta.text, None
        if outlet.index not in self._begun:
            self._begun.add(outlet.index)
            text = self._echo(outlet.index) + text
            prompt_ids = outlet.ask.prompt if self._ids else None
        ended = delta.finish_reason is not None
        finish = f'"{delta.finish_reason}"' if ended else "null"
        stop = to_json(delta.stop_reason).decode() if ended else "null"
        usage = running_usage(len(outlet.ask.prompt), delta.count) if self._continuous else ""
        mark = f',"system_fingerprint":"{FINGERPRINT}"' if ended and not self._job.sampling.include_usage else ""
        ids = ids_json(delta.token_ids if self._ids else None)
        choice = (
            f'{{"index":{outlet.index},"text":{encode_basestring(text)},"logprobs":null,"finish_reason":{finish},'
            f'"stop_reason":{stop},"prompt_token_ids":{ids_json(prompt_ids)},"token_ids":{ids}}}]'
        )
        return f"{self._head}{choice}{usage}{mark}}}\n\n".encode()

    def closing(self, outlets: Sequence[Outlet]) -> bytes:
        return stream_end(self._job, self._head, outlets)

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        job = self._job
        return {
            "id": job.id,
            "object": "text_completion",
            "created": job.created,
            "model": job.model,
            "choices": [self._choice(index, delta) for index, delta in enumerate(deltas)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage_of(job.prompt_tokens, sum(delta.count for delta in deltas), details=True),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, index: int, delta: Delta) -> dict[str, Any]:
        return {
            "index": index,
            "text": self._echo(index) + delta.text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "token_ids": delta.token_ids if self._ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": self._job.prompts[index // self._job.sampling.n] if self._ids else None,
            "routed_experts": None,
        }

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._job.sampling.n] if self._echoes else ""
