"""Owns the reading of answers: what a body says, apart from ids, times and the merging of chunks."""

from __future__ import annotations

import json
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
DONE = b"data: [DONE]\n\n"


def events(body: bytes) -> list[Any]:
    """The JSON of every data line of a stream; the [DONE] at its end is left out."""
    lines = (line[6:] for line in body.split(b"\n") if line.startswith(b"data: "))
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def strip_usage(body: bytes) -> bytes:
    """Take the one usage event before [DONE] out of a stream; every other byte stays."""
    assert body.endswith(DONE), body[-200:]
    pieces = body[: -len(DONE)].split(b"\n\n")
    assert pieces.pop() == b""
    usage = [i for i, piece in enumerate(pieces) if piece.startswith(b"data: ") and _is_usage(json.loads(piece[6:]))]
    assert usage == [len(pieces) - 1], f"usage events at {usage} of {len(pieces)}"
    return b"".join(piece + b"\n\n" for piece in pieces[:-1]) + DONE


def strip_ids(body: bytes) -> bytes:
    """Every event with its ids set to null, at the depth where vLLM has them; every other byte stays."""
    return b"\n\n".join(map(_without_ids, body.split(b"\n\n")))


def _without_ids(event: bytes) -> bytes:
    if not event.startswith(b"data: {"):
        return event
    said = json.loads(event[6:])
    assert json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode() == event[6:], "it is not written anew"
    for holder in (said, *said["choices"]):
        for name in ("token_ids", "prompt_token_ids"):
            if holder.get(name) is not None:
                holder[name] = None
    return b"data: " + json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def _is_usage(event: dict[str, Any]) -> bool:
    return event.get("choices") == [] and event.get("usage") is not None


def meaning(path: str, body: bytes) -> dict[str, Any]:
    """Joined text, ends and usage of an answer, streamed or not: equal for equal greedy requests."""
    streamed = body.startswith((b"data:", b"event:"))
    if path == RESPONSES:
        return _responses(events(body)) if streamed else _responses_object(json.loads(body))
    if path == MESSAGES:
        return _messages(events(body)) if streamed else _messages_object(json.loads(body))
    return _choices(events(body) if streamed else [json.loads(body)])


def _choices(parts: list[Any]) -> dict[str, Any]:
    text: dict[int, str] = {}
    tokens: dict[int, list[Any]] = {}
    ends: dict[int, Any] = {}
    usage = None
    for part in parts:
        usage = part.get("usage") or usage
        for choice in part["choices"]:
            at = choice["index"]
            message = choice.get("delta") or choice.get("message") or {}
            piece = choice["text"] if "text" in choice else message.get("content")
            text[at] = text.get(at, "") + (piece or "")
            tokens.setdefault(at, []).extend(_tokens(choice.get("logprobs")))
            if choice.get("finish_reason"):
                ends[at] = (choice["finish_reason"], choice.get("stop_reason"))
    counted = {k: usage[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")} if usage else None
    return {"text": text, "ends": ends, "tokens": tokens, "usage": counted}


def _tokens(logprobs: dict[str, Any] | None) -> list[str]:
    if not logprobs:
        return []
    return logprobs["tokens"] if "tokens" in logprobs else [entry["token"] for entry in logprobs["content"]]


def _responses(parts: list[Any]) -> dict[str, Any]:
    deltas = [part["delta"] for part in parts if part["type"] == "response.output_text.delta"]
    last = _responses_object(parts[-1]["response"])
    assert "".join(deltas) == last["text"]
    return last


def _responses_object(answer: dict[str, Any]) -> dict[str, Any]:
    text = "".join(part["text"] for item in answer["output"] for part in item["content"])
    usage = {k: answer["usage"][k] for k in ("input_tokens", "output_tokens", "total_tokens")}
    return {"text": text, "ends": (answer["status"], answer["incomplete_details"]), "usage": usage}


def _messages(parts: list[Any]) -> dict[str, Any]:
    text, ends, usage = "", None, None
    for part in parts:
        if part["type"] == "content_block_delta":
            text += part["delta"]["text"]
        elif part["type"] == "message_delta":
            ends, usage = part["delta"]["stop_reason"], part["usage"]
    return {"text": text, "ends": ends, "usage": usage}


def _messages_object(answer: dict[str, Any]) -> dict[str, Any]:
    text = "".join(part["text"] for part in answer["content"])
    return {"text": text, "ends": answer["stop_reason"], "usage": answer["usage"]}
