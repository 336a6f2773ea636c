"""The public routes and the dialect each one speaks: OpenAI, OpenAI Responses or Anthropic.

Owns the shapes of errors on the wire, in an answer and inside a stream. Refuses to know what went wrong."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from core.errors import JoulegateError


class Dialect(Enum):
    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Route:
    """A POST that goes to an instance. `generates` routes are predicted, classed and queued; the others (tokenize,
    count_tokens) take no slot. `usage_on_request` routes tell a stream's usage only when asked."""

    path: str
    dialect: Dialect
    generates: bool = True
    usage_on_request: bool = False
    embeds: bool = False
    chat: bool = False


ROUTES = {
    route.path: route
    for route in (
        Route("/v1/chat/completions", Dialect.OPENAI, usage_on_request=True, chat=True),
        Route("/v1/completions", Dialect.OPENAI, usage_on_request=True),
        Route("/v1/responses", Dialect.RESPONSES),
        Route("/v1/messages", Dialect.ANTHROPIC),
        Route("/v1/messages/count_tokens", Dialect.ANTHROPIC, generates=False),
        Route("/v1/embeddings", Dialect.OPENAI, embeds=True),
        Route("/tokenize", Dialect.OPENAI, generates=False),
        Route("/detokenize", Dialect.OPENAI, generates=False),
    )
}

ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    408: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


def dialect_of(path: str) -> Dialect:
    """For errors on any path, also one that does not exist."""
    if path.startswith("/v1/messages"):
        return Dialect.ANTHROPIC
    return Dialect.RESPONSES if path.startswith("/v1/responses") else Dialect.OPENAI


def _anthropic(status: int, message: str, type_: str = "") -> dict[str, object]:
    kind = ANTHROPIC_TYPES.get(status) or (type_ if status < 500 and type_ else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _openai(message: str, type_: str, param: str | None, code: object) -> dict[str, object]:
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def error_body(dialect: Dialect, error: JoulegateError) -> bytes:
    if dialect is Dialect.ANTHROPIC:
        return msgspec.json.encode(_anthropic(error.status, error.message, error.type))
    return msgspec.json.encode(_openai(error.message, error.type, error.param, error.code))


def error_event(dialect: Dialect, error: JoulegateError) -> bytes:
    """One SSE event that the official clients raise as an error."""
    body = error_body(dialect, error)
    if dialect is Dialect.OPENAI:
        return b"data: " + body + b"\n\n"
    if dialect is Dialect.RESPONSES:
        fields = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        body = msgspec.json.encode(fields | _openai(error.message, error.type, error.param, error.code))
    return b"event: error\ndata: " + body + b"\n\n"


def upstream_message(body: bytes) -> str:
    """What an instance said in any of the shapes that vLLM uses for errors."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return body[:200].decode("utf-8", "replace") or "no message"
    if isinstance(said, dict):
        error = said.get("error", said.get("detail", said))
        if isinstance(error, dict):
            error = error.get("message", error)
        return str(error)[:1000]
    return str(said)[:1000]


def is_shaped(dialect: Dialect, body: bytes) -> bool:
    """Whether an instance's error body already has the shape that this dialect's clients expect."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    if not isinstance(said, dict) or not isinstance(said.get("error"), dict):
        return False
    return (said.get("type") == "error") == (dialect is Dialect.ANTHROPIC) and "message" in said["error"]


def reshape(dialect: Dialect, status: int, body: bytes) -> bytes:
    """An instance's error in the client's dialect; unchanged where it already is."""
    if is_shaped(dialect, body):
        return body
    message = upstream_message(body)
    if dialect is Dialect.ANTHROPIC:
        return msgspec.json.encode(_anthropic(status, message))
    kind = "not_found_error" if status == 404 else "invalid_request_error" if status < 500 else "server_error"
    return msgspec.json.encode(_openai(message, kind, None, status))
