"""/v1/responses, stateless: the translation of its body to chat, its object and its stream of events.

Owns bytes only. Refuses what needs a memory (previous_response_id, background), as an engine without a store does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from simulator.server_errors import bad_request, invalid, missing, to_json
from simulator.server_job import Job
from simulator.server_outlet import Delta, Outlet


def chat_body(body: dict[str, Any]) -> dict[str, Any]:
    """The chat request that means the same."""
    if body.get("input") is None:
        raise invalid([missing("body.input", body)])
    if body.get("background"):
        raise bad_request("This model does not support background mode", "background")
    dropped = ("input", "instructions", "tools", "tool_choice", "text", "max_output_tokens", "include")
    chat = {key: value for key, value in body.items() if key not in dropped}
    chat["max_tokens"] = body.get("max_output_tokens")
    given = body["input"]
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else [_message(one) for one in given]
    if body.get("instructions"):
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    chat["messages"] = messages
    functions = [tool for tool in body.get("tools") or [] if tool.get("type") == "function"]
    if functions:
        chat["tools"] = [{"type": "function", "function": tool} for tool in functions]
        chat["tool_choice"] = body.get("tool_choice", "auto")
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": {"name": form.get("name"), "schema": form.get("schema")}}
    return chat | {"response_format": form}


class ResponsesFace:
    def __init__(self, job: Job, body: dict[str, Any]) -> None:
        self._job = job
        self._body = body
        self._number = 0
        self._item_id = ("fc_" if job.tool is not None else "msg_") + os.urandom(8).hex()
        self._call_id = "call_" + os.urandom(8).hex()
        self._text = ""
        self._last: Delta | None = None

    def opening(self, outlets: Sequence[Outlet]) -> bytes:
        begun = self._response([], "in_progress", None)
        out = self._event("response.created", {"response": begun}) + self._event(
            "response.in_progress", {"response": begun}
        )
        out += self._event("response.output_item.added", {"item": self._item("in_progress"), "output_index": 0})
        if self._job.tool is not None:
            return out
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return out + self._event("response.content_part.added", {"content_index": 0, **self._place(), "part": part})

    def delta(self, outlet: Outlet, delta: Delta) -> bytes:
        self._last = delta
        if not delta.text:
            return b""
        self._text += delta.text
        if self._job.tool is not None:
            return self._event("response.function_call_arguments.delta", {"delta": delta.text, **self._place()})
        change = {"content_index": 0, "delta": delta.text, "logprobs": [], **self._place()}
        return self._event("response.output_text.delta", change)

    def closing(self, outlets: Sequence[Outlet]) -> bytes:
        if self._job.tool is not None:
            done = {"arguments": self._text, "name": self._job.tool, **self._place()}
            out = self._event("response.function_call_arguments.done", done)
        else:
            done = {"content_index": 0, "logprobs": [], "text": self._text, **self._place()}
            out = self._event("response.output_text.done", done)
            part = {"content_index": 0, "part": self._part(), **self._place()}
            out += self._event("response.content_part.done", part)
        item = self._item("completed")
        out += self._event("response.output_item.done", {"item": item, "output_index": 0})
        last = self._last or Delta("", [], "abort", None, 0)
        # The real server names the last event so whatever the end; its "status" tells.
        return out + self._event("response.completed", {"response": self._response([item], None, last)})

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        self._text = deltas[0].text
        return self._response([self._item("completed")], None, deltas[0])

    def _response(self, output: list[Any], status: str | None, last: Delta | None) -> dict[str, Any]:
        body, job = self._body, self._job
        cut = last is not None and last.finish_reason == "length"
        ended = "incomplete" if cut else "completed" if last and last.finish_reason == "stop" else "failed"
        return {
            "id": job.id,
            "created_at": job.created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": job.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "temperature": float(_or(body.get("temperature"), 1.0)),
            "tool_choice": body.get("tool_choice") or ("auto" if body.get("tools") else "none"),
            "tools": body.get("tools") or [],
            "top_p": float(_or(body.get("top_p"), 1.0)),
            "background": False,
            "max_output_tokens": job.sampling.max_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": body.get("reasoning"),
            "service_tier": "auto",
            "status": status or ended,
            "text": body.get("text"),
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": None if last is None else self._usage(last.count),
            "user": body.get("user"),
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def _item(self, status: str) -> dict[str, Any]:
        if self._job.tool is not None:
            call = {"arguments": self._text, "call_id": self._call_id, "name": self._job.tool}
            return call | {"type": "function_call", "id": self._item_id, "status": status}
        content = [self._part()] if status == "completed" else []
        item = {"id": self._item_id, "content": content, "role": "assistant", "status": status}
        return item | {"type": "message", "phase": None}

    def _part(self) -> dict[str, Any]:
        return {"annotations": [], "text": self._text, "type": "output_text", "logprobs": None}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0}

    def _usage(self, output_tokens: int) -> dict[str, Any]:
        turns: dict[str, list[int]] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
        out_turns: dict[str, list[int]] = {"output_tokens_per_turn": [], "tool_output_tokens_per_turn": []}
        return {
            "input_tokens": self._job.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0, **turns},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0, **out_turns},
            "total_tokens": self._job.prompt_tokens + output_tokens,
        }

    def _event(self, kind: str, value: dict[str, Any]) -> bytes:
        numbered = value | {"sequence_number": self._number, "type": kind}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_json(numbered))


def _message(item: Any) -> Any:
    if not isinstance(item, dict):
        raise bad_request("Every input item must be an object.")
    if item.get("type") in ("function_call", "function_call_output", "reasoning"):
        role = "tool" if item["type"] == "function_call_output" else "assistant"
        return {"role": role, "content": str(item.get("output") or json.dumps(item, ensure_ascii=False))}
    return {"role": item.get("role"), "content": item.get("content")}


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
