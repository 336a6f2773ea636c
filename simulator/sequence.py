"""The parts of the engine of simulations: a sequence, its states, what an engine does next, and what it counts.

Plain values; only the engine that holds them writes to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.step_costs import DecodeRun

WAITING, PREFILLING, DECODING, GONE = range(4)


class Seq:
    """One sequence. Only its engine writes to it. `owner` is the driver's own."""

    __slots__ = (
        "adopted", "computed", "end", "finish_at", "finished_s", "first_s", "from_late", "from_step", "gaps_late",
        "generated", "group", "last_s", "order", "owner", "preemptions", "priority", "prompt", "state", "total",
    )  # fmt: skip

    def __init__(self, prompt: int, end: int, priority: int, order: int, group: int, owner: object) -> None:
        self.prompt = prompt
        self.end = end  # output tokens at which it finishes
        self.priority = priority
        self.order = order
        self.group = group
        self.owner = owner
        self.state = WAITING
        self.generated = 0  # as of `from_step`
        self.total = prompt  # prompt and generated tokens, as of `from_step`
        self.computed = 0
        self.adopted = False  # it came from another engine and has no token of this one yet
        self.from_step = 0  # the engine's count of steps when decoding began
        self.from_late = 0
        self.finish_at = -1  # the engine's count of steps at which the last token comes
        self.gaps_late = 0
        self.preemptions = 0
        self.first_s: float | None = None
        self.last_s = 0.0
        self.finished_s: float | None = None

    def __lt__(self, other: Seq) -> bool:
        return (self.priority, self.order) < (other.priority, other.order)

    @property
    def gaps(self) -> int:
        """Gaps of a finished sequence."""
        return self.end - 1


@dataclass(slots=True)
class Joules:
    """Energy by cause; `idle` is time with nothing to run."""

    prefill: float = 0.0
    decode: float = 0.0
    idle: float = 0.0


@dataclass(slots=True)
class EngineCounters:
    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class Segment:
    """What the engine does from `start_s` to `end_s`: a run of decode steps, or one step with prefill."""

    start_s: float
    end_s: float
    watts: float
    steps: int
    run: DecodeRun | None
    prefill_share: float
    chunks: Sequence[tuple[Seq, int]] = ()
