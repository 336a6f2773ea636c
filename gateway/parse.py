"""Reads of a request body what routing needs and nothing more; edits it by splicing, never by writing it anew.

Owns no opinion on whether the request makes sense: that is the engine's, whose error reaches the client."""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec
from msgspec import Raw, Struct

from core.errors import BadRequest

IMAGE_TOKENS = 1000  # what a picture, sound or file part counts for in the estimate; its bytes say nothing
MAX_SEQUENCES = 65_536  # answers to one request; a number without a bound would overflow the router's arithmetic
NOTHING = Raw(b"null")
EMPTY = (NOTHING, Raw(b"[]"))
NO_CALL = Raw(b'"none"')
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)  # what tells how deep a place of JSON is
COLON = re.compile(rb"\s*:")


class Message(Struct):
    role: str = ""
    content: Raw = NOTHING


class StreamOptions(Struct):
    include_usage: bool | None = None
    include_energy: bool | None = None


class Fields(Struct):
    """The fields of all dialects that routing reads. Everything else passes by."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    messages: list[Message] | None = None
    prompt: Raw = NOTHING
    input: Raw = NOTHING
    system: Raw = NOTHING
    instructions: Raw = NOTHING
    tools: Raw = NOTHING
    tool_choice: Raw = NOTHING
    stream_options: StreamOptions | None = None
    previous_response_id: Raw = NOTHING
    conversation: Raw = NOTHING
    background: bool | None = None
    temperature: Raw = NOTHING
    stop: Raw = NOTHING
    stop_sequences: Raw = NOTHING
    response_format: Raw = NOTHING
    text: Raw = NOTHING
    thinking: Raw = NOTHING
    reasoning: Raw = NOTHING
    reasoning_effort: Raw = NOTHING
    nvext: Raw = NOTHING


DECODER = msgspec.json.Decoder(Fields, strict=False)


class Parsed(Struct, frozen=True):
    """`prompt_bytes` is text only; `exact_tokens` is set when the prompt came as token ids; `extra_tokens` are for
    parts without text; `sequences` = n x prompts."""

    fields: Fields
    prompt_bytes: int
    exact_tokens: int | None
    extra_tokens: int
    sequences: int
    template: bytes
    max_tokens: int | None

    @property
    def stream(self) -> bool:
        return bool(self.fields.stream)

    @property
    def wants_usage(self) -> bool:
        options = self.fields.stream_options
        return options is not None and bool(options.include_usage)

    @property
    def wants_energy(self) -> bool:
        options = self.fields.stream_options
        return options is not None and bool(options.include_energy)


def parse(body: bytes, salt: bytes) -> Parsed:
    """`salt` tells apart templates of different keys and routes. Raises BadRequest with the place of the fault."""
    try:
        fields = DECODER.decode(body)
        return _measure(fields, salt)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        param = where.rstrip("`").lstrip(".") or None
        raise BadRequest(f"{message}" + (f" (at {param})" if param else ""), param=param, code="invalid_type") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from None


def _measure(fields: Fields, salt: bytes) -> Parsed:
    size = extra = 0
    exact: int | None = None
    prompts = 1
    messages = fields.messages or ()
    for part in (*[m.content for m in messages], fields.system, fields.instructions):
        if part is not NOTHING:
            part_bytes, part_extra = _text_size(part)
            size += part_bytes
            extra += part_extra
    size += len(bytes(fields.tools)) if fields.tools != NOTHING else 0
    extra += 4 * len(messages)  # role marks of the chat template
    for raw in (fields.prompt, fields.input):
        if raw != NOTHING:
            more, exact, prompts = _prompt_size(bytes(raw))
            size += more
    sequences = prompts * max(1, fields.n or 1, fields.best_of or 1)
    if sequences > MAX_SEQUENCES:
        raise BadRequest(f"n x prompts is more than {MAX_SEQUENCES} answers", param="n", code="too_many_answers")
    limit = fields.max_completion_tokens
    if limit is None:
        limit = fields.max_output_tokens if fields.max_tokens is None else fields.max_tokens
    return Parsed(fields, size, exact, extra, sequences, _template(fields, salt), limit)


def _text_size(raw: Raw) -> tuple[int, int]:
    data = bytes(raw)
    if not data.startswith(b"["):
        return max(0, len(data) - 2) if data.startswith(b'"') else 0, 0
    size = extra = 0
    for part in msgspec.json.decode(data):
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            size += len(text.encode("utf-8", "replace"))
        else:
            extra += IMAGE_TOKENS
    return size, extra


def _prompt_size(data: bytes) -> tuple[int, int | None, int]:
    """(text bytes, exact tokens or None, number of prompts) of a `prompt` or `input` field in any of its forms."""
    if not data.startswith(b"["):
        return max(0, len(data) - 2), None, 1
    items = msgspec.json.decode(data)
    if items and all(isinstance(item, int) for item in items):
        return 0, len(items), 1
    if items and all(isinstance(item, list) for item in items):
        return 0, sum(len(item) for item in items), len(items)
    if items and all(isinstance(item, str) for item in items):
        return sum(len(item.encode("utf-8", "replace")) for item in items), None, len(items)
    return len(data), None, 1


def _template(fields: Fields, salt: bytes) -> bytes:
    """Requests of one application share its system prompt and tools, and so the shape of their answers."""
    told = [salt]
    for raw in (fields.system, fields.instructions, fields.tools):
        told.append(b"null" if raw is NOTHING else bytes(raw)[:4096])
    for message in (fields.messages or ())[:1]:
        if message.role in ("system", "developer"):
            told.append(bytes(message.content)[:4096])
    return blake2b(b"".join(told), digest_size=8).digest()


def prompt_text(fields: Fields) -> str:
    """The prompt as one text, for an exact count."""
    parts: list[str] = []
    for raw in [m.content for m in fields.messages or ()] + [
        fields.system,
        fields.instructions,
        fields.prompt,
        fields.input,
    ]:
        if raw != NOTHING:
            parts += _texts(msgspec.json.decode(raw))
    return "\n".join(parts)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, dict):
        return _texts(value.get("text", value.get("content")))
    return []


def splice(body: bytes, field: bytes) -> bytes:
    """Puts a field first in the object. A later one of the same name, the client's own, still wins."""
    at = body.index(b"{") + 1
    return body[:at] + field + b"," + body[at:]


