"""An answer's event stream on its way through: whole events out, whatever the cuts of the network.

Per arrival it runs a handful of byte searches and parses nothing. It notices the end, an error or an abort that the
engine hides in a stream, and the usage, which it takes out again where only the gateway asked for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from core.errors import UpstreamFailed
from gateway.dialect import Dialect, upstream_message

EVENT_LIMIT_BYTES = 4 * 1024 * 1024
FIELDS = (b"data", b"event", b":", b"id", b"retry", b"\n", b"\r\n")
ALIEN = re.compile(rb"^(?!data|event|:|id|retry|\r|$)", re.MULTILINE)  # the beginning of a line of no field
ENDS = {
    Dialect.OPENAI: (b"data: [DONE]", b"data:[DONE]"),
    Dialect.RESPONSES: (b"event: response.completed", b"event: response.incomplete", b"event: response.failed"),
    Dialect.ANTHROPIC: (b"event: message_stop",),
}
ABORT = (b'"finish_reason":"abort"', b'"stop_reason":"abort"')
ERRORS = (b'data: {"error"', b"event: error")
# One whole event with this is a piece of text and nothing else: no end, no error, no abort, and no usage but a running
# one, which the last event repeats. Inside a JSON string its quotes would be escaped.
PLAIN = b'"finish_reason":null'
NOTABLE = {  # an arrival without any of these is forwarded unread
    Dialect.OPENAI: (b'"usage":{', b'"abort"', b"[DONE]", b'{"error"'),
    Dialect.RESPONSES: (
        b'"usage":{',
        b"response.completed",
        b"response.incomplete",
        b"response.failed",
        b"event: error",
    ),
    Dialect.ANTHROPIC: (b'"usage":{', b'"abort"', b"message_stop", b"event: error"),
}


USAGE = b'"usage":{'
CACHED = b'"cached_tokens":'
Energy = Callable[[], tuple[float, str]]  # joules so far, and how they are known


def energy_comment(energy: Energy) -> bytes:
    """An event that clients take for a comment."""
    joules, quality = energy()
    return b": joulegate joules=%.3f quality=%b\n\n" % (joules, quality.encode())


def energy_fields(energy: Energy) -> bytes:
    """For the beginning of a usage."""
    joules, quality = energy()
    return b'"joules":%.3f,"quality":"%b",' % (joules, quality.encode())


class StreamBroken(UpstreamFailed):
    """The engine said inside a stream that it failed, or ended it early. `before` are good events that came first.
    `kind` says how: `dead` told of an error, `abort` gave the answer up, `ended` is a stream without its end."""

    before = b""
    kind = "ended"


class EventStream:
    """Feed it bytes, get bytes to forward. `done` after the dialect's last event; `content` once an answer began."""

    progress: int | None = None  # changes with every token, where tokens can be told from other bytes
    energy: Energy | None = None  # the client asked for its joules: a comment before the last event, and in its usage

    def __init__(self, dialect: Dialect, *, strip_usage: bool) -> None:
        self._dialect = dialect
        self._strip = strip_usage
        self._ends = ENDS[dialect]
        self._notable = NOTABLE[dialect]
        self._rest = b""
        self._usage_event = b""
        self._begun = False
        self._plain = False
        self.done = False
        self.content = False
        self._begins = b"data:" if dialect is Dialect.OPENAI else b"delta"
        self.events = 0

    def feed(self, data: bytes) -> bytes:
        """Events that are complete now. StreamBroken when one of them tells of a failure: what came before it in the
        same bytes is in the exception's `before`."""
        if self._plain and data[-2:] == b"\n\n" and data.count(b"\n") == 2 and data.rfind(PLAIN) > 0 and not self._rest:
            self.events += 1
            self.content = True
            return data
        return self._cut(data)

    @property
    def plain(self) -> tuple[Any, bytes] | None:
        """Whether events of text alone may pass by the shortcut now: the answer that keeps those with ids as they came,
        and what stands before their ids."""
        return (None, b"") if self._plain and not self._rest and not self.done else None

    def _cut(self, data: bytes) -> bytes:
        """Any bytes: the whole events of them, and of what was left before."""
        if self._rest:
            data = self._rest + data
        if not self._begun:
            self._begin(data)
            self._plain = self._begun and self._dialect is Dialect.OPENAI
        cut = _last_end(data)
        if len(data) - cut > EVENT_LIMIT_BYTES:
            raise UpstreamFailed("the instance sent an event that never ends")
        if cut != len(data):
            data, self._rest = data[:cut], data[cut:]
        elif self._rest:
            self._rest = b""
        return self._each(data) if self._plain and b"\r" not in data else self._careful(data)

    def _each(self, data: bytes) -> bytes:
        """Whole events that came together, as under load. Nearly all of them are plain."""
        out: list[bytes] = []
        try:
            for event in data.split(b"\n\n")[:-1]:
                out.append(self._as_plain(event) or self._careful(event + b"\n\n"))
        except StreamBroken as broken:
            broken.before = b"".join([*out, broken.before])
            raise
        return b"".join(out)

    def _as_plain(self, event: bytes) -> bytes:
        """What is handed on of an event, here without its blank line, if it is a piece of text and nothing else."""
        if not event.startswith(b"data:") or event.rfind(PLAIN) < 0 or b"\n" in event:
            return b""
        self.events += 1
        self.content = True
        return event + b"\n\n"

    def _careful(self, data: bytes) -> bytes:
        """Whole events of any kind."""
        if not data:
            return data
        alien = ALIEN.search(data)
        if alien is not None:
            raise _broken("the instance sent something that is not an event stream", [data[: alien.start()]], "garbage")
        for mark in self._notable:
            if mark in data:
                return self._look(data)
        self.events += data.count(b"\n\n") or 1
        if not self.content:
            self.content = self._begins in data
        return data

    def finish(self) -> bytes:
        """Call at the end of the body: what is left, which a well-formed stream has not."""
        rest, self._rest = self._rest, b""
        if rest.strip():
            rest = self._look(rest)
        if not self.done:
            raise StreamBroken("the instance ended the stream before its answer was complete")
        return rest

    def usage(self) -> tuple[int, int] | None:
        """(prompt tokens, output tokens) as the engine counted them."""
        return find_usage(self._usage_event.partition(b"data:")[2])

    def cached(self) -> tuple[int, int] | None:
        """(prompt tokens that the engine's prefix cache held, prompt tokens), where the engine says so."""
        return find_cached(self._usage_event.partition(b"data:")[2])

    def _begin(self, data: bytes) -> None:
        self._begun = len(data) >= len(b"event")
        if not any(data[: len(field)] == field[: len(data)] for field in FIELDS):
            raise UpstreamFailed("the instance sent something that is not an event stream")

    def _look(self, data: bytes) -> bytes:
        """Event by event, for the few arrivals that may hold something to act on."""
        out: list[bytes] = []
        for event in events_of(data):
            body = event.lstrip(b"\r\n")
            if body.startswith(ERRORS):
                raise _broken(upstream_message(body.partition(b"data:")[2].strip()), out, "dead")
            if any(mark in body for mark in ABORT):
                raise _broken("the instance gave up this answer", out, "abort")
            if b'"usage":{' in body:
                self._usage_event = body
                if self._strip and b'"choices":[]' in body:
                    continue
                if self.energy is not None and b'"choices":[]' in body:
                    event = event.replace(USAGE, USAGE + energy_fields(self.energy), 1)
            self.events += 1
            self.content = self.content or self._begins in body or body.startswith(self._ends)
            if not self.done and body.startswith(self._ends):
                self.done = True
                if self.energy is not None:
                    out.append(energy_comment(self.energy))
            out.append(event)
        return b"".join(out)


