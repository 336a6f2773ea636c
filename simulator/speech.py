"""What the emulated model says next. Owns the rule that maps a sequence of ids to its next id; holds no state.

The next id is a pure function of every id so far (prompt and answer alike), so an answer that is continued elsewhere
from prompt ids + generated ids goes on identically. A CRC does the rolling: it may be fed in pieces of any size, in C.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from simulator.tokens import END_ID, FIRST_WORD_ID

MASK = (1 << 64) - 1
HEAD_IDS = 16
SHORTEST_MEAN, LONGEST_MEAN = 20, 600
TABLE_SIZE = 1024
DASH = tuple("—".encode())


def roll(state: int, ids: Sequence[int]) -> int:
    """The hash of a sequence after `ids` were appended to the one whose hash is `state` (0 for an empty one)."""
    return crc32(array("H", ids).tobytes(), state)


def mean_length(head: Sequence[int]) -> float:
    """Mean answer length in tokens, log-uniform over the first ids of a sequence."""
    share = (_mix(crc32(array("H", head[:HEAD_IDS]).tobytes()), 0) >> 40) / (1 << 24)
    return float(SHORTEST_MEAN * (LONGEST_MEAN / SHORTEST_MEAN) ** share)


def end_threshold(head: Sequence[int]) -> int:
    """The 24-bit draw below which a sequence that starts with `head` ends: a hazard of 1 / mean length per token."""
    return int((1 << 24) / mean_length(head))


@dataclass(frozen=True, slots=True)
class Speech:
    """The table that the draws index: words by falling frequency, some punctuation, now and then a dash.

    A dash is three byte tokens, so about one answer in three holds places where it may not be cut: what reads token
    ids must keep to character boundaries, and a test on this engine sees it when it does not.
    """

    table: tuple[int, ...]

    @classmethod
    def of(cls, word_count: int) -> Speech:
        # The square puts half of the draws on the first quarter of the words.
        words = [FIRST_WORD_ID + int(word_count * (slot / TABLE_SIZE) ** 2) for slot in range(TABLE_SIZE)]
        words[::23] = [ord(",")] * len(words[::23])
        words[7::41] = [ord(".")] * len(words[7::41])
        words[333] = words[777] = DASH[0]
        return cls(tuple(words))

    def next_id(self, state: int, last: int, before_last: int, threshold: int, may_end: bool, salt: int = 0) -> int:
        """`last` and `before_last` are the sequence's final ids; `salt` tells the siblings of n > 1 apart."""
        if last == DASH[0]:
            return DASH[1]
        if last == DASH[1] and before_last == DASH[0]:
            return DASH[2]
        draw = _mix(state, salt)
        if may_end and draw >> 40 < threshold:
            return END_ID
        return self.table[draw >> 16 & (TABLE_SIZE - 1)]


def _mix(state: int, salt: int) -> int:
    # A CRC is linear, so neighbouring sequences need the two multiplications (splitmix64's) to part.
    value = (state + salt * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31
