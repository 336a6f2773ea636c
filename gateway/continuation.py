"""How a stream goes on at another instance: whether it can, where it is cut, what the other instance is asked.

Pure but for the decoding of ids, which an engine does. The place of the cut is the last one at which the ids say at
least what the client got and end no character half-way: from half a character vLLM would repeat the whole prompt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gateway.token_stream import Answer

Decode = Callable[[list[int]], Awaitable[str]]
STEPS_BACK = 8  # tokens: the bytes of half a character are three at most, garbage may be longer
LEAD_TOKENS = 6  # of the prompt, before ids whose text depends on what stands before them
HALF = "\ufffd"
# What only the chat route knows, or what the prompt's ids have settled.
CHAT_ONLY = (
    "messages", "add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "documents",
    "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "include_reasoning", "max_completion_tokens",
    "logprobs", "top_logprobs", "response_format", "mm_processor_kwargs", "truncate_prompt_tokens",
    "add_special_tokens", "return_prompt_text",
)  # fmt: skip
# The grammar or the search would start anew at the other instance, or the answer is about the prompt.
BOUND = (
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag",
    "use_beam_search", "prompt_logprobs", "prompt_embeds", "kv_transfer_params", "suffix",
)  # fmt: skip


class Cut(Struct, frozen=True):
    """Where a stream is cut: `ids` are the generated ones that the other instance gets, `held` the text they say beyond
    what the client got, `dropped` how many later ids it makes anew."""

    ids: list[int]
    held: str
    dropped: int


def stays_because(asked: Mapping[str, Any], answer: Answer | None) -> str:
    """Why a stream of this request cannot go on elsewhere; empty if it can. `answer` is folded."""
    if answer is None:
        return "its token ids are not kept (docs/migration.md)"
    if not answer.prompt:
        return "the instance sent no token ids"
    for name in BOUND:
        if asked.get(name) not in (None, False):
            return f"{name} cannot be continued"
    if (asked.get("response_format") or {}).get("type", "text") != "text":
        return "response_format cannot be continued"
    if answer.reasoning and (not answer.text or stops_of(asked)):
        return "its reasoning is not over"
    contents = [message.get("content") for message in asked.get("messages") or ()]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    if any(isinstance(part, dict) and "text" not in part for part in parts):
        return "its prompt is more than text"
    return ""


def stops_of(asked: Mapping[str, Any]) -> tuple[str, ...]:
    stop = asked.get("stop") or ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


async def cut_of(answer: Answer, decode: Decode) -> Cut | None:
    """None if there is no clean place near the end."""
    ids, sent = answer.ids.tolist(), answer.text
    lead: list[int] = []
    lead_text = ""
    for at in range(len(ids), max(-1, len(ids) - STEPS_BACK - 1), -1):
        said = await decode(ids[:at]) if at else ""
        if at == len(ids) and not answer.reasoning and said[:1] != sent[:1] and sent and HALF not in said[:1]:
            # Some tokenizers drop the space at the beginning of a text: then it is told apart behind other tokens.
            lead = answer.prompt.tolist()[-LEAD_TOKENS:]
            lead_text = await decode(lead)
        if lead:
            said = (await decode(lead + ids[:at])).removeprefix(lead_text)
        if answer.reasoning:
            if said.endswith(sent):
                return Cut(ids[:at], "", len(ids) - at)
        elif said.startswith(sent) and (not said.endswith(HALF) or said == sent):
            return Cut(ids[:at], said[len(sent) :], len(ids) - at)
    return None


def left_of(asked: Mapping[str, Any], answer: Answer, context_tokens: int, *, chat: bool) -> int:
    """How many tokens more the request allows."""
    limit = asked.get("max_completion_tokens") if chat else None
    limit = asked.get("max_tokens") if limit is None else limit
    if limit is None:
        limit = context_tokens - len(answer.prompt) if chat else 16  # OpenAI's default for completions, and vLLM's
    return int(limit) - len(answer.ids)


def request_of(asked: Mapping[str, Any], answer: Answer, cut: Cut, left: int, *, chat: bool) -> bytes:
    """The body for /v1/completions. `left`: tokens that may still come after all of `answer`."""
    body = {key: value for key, value in asked.items() if not chat or key not in CHAT_ONLY}
    options = asked.get("stream_options") or {}
    body |= {
        "prompt": answer.prompt.tolist() + cut.ids,
        "max_tokens": left + cut.dropped,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": continuous(options)},
        "return_token_ids": True,
    }
    if asked.get("min_tokens"):
        body["min_tokens"] = max(0, int(asked["min_tokens"]) - len(cut.ids))
    if chat and asked.get("logprobs"):
        body["logprobs"] = int(asked.get("top_logprobs") or 0)
    return msgspec.json.encode(body)


def continuous(options: Mapping[str, Any]) -> bool:
    """vLLM ignores one without the other."""
    return bool(options.get("include_usage") and options.get("continuous_usage_stats"))


class Seam:
    """The text across the cut. What A held back, because it might become a stop string, goes out as soon as it cannot;
    a stop string that begins in A's text and ends in B's is seen here, for B does not know its beginning. `sent` is
    what the client got of A's text: with `include_stop` engines hold nothing back, and it may begin there."""

    def __init__(self, sent: str, held: str, stops: Sequence[str], *, include_stop: bool) -> None:
        self._stops = stops
        self._include = include_stop
        self._longest = max(map(len, stops), default=1) - 1  # of a beginning
        before = sent[-self._longest :] if include_stop and self._longest else ""
        self._text = before + held
        self._edge = len(self._text)
        self._out = len(before)
        self._over = False

    def pass_on(self, text: str, *, last: bool) -> tuple[str, str | None]:
        """(what may go to the client, the stop string that ends the answer)."""
        if self._over:
            return text, None
        self._text += text
        for at, stop in sorted((self._text.find(stop), stop) for stop in self._stops):
            if 0 <= at < self._edge:
                return self._text[self._out : at + len(stop) if self._include else at], stop
        self._over = last or len(self._text) - self._longest >= self._edge
        held = 0 if self._over or self._include else self._longest
        begin, self._out = self._out, max(self._out, len(self._text) - held)
        return self._text[begin : self._out], None
