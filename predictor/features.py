"""What a request says about the length of its answer, as numbers.

Owns the reading of a prompt's bytes in bounded time: the first and last 512 bytes for counts, the first and last 96 for
words. Refuses to decode, to raise and to keep text: a `Features` holds numbers and words that everybody knows.
Works on UTF-8 bytes, so that broken text is as good as any other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import log2

from msgspec import Struct

from predictor.cues import CHARACTERS, CUES, NUMBERS, UNITS, Cue

# Instructions stand first or last: of twice as much the model tells no more (docs/predictor.md), and every prompt would
# pay for it. A 30,000-character prompt read whole costs 2.8 ms (../shared/reference/energy.md, 5.2).
END_BYTES = 512
WORD_BYTES = 96
MOST_WORDS_ASKED = 100_000
LARGEST = 1e6  # a feature beyond what training saw is no reason for an answer beyond it
# Lower case; what is neither letter, digit nor part of a longer UTF-8 sequence separates words.
WORDS_OF = bytes(
    byte + 32 if 65 <= byte <= 90 else byte if byte >= 128 or 97 <= byte <= 122 or 48 <= byte <= 57 else 32
    for byte in range(256)
)
LOGS = tuple(log2(1.0 + count) for count in range(2 * END_BYTES + 2))  # of a count in what is read
ASCII = bytes(range(128))
HAN_CHARACTER = "字".encode()
HAN_COUNT = re.compile(rb"([0-9]{1,6})[ ]{0,2}(?:\xe4\xb8\xaa|\xe5\x80\x8b)?(\xe5\xad\x97|\xe6\x96\x87\xe5\xad\x97)")
NAMES = (
    "prompt_bytes", "last_bytes", "short_prompt", "newlines", "questions", "ends_in_question", "ends_in_colon",
    "code_fences", "not_ascii", "turns", "last_answer_tokens",
    "no_last_answer", "limit", "no_limit", "stop", "tools", "format", "many", "temperature", "no_temperature",
    "reasoning", "hint", "no_hint", "words_asked", "asks_words", "sentences_asked", "asks_sentences",
    "paragraphs_asked", "asks_paragraphs", "items_asked", "asks_items", *(f"cue_{cue.name.lower()}" for cue in Cue),
)  # fmt: skip
SPECIAL = frozenset(CUES) | frozenset(UNITS)
MARKS = {word: (CUES.get(word), UNITS.get(word)) for word in SPECIAL}
NO_LENGTHS, NO_CUES = (0.0,) * 8, (0.0,) * len(Cue)
PARTS = [NAMES.index(name) for name in ("turns", "words_asked", "cue_brief")]  # where those of a `Features` begin


class Asked(Struct, frozen=True, gc=False):
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


class Features(Struct, frozen=True, gc=False):  # it is part of no cycle, as little as what else a prediction makes
    """`counts`, `declared`, `lengths` (asked for) and `cues` (1 or 0), one after the other, are in the order of NAMES;
    `words`: those of the prompt that a vocabulary or predictor/cues.py knows."""

    counts: Sequence[float]
    declared: Sequence[float]
    lengths: Sequence[float]
    cues: Sequence[float]
    words: frozenset[bytes]

    @property
    def numbers(self) -> tuple[float, ...]:
        return (*self.counts, *self.declared, *self.lengths, *self.cues)


class Vocabulary:
    """The words that a model has weights for, and those of predictor/cues.py, so that a prompt's words are looked up
    once."""

    __slots__ = ("known", "words")

    def __init__(self, words: Sequence[bytes]) -> None:
        self.words = words
        self.known = frozenset(words) | SPECIAL


def ends_of(text: bytes) -> bytes:
    """All that is read of a text: at most 1,025 bytes. The ends of the ends are the ends."""
    return text if len(text) <= 2 * END_BYTES + 1 else text[:END_BYTES] + b"\n" + text[-END_BYTES:]


def featurise(asked: Asked, vocabulary: Vocabulary) -> Features:
    """The same request gives the same features, in every process."""
    ends = ends_of(asked.prompt)
    words = words_of(ends)
    found = vocabulary.known.intersection(words)
    if (read := asked.read) is not None:
        a, b, c = PARTS
        return Features(read[:a], read[a:b], read[b:c], read[c:], found)
    special, plain = found & SPECIAL, ends.isascii()
    lengths: Sequence[float] = NO_LENGTHS
    cues: Sequence[float] = NO_CUES
    if special or not plain:
        lengths, cues = _asks(words, special, ends, plain)
    return Features(_counts(asked, ends, plain), _declared(asked), lengths, cues, found)


def words_of(ends: bytes) -> list[bytes]:
    """The words, in lower case, of the first and the last 96 bytes. JSON's `\\n` ends a word as a line does."""
    some = ends if len(ends) <= 2 * WORD_BYTES else ends[:WORD_BYTES] + b" " + ends[-WORD_BYTES:]
    if b"\\" in some:
        some = some.replace(b"\\n", b" ").replace(b"\\t", b" ")
    return some.translate(WORDS_OF).split()


