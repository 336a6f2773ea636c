"""/v1/messages: Anthropic's shapes over the chat path. Owns the translation of the body and the events."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from simulator.server_errors import ApiError, invalid, missing, to_json
from simulator.server_job import Job
from simulator.server_outlet import Delta, Outlet


def chat_body(body: dict[str, Any], counting: bool = False) -> dict[str, Any]:
    """The chat request that means the same; complains about missing fields in the OpenAI shape, as the real server."""
    needed = ("messages",) if counting else ("max_tokens", "messages")
    problems = [missing(f"body.{name}", body) for name in needed if body.get(name) is None]
    if problems:
        raise invalid(problems)
    chat = {key: value for key, value in body.items() if key not in ("system", "tools", "tool_choice", "messages")}
    chat["stop"] = body.get("stop_sequences")
    system = body.get("system")
    first = [{"role": "system", "content": system}] if system else []
    chat["messages"] = first + [_message(one) for one in body["messages"]]
    if body.get("tools"):
        chat["tools"] = [{"type": "function", "function": _function(tool)} for tool in body["tools"]]
        choice = body.get("tool_choice") or {}
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = {"tool": named, "any": "required", "none": "none"}.get(choice.get("type", ""), "auto")
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return chat


def error_body(error: ApiError) -> dict[str, Any]:
    """Validation errors ("Bad Request") keep the OpenAI shape on this endpoint too."""
    if error.kind == "Bad Request":
        return error.body()
    return {"type": "error", "error": {"type": error.kind, "message": error.message}}


class MessagesFace:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._block_open = False
        self._last: Delta | None = None

    def opening(self, outlets: Sequence[Outlet]) -> bytes:
        message: dict[str, Any] = {"id": self._job.id, "type": "message", "role": "assistant", "content": []}
        message |= {"model": self._job.model, "stop_reason": None, "stop_sequence": None, "usage": self._usage(0)}
        return _event("message_start", {"message": message})

    def delta(self, outlet: Outlet, delta: Delta) -> bytes:
        self._last = delta
        if not delta.text:
            return b""
        out = b""
        if not self._block_open:
            self._block_open = True
            out = _event("content_block_start", {"content_block": self._block({}, ""), "index": 0})
        change = {"type": "text_delta", "text": delta.text}
        if self._job.tool is not None:
            change = {"type": "input_json_delta", "partial_json": delta.text}
        return out + _event("content_block_delta", {"delta": change, "index": 0})

    def closing(self, outlets: Sequence[Outlet]) -> bytes:
        out = _event("content_block_stop", {"index": 0}) if self._block_open else b""
        stop_reason, stop_sequence = self._stop(self._last)
        change = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        out += _event("message_delta", {"delta": change, "usage": self._usage(sum(one.count for one in outlets))})
        return out + _event("message_stop", {})

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        stop_reason, stop_sequence = self._stop(deltas[0])
        tool_input = _parsed(deltas[0].text) if self._job.tool is not None else {}
        message = {
            "id": self._job.id,
            "type": "message",
            "role": "assistant",
            "content": [self._block(tool_input, deltas[0].text)],
            "model": self._job.model,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": self._usage(deltas[0].count),
        }
        return {key: value for key, value in message.items() if value is not None}

    def _block(self, tool_input: Any, text: str) -> dict[str, Any]:
        if self._job.tool is None:
            return {"type": "text", "text": text}
        name = f"chatcmpl-tool-{os.urandom(8).hex()}"
        return {"type": "tool_use", "id": name, "name": self._job.tool, "input": tool_input}

    def _usage(self, output_tokens: int) -> dict[str, int]:
        return {"input_tokens": self._job.prompt_tokens, "output_tokens": output_tokens}

    def _stop(self, last: Delta | None) -> tuple[str | None, str | None]:
        """As the real server: an abort has no stop_reason here."""
        finish = last.finish_reason if last is not None else None
        if last is None or finish not in ("stop", "length"):
            return None, None
        if finish == "length":
            return "max_tokens", None
        if self._job.tool is not None:
            return "tool_use", None
        if isinstance(last.stop_reason, str):
            return "stop_sequence", last.stop_reason
        return "end_turn", None


def _event(kind: str, value: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_json({"type": kind} | value))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    known = {"name": tool.get("name"), "description": tool.get("description")}
    return known | {"parameters": tool.get("input_schema") or {}}


def _message(message: Any) -> Any:
    if not isinstance(message, dict) or isinstance(message.get("content"), str):
        return message
    parts = [part for part in message.get("content") or [] if isinstance(part, dict)]
    return {"role": message.get("role"), "content": "".join(map(_part_text, parts))}


def _part_text(part: dict[str, Any]) -> str:
    if part.get("type") == "text":
        return str(part.get("text", ""))
    if part.get("type") == "tool_result":
        content = part.get("content")
        return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return json.dumps(part, ensure_ascii=False)
