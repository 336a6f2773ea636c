"""Errors in the words of the real server (vLLM 0.32). Owns their texts and JSON shapes; decides nothing."""

from __future__ import annotations

import json
from typing import Any


class ApiError(Exception):
    """An error with the OpenAI-like body; /v1/messages turns some of them into Anthropic's shape."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def to_json(value: Any) -> bytes:
    """Compact JSON; a lone surrogate from a client's escape leaves as a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def bad_request(message: str, param: str | None = None, value: object = None) -> ApiError:
    if param is not None:
        message += f" (parameter={param})" if value is None else f" (parameter={param}, value={value})"
    return ApiError(400, "BadRequestError", message, param)


def invalid(problems: list[dict[str, object]]) -> ApiError:
    """What pydantic found, as the real server prints it."""
    label = "error" if len(problems) == 1 else "errors"
    lines = "".join(f"\n  {problem}" for problem in problems)
    return ApiError(400, "Bad Request", f"{len(problems)} validation {label}:{lines}", str(problems[0]["loc"]))


def missing(loc: str, holder: object) -> dict[str, object]:
    return {"type": "missing", "loc": loc, "msg": "Field required", "input": summary(holder)}


def summary(value: object) -> object:
    if isinstance(value, str):
        return value if len(value) <= 200 else value[:200] + "...[truncated]"
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)


def unsupported_media_type() -> ApiError:
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return ApiError(400, "Bad Request", message)


def unknown_model(asked: str, served: str) -> ApiError:
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return ApiError(404, "NotFoundError", message, "model")


def too_long(limit: int, tokens: int) -> ApiError:
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {tokens} input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    )
    return bad_request(message, "input_tokens", tokens)


def shutting_down() -> ApiError:
    return ApiError(500, "InternalServerError", "cannot schedule new futures after shutdown")


def engine_failed() -> ApiError:
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return ApiError(500, "InternalServerError", message)
