"""What a request says about the length of its answer, as numbers.

Owns the reading of a prompt's bytes in bounded time: the first and last kB for counts, the first and last 256 bytes
for words. Refuses to decode, to raise and to keep text: a `Features` holds numbers and row numbers of a vocabulary.
Works on UTF-8 bytes, so that broken text is as good as any other."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from math import log2

from msgspec import Struct

from predictor.cues import CHARACTERS, CUES, NUMBERS, UNITS, Cue

END_BYTES = 1024  # a 30,000-character prompt read whole costs 2.8 ms (../shared/reference/energy.md, 5.2)
WORD_BYTES = 256  # instructions stand first or last; 2 kB of words would cost 20 us alone
MOST_WORDS_ASKED = 100_000
LARGEST = 1e6  # a feature beyond what training saw is no reason for an answer beyond it
# Lower case; what is neither letter, digit nor part of a longer UTF-8 sequence separates words.
WORDS_OF = bytes(
    byte + 32 if 65 <= byte <= 90 else byte if byte >= 128 or 97 <= byte <= 122 or 48 <= byte <= 57 else 32
    for byte in range(256)
)
UNKNOWN = 1 << 30  # the number of a word that means nothing
LOGS = tuple(log2(1.0 + count) for count in range(2 * END_BYTES + 2))  # of a count in what is read
DIGITS = b"0123456789"
ASCII = bytes(range(128))
HAN_CHARACTER = "字".encode()
HAN_COUNT = re.compile(rb"([0-9]{1,6})[ ]{0,2}(?:\xe4\xb8\xaa|\xe5\x80\x8b)?(\xe5\xad\x97|\xe6\x96\x87\xe5\xad\x97)")
NAMES = (
    "prompt_bytes", "last_bytes", "short_prompt", "newlines", "questions", "ends_in_question", "ends_in_colon",
    "digits", "code_fences", "code_marks", "bullets", "quotes", "not_ascii", "turns", "last_answer_tokens",
    "no_last_answer", "limit", "no_limit", "stop", "tools", "format", "many", "temperature", "no_temperature",
    "reasoning", "hint", "no_hint", "words_asked", "asks_words", "sentences_asked", "asks_sentences",
    "paragraphs_asked", "asks_paragraphs", "items_asked", "asks_items", *(f"cue_{cue.name.lower()}" for cue in Cue),
)  # fmt: skip


class Asked(Struct, frozen=True):
    """The parts of a request that tell of its answer. `prompt` is the last thing asked, as UTF-8, whole or its `ends`;
    `last_bytes` is its whole size where only the ends are here; `prompt_bytes` counts all there is to read.
    `hint_tokens` is what the client expects. `read`: the numbers as they were when the request was served, where it is
    known by them only."""

    prompt: bytes
    prompt_bytes: int = 0
    turns: int = 1
    last_answer_tokens: int | None = None
    max_tokens: int | None = None
    stop: bool = False
    tools: bool = False
    response_format: bool = False
    n: int = 1
    temperature: float | None = None
    reasoning_tokens: int | None = None
    hint_tokens: int | None = None
    last_bytes: int = 0
    read: tuple[float, ...] | None = None


class Features(Struct, frozen=True):
    """`numbers` in the order of NAMES; `rows` are the vocabulary's words that the prompt has, each once, in order."""

    numbers: tuple[float, ...]
    rows: tuple[int, ...]


class Vocabulary:
    """The words of a model and those of predictor/cues.py under one number each, so that a prompt's words are looked up
    once. Numbers below `size` are rows of the model's words."""

    __slots__ = ("codes", "cues", "known", "size", "special", "units")

    def __init__(self, words: Sequence[bytes]) -> None:
        self.size = len(words)
        extra = sorted((CUES.keys() | UNITS.keys()) - set(words))
        self.known = [*words, *extra]
        self.codes = {word: code for code, word in enumerate(self.known)}
        self.cues = {self.codes[word]: cue for word, cue in CUES.items()}
        self.units = {self.codes[word]: unit for word, unit in UNITS.items()}
        self.special = frozenset(self.cues.keys() | self.units.keys())


def ends_of(text: bytes | memoryview) -> bytes:
    """All that is read of a text: at most 2,049 bytes. The ends of the ends are the ends."""
    if len(text) <= 2 * END_BYTES + 1:
        return bytes(text)
    return bytes(text[:END_BYTES]) + b"\n" + bytes(text[-END_BYTES:])


