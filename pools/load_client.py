"""One streamed /v1/completions with forced lengths, timed by the client's own clock. Owns the body and the token count.

Prompts are token ids drawn at random, so that their length is exact and no prefix cache helps; tokens are counted from
the engine's running usage, never from chunks.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field

from core.clock import Clock
from core.errors import UpstreamFailed
from pools.connection import Wires
from pools.measure import Lengths

COUNT = re.compile(rb'"completion_tokens":\s*(\d+)')
SILENCE_S = 300.0
LEAST_ID, MOST_ID = 300, 2000  # plain words in every vocabulary met, the smallest of which has 2,048


@dataclass(slots=True)
class Answer:
    """A request under way. Only its own task writes to it. `gaps` are (when, gap, tokens after such a gap);
    `first_tokens` came together in the first chunk and have no gap."""

    arrived_s: float
    first_s: float | None = None
    first_tokens: int = 0
    finished_s: float | None = None
    tokens: int = 0
    gaps: list[tuple[float, float, int]] = field(default_factory=list)


def body_of(model: str, lengths: Lengths, seed: int) -> bytes:
    draw = random.Random(seed)
    body = {
        "model": model,
        "prompt": [draw.randrange(LEAST_ID, MOST_ID) for _ in range(lengths.input_tokens)],
        "max_tokens": lengths.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    return json.dumps(body).encode()


async def ask(wires: Wires, clock: Clock, body: bytes, answer: Answer, tokens: int) -> None:
    """Fills `answer`; UpstreamFailed unless exactly `tokens` tokens came. Cancelling it ends the engine's work."""
    headers = [(b"content-type", b"application/json")]
    last_s = answer.arrived_s
    async with await wires.send(b"POST", b"/v1/completions", headers, body) as exchange:
        head = await exchange.head(SILENCE_S)
        if head.status != 200:
            told = (await exchange.body(SILENCE_S, 65536))[:300].decode(errors="replace")
            raise UpstreamFailed(f"the instance answered {head.status}: {told}")
        rest = b""
        while chunk := await exchange.chunk(SILENCE_S):
            now_s = clock.now_s()
            counts = COUNT.findall(rest + chunk)
            rest = (rest + chunk)[(rest + chunk).rfind(b"\n") + 1 :]
            fresh = int(counts[-1]) - answer.tokens if counts else 0
            if fresh <= 0:
                continue
            if answer.first_s is None:
                answer.first_s, answer.first_tokens = now_s, fresh
            else:
                answer.gaps.append((now_s, (now_s - last_s) / fresh, fresh))
            answer.tokens += fresh
            last_s = now_s
    if answer.tokens != tokens:
        raise UpstreamFailed(f"{answer.tokens} tokens came instead of {tokens}: does its context hold this class?")
    answer.finished_s = last_s
