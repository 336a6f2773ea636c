"""The second part of a stream, from another instance, in the client's dialect: same id, time and model, one usage.

It comes from /v1/completions, whichever route the client asked. Every chunk is read and written anew: this is no hot
path, a stream gets here once in its life if at all."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.continuation import Cut, Seam
from gateway.dialect import Dialect
from gateway.sse import EventStream, StreamBroken, energy_comment, energy_fields, events_of
from gateway.token_stream import Answer

PLACES = ("text_offset", "tokens")
DONE = b"data: [DONE]\n\n"


class StreamEnded(Exception):
    """The answer is over although the instance would go on. `before` are its last events."""

    def __init__(self, before: bytes) -> None:
        super().__init__("the answer is over")
        self.before = before


class JoinedStream(EventStream):
    """`wants_usage`: the client asked for it; `running_usage`: in every chunk. `logprobs`: chat's top_logprobs, None
    without."""

    def __init__(
        self,
        answer: Answer,
        cut: Cut,
        seam: Seam,
        *,
        wants_usage: bool,
        running_usage: bool = False,
        logprobs: int | None = None,
    ) -> None:
        super().__init__(Dialect.OPENAI, strip_usage=False)
        self.answer = answer
        self._begins_at = answer.ends[len(cut.ids) - 1] if cut.ids and answer.ends else 0  # for text_offset
        del answer.ids[len(cut.ids) :], answer.ends[len(cut.ids) :]
        self._seam = seam
        self._wants_usage = wants_usage
        self._running_usage = running_usage
        self._logprobs = logprobs
        self._to_drop = cut.dropped  # the client has seen what these tokens are
        self._prompt_tokens = len(answer.prompt)

    def feed(self, data: bytes) -> bytes:
        try:
            return self._join(super().feed(data))
        except StreamBroken as broken:
            broken.before = self._join(broken.before)
            raise

    @property
    def plain(self) -> None:
        return None  # every chunk is written anew

    def finish(self) -> bytes:
        return self._join(super().finish())

    @property
    def progress(self) -> int | None:  # type: ignore[override]
        return self.answer.progress or None  # an engine that sends no ids makes none

    def usage(self) -> tuple[int, int] | None:
        return self._prompt_tokens, len(self.answer.ids)

    def _join(self, data: bytes) -> bytes:
        out: list[bytes] = []
        for event in events_of(data) if data else ():
            body = event.partition(b"data:")[2].strip()
            if not body.startswith(b"{"):
                out.append(event)
                continue
            said = msgspec.json.decode(body)
            if not said.get("choices"):
                out.append(self.usage_chunk(said))
                continue
            chunk, over = self.chunk(said["choices"][0])
            out.append(chunk)
            if over:
                comment = b"" if self.energy is None else energy_comment(self.energy)
                raise StreamEnded(b"".join([*out, self.usage_chunk({}), comment, DONE]))
        return b"".join(out)

    def chunk(self, choice: dict[str, Any]) -> tuple[bytes, bool]:
        answer, finish, reason = self.answer, choice.get("finish_reason"), choice.get("stop_reason")
        text, stop = self._seam.pass_on(choice["text"], last=finish is not None)
        if stop is not None:
            finish, reason = "stop", stop
        answer.add(text, choice.get("token_ids") or [])
        answer.finish = finish or ""
        logprobs = self._logprobs_of(choice)
        if not text and finish is None and not logprobs:
            return b"", False
        part: dict[str, Any] = {"index": 0}
        if answer.chat:
            part |= {"delta": {"content": text}, "logprobs": logprobs, "finish_reason": finish}
            part |= {} if finish is None else {"stop_reason": reason}
        else:
            part |= {"text": text, "logprobs": logprobs, "finish_reason": finish, "stop_reason": reason}
            part |= {"prompt_token_ids": None}
        part["token_ids"] = None
        usage = b',"usage":' + self._usage_json() if self._running_usage else b""
        return answer.head + msgspec.json.encode(part) + b"]" + usage + b"}\n\n", stop is not None

    def usage_chunk(self, said: dict[str, Any]) -> bytes:
        if not self._wants_usage:
            return b""
        mark = said.get("system_fingerprint")
        end = b"}\n\n" if mark is None else b',"system_fingerprint":%b}\n\n' % msgspec.json.encode(mark)
        usage = self._usage_json()
        if self.energy is not None:
            usage = b"{" + energy_fields(self.energy) + usage[1:]
        return self.answer.head + b'],"usage":' + usage + end

    def _usage_json(self) -> bytes:
        prompt, output = self._prompt_tokens, len(self.answer.ids)
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
        return msgspec.json.encode(usage)

    def _logprobs_of(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        given = choice.get("logprobs")
        if not given:
            return None
        drop = min(self._to_drop, len(given["tokens"]))
        self._to_drop -= drop
        rows = {name: values[drop:] for name, values in given.items() if values is not None}
        if not rows["tokens"]:
            return None
        if self._logprobs is None:
            rows["text_offset"] = [offset + self._begins_at for offset in rows["text_offset"]]
            self.answer.ends.extend(at + len(token) for at, token in zip(*map(rows.get, PLACES), strict=True))
            return {**given, **rows}
        tops = rows.get("top_logprobs") or [{}] * len(rows["tokens"])
        columns = zip(rows["tokens"], rows["token_logprobs"], tops, strict=True)
        return {"content": [self._chat_logprob(*column) for column in columns]}

    def _chat_logprob(self, token: str, logprob: float, top: dict[str, float] | None) -> dict[str, Any]:
        wanted = list((top or {}).items())[: self._logprobs]
        return _entry(token, logprob) | {"top_logprobs": [_entry(*pair) for pair in wanted]}


def closing(answer: Answer, *, finish: str, wants_usage: bool) -> bytes:
    """The end of an answer that lacks no token. `finish`: its reason, empty if the client got it already."""
    cut = Cut(answer.ids.tolist(), "", 0)
    stream = JoinedStream(answer, cut, Seam("", "", (), include_stop=False), wants_usage=wants_usage)
    last = stream.chunk({"text": "", "finish_reason": finish})[0] if finish else b""
    return last + stream.usage_chunk({}) + DONE


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}
