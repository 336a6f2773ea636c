"""From a validated wish to sequences: `Job` is one generating HTTP request before it enters the engine.

Owns the token limits per prompt and the order of choices (prompt by prompt, siblings together). A `Face` is how one
endpoint writes a job's answers; there are four.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simulator.engine import Ask
from simulator.server_errors import too_long
from simulator.server_fields import Sampling
from simulator.server_outlet import Delta, Outlet
from simulator.tokens import TextDecoder, Tokenizer


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    created: int
    model: str
    prompts: Sequence[list[int]]
    sampling: Sampling
    forced: tuple[int, ...] = ()
    tool: str | None = None
    tool_required: bool = False
    echo: bool = False

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


class Face(Protocol):
    """Writes the answers of one job in the shape of its endpoint."""

    def opening(self, outlets: Sequence[Outlet]) -> bytes: ...

    def delta(self, outlet: Outlet, delta: Delta) -> bytes: ...

    def closing(self, outlets: Sequence[Outlet]) -> bytes: ...

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]: ...


def outlets_of(job: Job, tokenizer: Tokenizer, context_limit: int, now_s: float) -> list[Outlet]:
    """One outlet per answer; raises 400 when a prompt leaves no room for a single token."""
    sampling = job.sampling
    # A client may send one request id twice at a time; inside the engine ids are unique, as in the real server.
    own = f"{job.id}-{os.urandom(4).hex()}"
    outlets: list[Outlet] = []
    for prompt in job.prompts:
        if len(prompt) >= context_limit:
            raise too_long(context_limit, len(prompt))
        room = context_limit - len(prompt)
        for sibling in range(sampling.n):
            index = len(outlets)
            ask = Ask(
                id=f"{own}-{index}",
                prompt=prompt,
                max_tokens=room if sampling.max_tokens is None else min(room, sampling.max_tokens),
                min_tokens=sampling.min_tokens,
                ignore_eos=sampling.ignore_eos,
                stop_ids=sampling.stop_ids,
                priority=sampling.priority,
                own_end=sampling.own_end,
                forced=job.forced,
                salt=sibling,
            )
            decoder = TextDecoder(tokenizer, prompt)
            outlets.append(Outlet(index, ask, decoder, sampling.stop, sampling.include_stop, now_s))
    return outlets