def ask_for_ids(body: bytes, fields: Fields) -> bytes:
    """The body with `return_token_ids` on; unchanged where that would change the answer: vLLM leaves the text of an
    echoed prompt out, and sends chunks of its own to whoever may call tools."""
    may_call = fields.tools not in EMPTY and fields.tool_choice != NO_CALL
    if may_call or b'"return_token_ids"' in body or b'"echo"' in body:
        return body
    return splice(body, b'"return_token_ids":true')


def rename(body: bytes, model: str) -> bytes:
    """The body, which `parse` has accepted, with `model` as its model. A key of that name further in is not ours."""
    name = msgspec.json.encode(model)
    parts: list[bytes] = []
    depth = done = 0
    is_model = False
    for token in TOKEN.finditer(body):
        first = body[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        elif depth == 1 and COLON.match(body, token.end()):
            is_model = msgspec.json.decode(token.group()) == "model"
        elif depth == 1 and is_model:
            parts += [body[done : token.start()], name]
            done, is_model = token.end(), False
    return b"".join([*parts, body[done:]])


def ask_for_usage(body: bytes, fields: Fields) -> bytes:
    """The body with `stream_options.include_usage` on."""
    if fields.stream_options is None and b'"stream_options"' not in body:
        return splice(body, b'"stream_options":{"include_usage":true}')
    # Rare: the client sent options without it. They are inside an object, which only a decoded copy reaches.
    whole = msgspec.json.decode(body)
    options = dict(whole.get("stream_options") or {})
    options.pop("continuous_usage_stats", None)  # without include_usage an engine ignores it; with it, it would not
    whole["stream_options"] = {**options, "include_usage": True}
    return msgspec.json.encode(whole)
