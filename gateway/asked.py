"""What of a request tells of its answer's length: the last thing asked, what was answered before, what is declared.

Reads bodies of every dialect and never refuses one: whether a field makes sense is the engine's to say. Of a text only
the ends are looked at, so the time does not grow with it."""

from __future__ import annotations

from math import isfinite

import msgspec
from msgspec import Raw

from core.errors import BadRequest
from gateway.parse import EMPTY, NOTHING, Fields, Message, Parsed
from predictor.features import END_BYTES, Asked, ends_of
from predictor.tokens import BYTES_PER_TOKEN

HINT_HEADER = b"x-joulegate-output-tokens"
MOST_HINTED = 1 << 20
# Tokens of thought by the word for them; only their order matters, what they come to is learnt.
EFFORTS = {"none": 0, "minimal": 256, "low": 1024, "medium": 4096, "high": 16_384, "xhigh": 32_768}
LIST, STRING = b'["'
USERS = ("user", "")


def asked_of(parsed: Parsed, hint: bytes | None = None) -> Asked:
    """`hint` as the client's header has it; BadRequest when it is no positive number of tokens."""
    f = parsed.fields
    last, before, turns = _last_asked(f)
    text, size = _text(last)
    return Asked(
        prompt=text,
        prompt_bytes=parsed.prompt_bytes,
        turns=turns,
        last_answer_tokens=None if before is None else round(_text(before)[1] / BYTES_PER_TOKEN),
        max_tokens=parsed.max_tokens,
        stop=f.stop not in EMPTY or f.stop_sequences not in EMPTY,
        tools=f.tools not in EMPTY,
        response_format=f.response_format != NOTHING or b'"json' in bytes(f.text)[:END_BYTES],
        n=parsed.sequences,
        temperature=_number(f.temperature),
        reasoning_tokens=_reasoning(f),
        hint_tokens=_hint(f, hint),
        last_bytes=size,
    )


def _last_asked(f: Fields) -> tuple[Raw, Raw | None, int]:
    """The last text of a user, the last answer, the number of turns."""
    messages = f.messages
    if messages is None and bytes(f.input).startswith(b"["):
        messages = _items(f.input)
    if not messages:
        return (f.prompt if f.prompt != NOTHING else f.input), None, 1
    asking = answer = None
    turns = 0
    for message in messages:
        if message.role in USERS:
            asking, turns = message.content, turns + 1
        elif message.role == "assistant":
            answer = message.content
    return messages[-1].content if asking is None else asking, answer, turns


def _items(data: Raw) -> list[Message] | None:
    """The messages of a Responses API `input`; None where it is a list of something else."""
    try:
        return msgspec.json.decode(data, type=list[Message])
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(raw: Raw) -> tuple[bytes, int]:
    """(ends of a text, its whole size in bytes) of a JSON string, or of a list that has texts."""
    view = memoryview(raw)
    if view[0] == LIST:
        text = b"\n".join(_parts(raw))
        return ends_of(text), len(text)
    if view[0] != STRING:
        return b"", 0
    inside = view[1:-1]
    size = len(inside)
    if size <= 2 * END_BYTES:
        whole = bytes(inside)
        if b"\\" in whole:
            whole = _decoded(raw, whole)
        return whole, size
    return ends_of(_unescaped(bytes(inside[:END_BYTES])) + b"\n" + _unescaped(bytes(inside[-END_BYTES:]))), size


def _decoded(raw: Raw, inside: bytes) -> bytes:
    try:
        return msgspec.json.decode(raw, type=str).encode("utf-8", "replace")
    except (msgspec.DecodeError, UnicodeDecodeError):  # an escape that is none
        return _unescaped(inside)


def _unescaped(some: bytes) -> bytes:
    """Of a cut string, the escapes that matter; the others are letters of few texts."""
    return some.replace(b"\\n", b"\n").replace(b'\\"', b'"').replace(b"\\t", b"\t") if b"\\" in some else some


def _parts(raw: Raw) -> list[bytes]:
    try:
        items = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return []
    texts = (item.get("text") if isinstance(item, dict) else item for item in items)
    return [text.encode("utf-8", "replace") for text in texts if isinstance(text, str)]


def _value(raw: Raw) -> object:
    if raw is NOTHING or raw == NOTHING:
        return None
    try:
        found: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found


def _number(raw: Raw) -> float | None:
    value = _value(raw)
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    return float(value) if good and isinstance(value, (int, float)) else None


def _at(raw: Raw, *path: str) -> object:
    value = _value(raw)
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _reasoning(f: Fields) -> int | None:
    if f.thinking is f.reasoning is f.reasoning_effort is NOTHING:
        return None
    budget = _at(f.thinking, "budget_tokens")
    if isinstance(budget, int) and budget > 0:
        return min(MOST_HINTED, budget)
    effort = _value(f.reasoning_effort) or _at(f.reasoning, "effort")
    return EFFORTS.get(effort) if isinstance(effort, str) else None


def _hint(f: Fields, header: bytes | None) -> int | None:
    """The header, then NVIDIA Dynamo's `nvext.agent_hints.osl`, the output sequence length that an agent expects."""
    if header is not None:
        if not header.isdigit() or len(header) > 9 or int(header) == 0:
            name = HINT_HEADER.decode()
            raise BadRequest(f"{name} must be a positive number of tokens", param=name, code="invalid_hint")
        return min(MOST_HINTED, int(header))
    if f.nvext is NOTHING:
        return None
    hinted = _at(f.nvext, "agent_hints", "osl")
    return min(MOST_HINTED, hinted) if isinstance(hinted, int) and hinted > 0 else None
