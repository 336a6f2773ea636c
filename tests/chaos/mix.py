"""The requests of a chaos run and the judgement of their answers against the text that must come."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
STOP_MORE = 4  # tokens that usage may count more than the engine would where a stop string lies across a cut
USAGE = {"include_usage": True}
TOPICS = ("the sea", "the movie", "a city", "two friends", "old tools", "a long day", "bread", "the night")


@dataclass(frozen=True)
class Wish:
    """One request. `key`: wishes with one key have one answer. `leaves_after`: bytes after which the client hangs up."""

    path: str
    body: dict[str, Any]
    leaves_after: int = 0

    @property
    def key(self) -> str:
        ignored = ("stream", "stream_options")
        return json.dumps([self.path, {k: v for k, v in self.body.items() if k not in ignored}], sort_keys=True)

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass(frozen=True)
class Truth:
    text: str
    finish: str
    stop: Any
    usage: tuple[int, int] | None


@dataclass
class Verdict:
    """`kind`: correct, lost, truncated, duplicated, malformed, cut (by the gateway's own death), left (by the client) or
    turned_away (by a gateway that ends, before anything was begun: to be asked again)."""

    kind: str
    why: str = ""
    over_counted: bool = False  # usage, where a stop string ends the answer just behind a cut (docs/migration.md)


def wishes(seed: int, model: str, topics: int, leave_share: float) -> Iterator[Wish]:
    """For ever. A limited number of different prompts, so that a reference of each is affordable."""
    draw = random.Random(seed)
    while True:
        prompt = f"Tell me of {draw.choice(TOPICS)} {draw.randrange(topics)}"
        limit = draw.choice((20, 40, 60, 90, 150))
        body: dict[str, Any] = {"model": model, "max_tokens": limit, "temperature": 0}
        path = draw.choice((CHAT, TEXT))
        body |= {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
        if draw.random() < 0.5:
            body["ignore_eos"] = True
        if draw.random() < 0.25:
            body["stop"] = draw.choice((["ing a", "er th"], " wo", ["and the"]))
        if draw.random() < 0.85:
            body["stream"] = True
            if draw.random() < 0.5:
                body["stream_options"] = USAGE
        leaves = draw.randrange(300, 6000) if draw.random() < leave_share else 0
        yield Wish(path, body, leaves)


def judge(wish: Wish, status: int, body: bytes, truth: Truth) -> Verdict:
    if status != 200:
        return Verdict("lost", f"status {status}: {body[:300]!r}")
    try:
        return _judge_stream(wish, body, truth) if wish.streams else _judge_whole(wish, json.loads(body), truth)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return Verdict("malformed", f"{type(error).__name__}: {error}: {body[-300:]!r}")


def _judge_whole(wish: Wish, said: Any, truth: Truth) -> Verdict:
    choice = said["choices"][0]
    text = choice["message"]["content"] if wish.path == CHAT else choice["text"]
    usage = (said["usage"]["prompt_tokens"], said["usage"]["completion_tokens"])
    return _compare(text, [(choice["finish_reason"], choice["stop_reason"])], [usage], truth)


def _judge_stream(wish: Wish, body: bytes, truth: Truth) -> Verdict:
    *events, rest = body.split(b"\n\n")
    if rest:
        return Verdict("malformed", f"half an event at the end: {rest[:200]!r}")
    if any(not event.startswith(b"data: ") for event in events):
        return Verdict("malformed", "an event without data")
    if b'"error":{' in events[-1]:
        return Verdict("lost", events[-1].decode("utf-8", "replace")[:300])
    if events.pop() != b"data: [DONE]" or b"data: [DONE]" in events:
        return Verdict("malformed", "no [DONE] at the end, or two")
    chunks = [json.loads(event[6:]) for event in events]
    if len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) != 1:
        return Verdict("malformed", "more than one id, time, model or object")
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    if any(choice.get("token_ids") is not None for choice in choices):
        return Verdict("malformed", "token ids that nobody asked for")
    if wish.path == CHAT and sum("role" in choice["delta"] for choice in choices) != 1:
        return Verdict("malformed", "not one role")
    text = "".join(c["text"] if wish.path == TEXT else c["delta"].get("content", "") for c in choices)
    ends = [(c["finish_reason"], c["stop_reason"]) for c in choices if c["finish_reason"]]
    usages = [(c["usage"]["prompt_tokens"], c["usage"]["completion_tokens"]) for c in chunks if not c["choices"]]
    if len(usages) != ("stream_options" in wish.body):
        return Verdict("malformed", f"{len(usages)} usages")
    return _compare(text, ends, usages, truth)


def _compare(text: str, ends: list[Any], usages: list[tuple[int, int]], truth: Truth) -> Verdict:
    if len(ends) != 1:
        return Verdict("malformed", f"{len(ends)} ends")
    if text != truth.text:
        kind = (
            "truncated" if truth.text.startswith(text) else "duplicated" if len(text) > len(truth.text) else "malformed"
        )
        return Verdict(kind, f"{text!r} is not {truth.text!r}")
    if tuple(ends[0]) != (truth.finish, truth.stop):
        return Verdict("malformed", f"ended by {ends[0]}, not {(truth.finish, truth.stop)}")
    if truth.usage is not None and any(usage != truth.usage for usage in usages):
        prompt, output = truth.usage
        across = [(p, o) for p, o in usages if p == prompt and output < o <= output + STOP_MORE]
        if not (isinstance(truth.stop, str) and across == usages):
            return Verdict("malformed", f"usage {usages}, not {truth.usage}")
        return Verdict("correct", over_counted=True)
    return Verdict("correct")


@dataclass
class Tally:
    streams: int = 0
    correct: int = 0
    lost: int = 0
    truncated: int = 0
    duplicated: int = 0
    malformed: int = 0
    cut_by_gateway_death: int = 0
    left: int = 0
    over_counted: int = 0  # of the correct ones
    turned_away: int = 0  # and asked again: no stream of its own
    examples: list[str] = field(default_factory=list)

    def add(self, verdict: Verdict, name: str) -> None:
        self.streams += verdict.kind != "turned_away"
        self.over_counted += verdict.over_counted
        attribute = {"cut": "cut_by_gateway_death"}.get(verdict.kind, verdict.kind)
        setattr(self, attribute, getattr(self, attribute) + 1)
        if verdict.kind not in ("correct", "left", "cut", "turned_away") and len(self.examples) < 20:
            self.examples.append(f"{name} {verdict.kind}: {verdict.why}")
