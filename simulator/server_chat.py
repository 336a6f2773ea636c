"""/v1/chat/completions: the shapes of its answers and chunks. Owns bytes only; what is generated is the job's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from simulator.server_errors import to_json
from simulator.server_job import Job
from simulator.server_outlet import Delta, Outlet

FINGERPRINT = "vllm-0.32.0-emulated"
DONE = b"data: [DONE]\n\n"


def usage_of(prompt_tokens: int, completion_tokens: int, details: bool = False) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    return usage | {"prompt_tokens_details": None, "completion_tokens_details": None} if details else usage


def running_usage(prompt_tokens: int, completion_tokens: int) -> str:
    """The usage member of a chunk under continuous_usage_stats."""
    total = prompt_tokens + completion_tokens
    return (
        f',"usage":{{"prompt_tokens":{prompt_tokens},"total_tokens":{total},'
        f'"completion_tokens":{completion_tokens},"completion_tokens_details":null}}'
    )


def ids_json(ids: Sequence[int] | None) -> str:
    return "null" if ids is None else "[" + ",".join(map(str, ids)) + "]"


def stream_end(job: Job, head: str, outlets: Sequence[Outlet]) -> bytes:
    """The last bytes of a stream of chunks that all begin with `head`: the usage, where it was asked for, and DONE."""
    if not job.sampling.include_usage:
        return DONE
    usage = usage_of(job.prompt_tokens, sum(outlet.count for outlet in outlets))
    last = f'{head}],"usage":{to_json(usage).decode()},"system_fingerprint":"{FINGERPRINT}"}}\n\n'
    return last.encode() + DONE


class ChatFace:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._ids = job.sampling.return_token_ids
        self._continuous = job.sampling.include_usage and job.sampling.continuous_usage
        # Everything of a chunk that does not change is made once: a chunk costs one f-string.
        head = to_json({"id": job.id, "object": "chat.completion.chunk", "created": job.created, "model": job.model})
        self._head = "data: " + head[:-1].decode() + ',"choices":['
        self._calls: dict[int, str] = {}

    def opening(self, outlets: Sequence[Outlet]) -> bytes:
        return "".join(map(self._role_chunk, outlets)).encode()

    def delta(self, outlet: Outlet, delta: Delta) -> bytes:
        ids = ids_json(delta.token_ids if self._ids else None)
        usage = running_usage(len(outlet.ask.prompt), delta.count) if self._continuous else ""
        if self._job.tool is not None:
            body = self._tool_delta(outlet, delta.text)
        else:
            body = f'{{"content":{encode_basestring(delta.text)}}}'
        choice = f'{{"index":{outlet.index},"delta":{body},"logprobs":null'
        if delta.finish_reason is None:
            return f'{self._head}{choice},"finish_reason":null,"token_ids":{ids}}}]{usage}}}\n\n'.encode()
        reason = to_json(delta.stop_reason).decode()
        finish = self._finish_reason(delta)
        mark = "" if self._job.sampling.include_usage else f',"system_fingerprint":"{FINGERPRINT}"'
        end = f',"finish_reason":"{finish}","stop_reason":{reason},"token_ids":{ids}}}]{usage}{mark}}}\n\n'
        return (self._head + choice + end).encode()

    def closing(self, outlets: Sequence[Outlet]) -> bytes:
        return stream_end(self._job, self._head, outlets)

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        job = self._job
        return {
            "id": job.id,
            "object": "chat.completion",
            "created": job.created,
            "model": job.model,
            "choices": [self._choice(index, delta) for index, delta in enumerate(deltas)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage_of(job.prompt_tokens, sum(delta.count for delta in deltas), details=True),
            "prompt_logprobs": None,
            "prompt_token_ids": job.prompts[0] if self._ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, index: int, delta: Delta) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": delta.text, "refusal": None, "annotations": None}
        message |= {"audio": None, "function_call": None}
        if self._job.tool is not None:
            function = {"name": self._job.tool, "arguments": delta.text}
            message["content"] = ""
            message["tool_calls"] = [{"id": tool_call_id(), "type": "function", "function": function}]
        return {
            "index": index,
            "message": message | {"reasoning": None},
            "logprobs": None,
            "finish_reason": self._finish_reason(delta),
            "stop_reason": delta.stop_reason,
            "token_ids": delta.token_ids if self._ids else None,
            "routed_experts": None,
        }

    def _role_chunk(self, outlet: Outlet) -> str:
        usage = running_usage(len(outlet.ask.prompt), 0) if self._continuous else ""
        prompt_ids = ids_json(outlet.ask.prompt if self._ids else None)
        choice = f'{{"index":{outlet.index},"delta":{{"role":"assistant","content":""}}'
        end = f',"logprobs":null,"finish_reason":null}}]{usage},"prompt_token_ids":{prompt_ids},"prompt_text":null}}'
        return f"{self._head}{choice}{end}\n\n"

    def _tool_delta(self, outlet: Outlet, arguments: str) -> str:
        call: dict[str, Any] = {"index": 0, "function": {"arguments": arguments}}
        if outlet.index not in self._calls:
            self._calls[outlet.index] = tool_call_id()
            call = {"id": self._calls[outlet.index], "type": "function", "index": 0}
            call["function"] = {"name": self._job.tool, "arguments": arguments}
        return to_json({"tool_calls": [call]}).decode()

    def _finish_reason(self, delta: Delta) -> str | None:
        # As the real server: a required call ends with "tool_calls", a named one with "stop".
        if self._job.tool is not None and self._job.tool_required and delta.finish_reason == "stop":
            return "tool_calls"
        return delta.finish_reason


def tool_call_id() -> str:
    return f"chatcmpl-tool-{os.urandom(8).hex()}"
