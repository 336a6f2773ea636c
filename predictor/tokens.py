"""How many tokens a prompt has: an estimate from its bytes, calibrated by what engines report, and an exact count from
the model's own tokenizer where the estimate is too close to an edge to choose a class."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

BYTES_PER_TOKEN = 4.2  # English chat text; the first answers replace it
NEAR = 0.15  # relative distance from an edge within which an estimate does not decide
SMOOTHING = 0.05


class TokenEstimate:
    """A running ratio of prompt bytes to prompt tokens for one service."""

    def __init__(self) -> None:
        self.bytes_per_token = BYTES_PER_TOKEN

    def tokens(self, prompt_bytes: int) -> int:
        return max(1, round(prompt_bytes / self.bytes_per_token))

    def learn(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """Short prompts are mostly template and would bend the ratio."""
        if prompt_tokens < 32 or prompt_bytes <= 0:
            return
        ratio = min(16.0, max(0.5, prompt_bytes / prompt_tokens))
        self.bytes_per_token += SMOOTHING * (ratio - self.bytes_per_token)

    def near(self, tokens: int, edges: Sequence[int]) -> bool:
        return any(abs(tokens - edge) <= NEAR * edge for edge in edges)


class ExactCount:
    """The model's tokenizer.json, run in a thread because a long prompt takes milliseconds."""

    def __init__(self, path: str) -> None:
        self._tokenizer = Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))

    async def tokens(self, text: str) -> int:
        encoded = await asyncio.to_thread(self._tokenizer.encode, text)
        return len(encoded.ids)
