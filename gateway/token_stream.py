"""A stream whose token ids the gateway keeps: they are found in its chunks by byte search and taken out of them again.

`Answer` keeps the chunks as they came and reads them only when somebody wants to continue the stream elsewhere, or when
there are many. `TokenStream` fills it. A client that did not ask for token ids gets the bytes that the engine would
have sent without them (tests/vllm compares)."""

from __future__ import annotations

import re
from array import array
from typing import Any

import msgspec
from msgspec import Struct

from gateway.dialect import Dialect
from gateway.sse import EventStream, StreamBroken, events_of

FOLD_AT = 256  # arrivals kept unread: about 70 KB; three answers in four are shorter
TAIL = b"]}]}\n\n"  # of a chunk whose last member is its choice's token_ids
EVENT_TAIL = TAIL.rstrip(b"\n")
NULL_TAIL = b"null}]}\n\n"
HAS_IDS = b'ids":['
IDS = re.compile(rb'("(?:prompt_)?token_ids":)\[[0-9,]*\]')
# The end of a chunk with text and nothing else, up to its ids. Quotes inside a JSON string are escaped, so that no text
# can look like this.
CHAT_MARK = b'"},"logprobs":null,"finish_reason":null,"token_ids":['
CHAT_FIELD = b'"choices":[{"index":0,"delta":{"content":"'
TEXT_MARK = b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":['
TEXT_FIELD = b'"choices":[{"index":0,"text":"'
# vLLM sends such a chunk only because ids were asked for: its parser has made nothing of the tokens yet.
NOTHING_SAID = b'"delta":{},"logprobs":null,"finish_reason":null'
CHOICES = b'"choices":['


class Delta(Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class Logprobs(Struct):
    tokens: list[str] = []
    text_offset: list[int] = []


class Choice(Struct):
    text: str = ""
    logprobs: Logprobs | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    finish_reason: str | None = None


class Chunk(Struct):
    choices: list[Choice] = []
    prompt_token_ids: list[int] | None = None


CHUNK = msgspec.json.Decoder(Chunk)


class Answer:
    """What a stream has said so far. `fold` reads what has not been read; the other fields are as of the last call.
    `head`: a chunk's bytes up to and with `"choices":[`. `finish`: the finish_reason, once the client got it.
    `reasoning`: some ids belong to text that is not in `text`. `ends`: where each token ends by completions' logprobs,
    which count characters in their own way."""

    __slots__ = ("_parts", "chat", "ends", "finish", "head", "ids", "prompt", "raw", "reasoning")

    def __init__(self, *, chat: bool) -> None:
        self.chat = chat
        self.raw: list[bytes] = []
        self.head = b""
        self.prompt: array[int] = array("I")
        self.ids: array[int] = array("I")
        self.ends: array[int] = array("I")
        self.finish = ""
        self.reasoning = False
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def progress(self) -> int:
        """Changes with every token that comes."""
        return len(self.raw) + len(self.ids)

    def fold(self) -> Answer:
        """Plain chunks, which are nearly all of them, are cut and not decoded: this runs beside other streams."""
        field, mark = (CHAT_FIELD, CHAT_MARK) if self.chat else (TEXT_FIELD, TEXT_MARK)
        raw, self.raw = self.raw, []
        texts: list[bytes] = []
        ids: list[bytes] = []
        prefix, text_at = b"\n", 0
        for data in raw:
            begin, found, end = data.rpartition(mark)
            if found and begin.startswith(prefix) and data.count(b"\n") == 2 and end.endswith(TAIL):
                texts.append(begin[text_at:])
                ids.append(end[: -len(TAIL)])
                continue
            self._add_plain(texts, ids)
            texts, ids = [], []
            for event in events_of(data):
                self._read(event)
            text_at = data.find(field) + len(field)
            prefix = data[:text_at] if text_at >= len(field) else b"\n"
        self._add_plain(texts, ids)
        return self

    def _add_plain(self, texts: list[bytes], ids: list[bytes]) -> None:
        if ids:
            text: str = msgspec.json.decode(b'"%b"' % b"".join(texts))
            self.add(text, [int(one) for one in b",".join(ids).split(b",") if one])

    def add(self, text: str, ids: list[int]) -> None:
        self._parts.append(text)
        self.ids.extend(ids)

    def _read(self, event: bytes) -> None:
        body = event.partition(b"data:")[2]
        if HAS_IDS not in body:
            return
        chunk = CHUNK.decode(body)
        if not self.head:
            self.head = event[: event.index(CHOICES) + len(CHOICES)].lstrip()
        self.prompt.extend(chunk.prompt_token_ids or ())
        for choice in chunk.choices:
            delta = choice.delta or Delta()
            self.prompt.extend(choice.prompt_token_ids or ())
            self.add(choice.text or delta.content or "", choice.token_ids or [])
            given = choice.logprobs or Logprobs()
            self.ends.extend(at + len(token) for at, token in zip(given.text_offset, given.tokens, strict=True))
            self.reasoning = self.reasoning or bool(delta.reasoning or delta.reasoning_content)
            self.finish = choice.finish_reason or ""


class TokenStream(EventStream):
    """An OpenAI stream of one choice, chat's or completions', with ids in its chunks."""

    def __init__(self, answer: Answer, *, strip_usage: bool) -> None:
        super().__init__(Dialect.OPENAI, strip_usage=strip_usage)
        self.answer = answer
        self._mark = CHAT_MARK if answer.chat else TEXT_MARK
        self._keep_at = len(self._mark) - 1

    def feed(self, data: bytes) -> bytes:
        at = data.rfind(self._mark)
        if at > 0 and self._plain and data.endswith(TAIL) and data.count(b"\n") == 2 and not self._rest:
            self.events += 1
            self.content = True
            raw = self.answer.raw
            raw.append(data)
            if len(raw) >= FOLD_AT:
                self.answer.fold()
            return data[: at + self._keep_at] + NULL_TAIL
        return self._cut(data)

    @property
    def plain(self) -> tuple[Any, bytes] | None:
        return None if super().plain is None else (self.answer, self._mark)

    def _as_plain(self, event: bytes) -> bytes:
        at = event.rfind(self._mark)
        if at < 0:
            return b"" if HAS_IDS in event else super()._as_plain(event)
        if not event.startswith(b"data:") or not event.endswith(EVENT_TAIL) or b"\n" in event:
            return b""
        self.events += 1
        self.content = True
        self._keep(event + b"\n\n")
        return event[: at + self._keep_at] + NULL_TAIL

    def _careful(self, data: bytes) -> bytes:
        try:
            return self._take(super()._careful(data))
        except StreamBroken as broken:
            broken.before = self._take(broken.before)
            raise

    def finish(self) -> bytes:
        return self._take(super().finish())

    @property
    def progress(self) -> int | None:  # type: ignore[override]
        return self.answer.progress or None  # an engine that sends no ids makes none

    def _keep(self, data: bytes) -> None:
        raw = self.answer.raw
        raw.append(data)
        if len(raw) >= FOLD_AT:
            self.answer.fold()

    def _take(self, data: bytes) -> bytes:
        """Whole events, of any kind and number."""
        if HAS_IDS not in data:
            return data
        self._keep(data)
        if NOTHING_SAID in data:
            data = b"".join(event for event in events_of(data) if NOTHING_SAID not in event)
        return IDS.sub(rb"\1null", data)
