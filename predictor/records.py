"""Answers with known lengths, as training and evaluation read them.

Owns the formats: JSONL of one answer a line, the gateway's run log, and the open sets of ../shared/data as their
publishers lay them out. Of a run log only complete answers count, in which requests are known by their numbers.
Refuses a line that it cannot read, with its number, rather than learn of half a file."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from predictor.features import NAMES, Asked

BYTES_PER_TOKEN = 4.2


class RecordError(ValueError):
    """A file that holds no such records; its text names file and line."""


class Record(Struct, frozen=True):
    """One answer. `prompt_id` tells prompts apart; `template` is what a gateway would know it by."""

    asked: Asked
    prompt_id: bytes
    model: str
    template: bytes
    output_tokens: int

    @property
    def cut(self) -> bool:
        """Whether the limit ended it, so that its own length is not known but for being no less."""
        limit = self.asked.max_tokens
        return limit is not None and self.output_tokens >= limit


class _Message(Struct):
    role: str = ""
    content: object = None


class _Line(Struct):
    output_tokens: int | None = None
    prompt: object = None
    messages: list[_Message] | None = None
    model: str = ""
    template: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int = 1
    temperature: float | None = None
    stop: object = None
    tools: object = None
    response_format: object = None
    kind: str | None = None  # of a row of the run log; requests alone are read
    outcome: str | None = None
    service: str | None = None
    features: dict[str, float] | None = None


def read_records(path: Path) -> list[Record]:
    """In the order of the file, which is that of time. Raises RecordError, or OSError."""
    if path.is_dir():
        if (path / "output_tokens_cl100k_805x_models.csv.gz").exists():
            return list(_alpaca(path))
        if (path / "output_lengths.csv.gz").exists():
            return list(_oasst(path))
        raise RecordError(f"{path}: a folder, but neither alpaca_eval_outputs nor oasst_model_eval")
    return list(_jsonl(path))


def _open(path: Path) -> io.TextIOBase:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8")
    return path.open(encoding="utf-8")


def _jsonl(path: Path) -> Iterator[Record]:
    decoder = msgspec.json.Decoder(_Line, strict=False)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                decoded = decoder.decode(line)
                if decoded.kind is None:
                    yield _record(decoded)
                elif decoded.kind == "request" and decoded.outcome == "completed" and decoded.features is not None:
                    yield from _served(decoded)
            except (ValueError, RecursionError) as error:
                raise RecordError(f"{path}:{number}: {error}") from None


def _record(line: _Line) -> Record:
    if line.output_tokens is None:
        raise ValueError("needs output_tokens")
    if line.output_tokens < 0:
        raise ValueError("output_tokens is negative")
    if line.prompt is None and not line.messages:
        raise ValueError("needs prompt or messages")
    messages = line.messages or [_Message("user", line.prompt)]
    texts = [_text(message.content) for message in messages]
    asking = max((at for at, m in enumerate(messages) if m.role in ("user", "")), default=len(messages) - 1)
    answers = [text for text, m in zip(texts, messages, strict=True) if m.role == "assistant"]
    system = texts[0] if messages[0].role in ("system", "developer") else b""
    asked = Asked(
        prompt=texts[asking],
        prompt_bytes=sum(map(len, texts)),
        turns=sum(m.role in ("user", "") for m in messages),
        last_answer_tokens=round(len(answers[-1]) / BYTES_PER_TOKEN) if answers else None,
        max_tokens=line.max_completion_tokens or line.max_tokens,
        stop=bool(line.stop),
        tools=bool(line.tools),
        response_format=bool(line.response_format),
        n=line.n,
        temperature=line.temperature,
    )
    template = line.template.encode("utf-8", "replace") if line.template is not None else digest(system)
    return Record(asked, digest(b"\0".join(texts)), line.model, template, line.output_tokens)


def _served(line: _Line) -> Iterator[Record]:
    """A limit and a hint are applied to what a model says, not learnt by it."""
    if line.output_tokens is None or line.features is None:
        return
    neutral = {"limit": 0.0, "no_limit": 1.0, "hint": 0.0, "no_hint": 1.0}
    read = tuple(neutral.get(name, line.features.get(name, 0.0)) for name in NAMES)
    prompt = _text(line.prompt)
    asked = Asked(prompt, max_tokens=line.max_tokens, read=read)
    tokens = line.output_tokens // max(1, line.n)
    name = digest(msgspec.json.encode((prompt.decode(), read)))
    yield Record(asked, name, line.service or "", bytes.fromhex(line.template or ""), tokens)


def _text(content: object) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "replace")
    if isinstance(content, list):
        return b"\n".join(_text(part) for part in content)
    if isinstance(content, dict):
        return _text(content.get("text"))
    return b""


def digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).digest()


def _alpaca(folder: Path) -> Iterator[Record]:
    """805 prompts x 227 models (AlpacaEval, Apache-2.0), lengths in cl100k tokens."""
    with _open(folder / "prompts.jsonl") as lines:
        prompts = [msgspec.json.decode(line)["instruction"].encode() for line in lines]
    with _open(folder / "output_tokens_cl100k_805x_models.csv.gz") as table:
        rows = csv.reader(table)
        models = next(rows)[1:]
        for row in rows:
            prompt = prompts[int(row[0])]
            asked, name = Asked(prompt, len(prompt)), digest(prompt)
            for model, tokens in zip(models, row[1:], strict=True):
                if tokens:
                    yield Record(asked, name, model, b"", int(float(tokens)))


def _oasst(folder: Path) -> Iterator[Record]:
    """1,272 prompts x 105 models (Open-Assistant model evaluation, Apache-2.0), mostly cut at 400 tokens."""
    with _open(folder / "prompts.jsonl.gz") as lines:
        decoded = [msgspec.json.decode(line) for line in lines]
    prompts = {str(item["prompt_id"]): item["prompt"].encode("utf-8", "replace") for item in decoded}
    asked_of: dict[tuple[str, str], tuple[Asked, bytes]] = {}
    with _open(folder / "output_lengths.csv.gz") as table:
        for row in csv.DictReader(table):
            key = (row["prompt_id"], row["max_new_tokens"])
            if key not in asked_of:
                prompt = prompts[key[0]]
                limit = int(float(key[1])) if key[1] else None
                asked_of[key] = Asked(prompt, len(prompt), max_tokens=limit), digest(prompt)
            asked, name = asked_of[key]
            yield Record(asked, name, f"oasst/{row['model']}", b"", int(row["output_tokens"]))