def featurise(asked: Asked, vocabulary: Vocabulary) -> Features:
    """The same request gives the same features, in every process."""
    ends = ends_of(asked.prompt)
    size = max(asked.last_bytes, len(asked.prompt))
    words = words_of(ends)
    found = set(map(vocabulary.codes.get, words, repeat(UNKNOWN)))
    special = found & vocabulary.special
    rows = sorted(found)
    del rows[bisect_left(rows, vocabulary.size) :]
    if asked.read is not None:
        return Features(asked.read, tuple(rows))
    lengths, cues = _asked_lengths(words, special, vocabulary, ends), _cues(special, vocabulary)
    return Features((*_counts(asked, ends, size), *_declared(asked), *lengths, *cues), tuple(rows))


def words_of(ends: bytes) -> list[bytes]:
    """The words, in lower case, of the first and the last 256 bytes. JSON's `\\n` ends a word as a line does."""
    some = ends if len(ends) <= 2 * WORD_BYTES else ends[:WORD_BYTES] + b" " + ends[-WORD_BYTES:]
    if b"\\" in some:
        some = some.replace(b"\\n", b" ").replace(b"\\t", b" ")
    return some.translate(WORDS_OF).split()


def _log(value: float) -> float:
    if value <= 0:
        return 0.0
    return log2(1.0 + value) if value < LARGEST else log2(LARGEST)


def _counts(asked: Asked, ends: bytes, size: int) -> tuple[float, ...]:
    """A search for one byte costs a tenth of one for several: it goes first."""
    count = ends.count
    length = len(ends) or 1
    lines = count(b"\n")
    bullets = count(b"\n- ") + count(b"\n* ") if lines else 0
    last = ends[-3:].rstrip(b"\"' \n")[-1:]
    return (
        _log(max(size, asked.prompt_bytes)),
        _log(size),
        1.0 if size < 64 else 0.0,
        LOGS[lines],
        LOGS[count(b"?")] if b"?" in ends else 0.0,
        1.0 if last == b"?" else 0.0,
        1.0 if last == b":" else 0.0,
        (length - len(ends.translate(None, DIGITS))) / length,
        LOGS[count(b"```")] if b"`" in ends else 0.0,
        LOGS[count(b"{") + count(b";")],
        LOGS[bullets],
        LOGS[count(b'"')],
        0.0 if ends.isascii() else len(ends.translate(None, ASCII)) / length,
    )


def _declared(asked: Asked) -> tuple[float, ...]:
    before, limit, hint = asked.last_answer_tokens, asked.max_tokens, asked.hint_tokens
    warm = asked.temperature
    return (
        _log(asked.turns),
        _log(before) if before is not None else 0.0,
        1.0 if before is None else 0.0,
        _log(limit) if limit is not None else 0.0,
        1.0 if limit is None else 0.0,
        1.0 if asked.stop else 0.0,
        1.0 if asked.tools else 0.0,
        1.0 if asked.response_format else 0.0,
        _log(asked.n - 1),
        min(2.0, max(0.0, warm)) if warm is not None else 0.0,
        1.0 if warm is None else 0.0,
        _log(asked.reasoning_tokens) if asked.reasoning_tokens is not None else 0.0,
        _log(hint) if hint is not None else 0.0,
        1.0 if hint is None else 0.0,
    )


def _asked_lengths(words: list[bytes], special: set[int], vocabulary: Vocabulary, ends: bytes) -> list[float]:
    """What length the prompt asks for: (log of it, whether) in words, sentences, paragraphs, items."""
    asked = [0.0] * 8
    if HAN_CHARACTER in ends and (han := HAN_COUNT.search(ends)):
        asked[0:2] = [_log(int(han[1]) * CHARACTERS), 1.0]
    for code in special & vocabulary.units.keys():
        unit, at = vocabulary.units[code], words.index(vocabulary.known[code])
        for number in words[max(0, at - 3) : at][::-1]:  # "in 50 words", "three short paragraphs"
            value = _number(number)
            if value is not None:
                asked[2 * unit] = max(asked[2 * unit], _log(value))
                asked[2 * unit + 1] = 1.0
                break
    return asked


def _number(word: bytes) -> int | None:
    if word.isdigit() and len(word) <= 6:
        return min(MOST_WORDS_ASKED, int(word))
    return NUMBERS.get(word)


def _cues(special: set[int], vocabulary: Vocabulary) -> list[float]:
    cues, of = [0.0] * len(Cue), vocabulary.cues
    for code in special:
        if code in of:
            cues[of[code]] = 1.0
    return cues
