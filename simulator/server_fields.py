"""Reads request bodies: types as pydantic would judge them, sampling limits as the real server does.

Owns `Sampling`, the wishes that all generating endpoints share. Unknown fields are ignored, as they are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.server_errors import bad_request, invalid, summary

INTS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "n",
    "priority",
    "seed",
    "emulated_output_tokens",
)
FLOATS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p")
BOOLS = ("stream", "ignore_eos", "return_token_ids", "continue_final_message", "add_generation_prompt", "echo")
PRIORITY_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class Sampling:
    n: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    stop_ids: frozenset[int]
    include_stop: bool
    priority: int
    own_end: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool


def check_types(body: dict[str, Any]) -> None:
    """Raises for every known field of the wrong type; rewrites what pydantic would convert."""
    problems = []
    for names, check in ((INTS, _int_problem), (FLOATS, _float_problem), (BOOLS, _bool_problem)):
        for name in names:
            value = body.get(name)
            if value is not None and (problem := check(body, name, value)):
                kind, message = problem
                problems.append({"type": kind, "loc": f"body.{name}", "msg": message, "input": summary(value)})
    if problems:
        raise invalid(problems)


def read_sampling(body: dict[str, Any], max_tokens: int | None, max_model_len: int) -> Sampling:
    """`body` has passed `check_types`. Raises 400 with the real server's sentence for values out of range."""
    n = _or(body.get("n"), 1)
    min_tokens = _or(body.get("min_tokens"), 0)
    options = body.get("stream_options") or {}
    stream = bool(body.get("stream"))
    if options and not stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    _check_range(body, n, max_tokens, min_tokens, max_model_len)
    stop = body.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else tuple(str(one) for one in stop)
    if "" in stop:
        raise bad_request("stop cannot contain an empty string.")
    return Sampling(
        n=n,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(body.get("ignore_eos")),
        stop=stop,
        stop_ids=frozenset(one for one in body.get("stop_token_ids") or () if isinstance(one, int)),
        include_stop=bool(body.get("include_stop_str_in_output")),
        priority=max(-PRIORITY_LIMIT, min(_or(body.get("priority"), 0), PRIORITY_LIMIT - 1)),
        own_end=max(0, _or(body.get("emulated_output_tokens"), 0)),
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        return_token_ids=bool(body.get("return_token_ids")),
    )


def _check_range(body: dict[str, Any], n: int, max_tokens: int | None, min_tokens: int, max_model_len: int) -> None:
    temperature = body.get("temperature")
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.")
    if max_tokens is not None and max_tokens < 1:
        raise bad_request(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    if max_tokens is not None and max_tokens > max_model_len:
        sentence = f"max_tokens={max_tokens} cannot be greater than max_model_len={max_model_len}."
        raise bad_request(f"{sentence} Please request fewer output tokens.", "max_tokens", max_tokens)
    if temperature is not None and temperature < 0:
        message = f"temperature must be non-negative, got {float(temperature)}."
        raise bad_request(message, "temperature", float(temperature))
    if temperature is not None and temperature > 2:
        message = f"temperature must be in [0, 2], got {float(temperature)}."
        raise bad_request(message, "temperature", float(temperature))
    if n > 1 and temperature == 0:
        raise bad_request(f"n must be 1 when using greedy sampling, got {n}.")
    top_p = body.get("top_p")
    if top_p is not None and not 0 < top_p <= 1:
        raise bad_request(f"top_p must be in (0, 1], got {float(top_p)}.", "top_p", float(top_p))
    if min_tokens < 0:
        raise bad_request(f"min_tokens must be greater than or equal to 0, got {min_tokens}.")
    if max_tokens is not None and min_tokens > max_tokens:
        raise bad_request(f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.")
    if body.get("cache_salt") == "":
        raise bad_request("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _int_problem(body: dict[str, Any], name: str, value: Any) -> tuple[str, str] | None:
    if isinstance(value, int):
        body[name] = int(value)
        return None
    if isinstance(value, float):
        if not value.is_integer():
            return "int_from_float", "Input should be a valid integer, got a number with a fractional part"
        body[name] = int(value)
        return None
    if not isinstance(value, str):
        return "int_type", "Input should be a valid integer"
    try:
        body[name] = int(value)
    except ValueError:
        return "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
    return None


def _float_problem(body: dict[str, Any], name: str, value: Any) -> tuple[str, str] | None:
    if not isinstance(value, int | float | str):
        return "float_type", "Input should be a valid number"
    try:
        body[name] = float(value)
    except ValueError:
        return "float_parsing", "Input should be a valid number, unable to parse string as a number"
    return None


def _bool_problem(body: dict[str, Any], name: str, value: Any) -> tuple[str, str] | None:
    if isinstance(value, bool):
        return None
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    known = words.get(str(value).lower())
    if known is None:
        return "bool_parsing", "Input should be a valid boolean, unable to interpret input"
    body[name] = known
    return None