def _log(value: float) -> float:
    if value <= 0:
        return 0.0
    return log2(1.0 + value) if value < LARGEST else log2(LARGEST)


def _counts(asked: Asked, ends: bytes, plain: bool) -> tuple[float, ...]:
    """Each count costs up to 1 us. (Bullets, quotes, digits and marks of code told nothing more than these.)"""
    size, all_there_is = len(asked.prompt), asked.prompt_bytes
    if asked.last_bytes > size:
        size = asked.last_bytes
    own = log2(1.0 + size) if size < LARGEST else _log(size)
    last = ends[-3:].rstrip(b"\"' \n")[-1:]
    return (
        own if all_there_is <= size else _log(all_there_is),
        own,
        1.0 if size < 64 else 0.0,
        LOGS[ends.count(b"\n")],
        LOGS[ends.count(b"?")],
        1.0 if last == b"?" else 0.0,
        1.0 if last == b":" else 0.0,
        LOGS[ends.count(b"```")] if b"`" in ends else 0.0,
        0.0 if plain else len(ends.translate(None, ASCII)) / len(ends),
    )


def _declared(asked: Asked) -> tuple[float, ...]:
    before, limit, hint = asked.last_answer_tokens, asked.max_tokens, asked.hint_tokens
    warm = asked.temperature
    return (
        1.0 if asked.turns == 1 else _log(asked.turns),
        _log(before) if before is not None else 0.0,
        1.0 if before is None else 0.0,
        _log(limit) if limit is not None else 0.0,
        1.0 if limit is None else 0.0,
        1.0 if asked.stop else 0.0,
        1.0 if asked.tools else 0.0,
        1.0 if asked.response_format else 0.0,
        0.0 if asked.n == 1 else _log(asked.n - 1),
        min(2.0, max(0.0, warm)) if warm is not None else 0.0,
        1.0 if warm is None else 0.0,
        _log(asked.reasoning_tokens) if asked.reasoning_tokens is not None else 0.0,
        _log(hint) if hint is not None else 0.0,
        1.0 if hint is None else 0.0,
    )


def _asks(
    words: list[bytes], special: frozenset[bytes], ends: bytes, plain: bool
) -> tuple[Sequence[float], Sequence[float]]:
    """What length the prompt asks for, (log of it, whether) in words, sentences, paragraphs, items; and its cues."""
    cues, lengths = [0.0] * len(NO_CUES), None
    if not plain and HAN_CHARACTER in ends and (han := HAN_COUNT.search(ends)):
        lengths = [_log(int(han[1]) * CHARACTERS), 1.0, *NO_LENGTHS[2:]]
    for word in special:
        cue, unit = MARKS[word]
        if cue is not None:
            cues[cue] = 1.0
        if unit is not None:
            at = words.index(word)
            for number in words[max(0, at - 3) : at][::-1]:  # "in 50 words", "three short paragraphs"
                if (value := _number(number)) is not None:
                    lengths = lengths or list(NO_LENGTHS)
                    lengths[2 * unit] = max(lengths[2 * unit], _log(value))
                    lengths[2 * unit + 1] = 1.0
                    break
    return lengths or NO_LENGTHS, cues


def _number(word: bytes) -> int | None:
    if word.isdigit() and len(word) <= 6:
        return min(MOST_WORDS_ASKED, int(word))
    return NUMBERS.get(word)