def _broken(message: str, before: list[bytes], kind: str) -> StreamBroken:
    error = StreamBroken(message)
    error.before, error.kind = b"".join(before), kind
    return error


def _last_end(data: bytes) -> int:
    """Where the last complete event of `data` ends; 0 if none does."""
    lf, crlf = data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")
    return max(lf + 2 if lf >= 0 else 0, crlf + 4 if crlf >= 0 else 0)


def events_of(data: bytes) -> list[bytes]:
    """Whole events, each with its blank line."""
    separator = b"\n\n" if b"\n\n" in data else b"\r\n\r\n"
    parts = data.split(separator)
    last = [parts[-1]] if parts[-1] else []
    return [part + separator for part in parts[:-1]] + last


class PromptDetails(Struct):
    cached_tokens: int | None = None


class Usage(Struct):
    prompt_tokens_details: PromptDetails | None = None
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None


class Said(Struct):
    usage: Usage | None = None
    response: Raw = Raw()


SAID = msgspec.json.Decoder(Said)  # builds nothing of what it passes by: the text of a long answer costs little


def _usage_of(body: bytes) -> Usage | None:
    try:
        said = SAID.decode(body)
        if said.usage is None and bytes(said.response).startswith(b"{"):
            return SAID.decode(said.response).usage
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):  # ValidationError is a DecodeError
        return None
    return said.usage


def find_usage(body: bytes) -> tuple[int, int] | None:
    """(prompt, output) tokens of a JSON answer or event in any dialect."""
    usage = _usage_of(body)
    if usage is None:
        return None
    prompt = usage.input_tokens if usage.prompt_tokens is None else usage.prompt_tokens
    output = usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens
    return None if prompt is None else (prompt, output or 0)


def find_cached(body: bytes) -> tuple[int, int] | None:
    """(cached, all) prompt tokens of a JSON answer or event. vLLM says it with --enable-prompt-tokens-details only."""
    usage = _usage_of(body) if CACHED in body else None
    if usage is None or usage.prompt_tokens is None or usage.prompt_tokens_details is None:
        return None
    cached = usage.prompt_tokens_details.cached_tokens
    return None if cached is None else (cached, usage.prompt_tokens)
