"""The emulated tokenizer: text to ids and back, without loss. Owns ids and pieces; knows nothing of engines or HTTP.

Ids 0-255 are bytes, then the special pieces, then the vocabulary. English comes at about 3 characters a token. A word
with its leading space (" the") is exactly one token, which is how prompts of an exact length are made (`filler`).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from simulator.vocabulary import CAPITALISED, FRAGMENTS, WORDS

SPECIALS = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
END_ID, SYSTEM_ID, USER_ID, ASSISTANT_ID, TOOL_ID = range(256, 256 + len(SPECIALS))
FIRST_WORD_ID = 256 + len(SPECIALS)

# A space belongs to the letters after it; everything that is not a letter goes byte by byte.
SPLIT = re.compile(r" ?[A-Za-z]+|(?:(?! [A-Za-z])[^A-Za-z])+")
SPECIAL_SPLIT = re.compile("(" + "|".join(re.escape(piece) for piece in SPECIALS) + ")")
CACHE_LIMIT = 20_000


class Tokenizer:
    """Encodes by longest match inside a word. Keeps a bounded cache of words; hold one per process."""

    def __init__(self) -> None:
        words = [" " + word for word in WORDS.split()]
        others = [piece.replace("_", " ") for piece in (CAPITALISED + FRAGMENTS).split()]
        learnt = list(dict.fromkeys(words + others))
        self.word_count = len(words)
        self.pieces: list[bytes] = [bytes([value]) for value in range(256)]
        self.pieces += [piece.encode() for piece in (*SPECIALS, *learnt)]
        self.ids = {piece: FIRST_WORD_ID + index for index, piece in enumerate(learnt)}
        self._longest = max(map(len, learnt))
        self._cache: dict[str, list[int]] = {}

    @property
    def size(self) -> int:
        return len(self.pieces)

    @cached_property
    def texts(self) -> list[str]:
        """The text of each id that is one by itself; empty for the bytes of longer characters."""
        return [piece.decode() if index < 128 or index >= 256 else "" for index, piece in enumerate(self.pieces)]

    def encode(self, text: str) -> list[int]:
        if "<|" not in text:
            return self._encode_plain(text)
        ids: list[int] = []
        for part in SPECIAL_SPLIT.split(text):
            if part in SPECIALS:
                ids.append(256 + SPECIALS.index(part))
            else:
                ids += self._encode_plain(part)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The whole text; bytes that form no character become U+FFFD."""
        pieces = self.pieces
        return b"".join([pieces[token] for token in ids]).decode("utf-8", "replace")

    def filler(self, n_tokens: int, seed: int = 0) -> str:
        """A text of exactly `n_tokens` tokens. Seed 0 repeats " the"; other seeds draw other words."""
        if seed == 0:
            return " the" * n_tokens
        words = [self.pieces[FIRST_WORD_ID + (seed * 31 + at * 17) % self.word_count] for at in range(n_tokens)]
        return b"".join(words).decode()

    def _encode_plain(self, text: str) -> list[int]:
        cache, ids = self._cache, []
        for word in SPLIT.findall(text):
            known = cache.get(word)
            if known is None:
                known = self._encode_word(word)
                if len(cache) >= CACHE_LIMIT:
                    cache.clear()
                if len(word) <= 32:
                    cache[word] = known
            ids += known
        return ids

    def _encode_word(self, word: str) -> list[int]:
        # "surrogatepass" keeps a lone surrogate from a JSON \\ud800 escape from failing; its bytes decode to U+FFFD.
        if not word[-1].isascii() or not word[-1].isalpha():
            return list(word.encode("utf-8", "surrogatepass"))
        ids, at, end = [], 0, len(word)
        while at < end:
            for stop in range(min(end, at + self._longest), at, -1):
                known = self.ids.get(word[at:stop])
                if known is not None:
                    ids.append(known)
                    at = stop
                    break
            else:
                ids.append(ord(word[at]))
                at += 1
        return ids


class TextDecoder:
    """Decodes one growing answer. Holds the bytes of an unfinished character back until it is whole."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._texts = tokenizer.texts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._whole = True
        self._prompt = ""
        self._prime(prompt_ids)

    def push(self, token: int) -> str:
        """The text that `token` completes; empty for a special piece and inside a character."""
        if 256 <= token < FIRST_WORD_ID:
            return ""
        text = self._texts[token]
        if self._whole and text:
            return text
        text = self._decoder.decode(self._tokenizer.pieces[token])
        self._whole = self._decoder.getstate()[0] == b""
        if text and self._prompt:
            text, self._prompt = self._prompt + text, ""
        return text

    def _prime(self, prompt_ids: Sequence[int]) -> None:
        # As the real vLLM: a prompt that ends inside a character comes back whole with the first text of the answer.
        tail = b"".join([self._tokenizer.pieces[token] for token in prompt_ids[-3:]])
        self._decoder.decode(tail)
        self._whole = self._decoder.getstate()[0] == b""
        if self._whole:
            self._decoder.reset()
        else:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            self._prompt = decoder.decode(b"".join([self._tokenizer.pieces[token] for token in prompt_ids]))
