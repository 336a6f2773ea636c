"""How far a queue is from breaking its promises, and the ladder of what is done about it. Pure.

Predicted slack counts, not length: a hundred requests that all make it are no emergency, one that does not is. Rungs
are data; each holds for a while after its trigger has gone, then the one below it is what is left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.instances import SeenWaiting


@dataclass(frozen=True, slots=True)
class Rung:
    """Taken when the predicted lateness of a pool's queue exceeds `late_s`, after the rung below has been there for
    `after_s`; left again `hold_s` after that is over."""

    name: str
    late_s: float
    after_s: float
    hold_s: float


GRACE_S = 1.0  # a first token may be overdue: forecasts of prefill are some tenths of a second wrong
# Deadlines order the queue at all times; then, in this order:
LADDER = (
    Rung("boost", 0.0, 0.0, 10.0),  # clocks to maximum: milliseconds, and a few joules
    Rung("spill", 0.25, 1.0, 10.0),  # pools of shorter answers help: costs the promises of nobody yet
    Rung("move", 0.5, 1.0, 5.0),  # what an instance has not begun though it was due goes elsewhere: a prefill at worst
    Rung("shed", 2.0, 2.0, 5.0),  # who is late already makes way: costs answers, saves those behind
)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one pool stands: rungs taken (0 = none), since when, and until when the topmost holds."""

    rungs: int = 0
    since_s: float = 0.0
    until_s: float = 0.0
    cause: str = ""


def lateness_s(waiting: Sequence[SeenWaiting], now_s: float, tokens_per_s: float) -> float:
    """Seconds by which the worst of the queue is predicted to miss its deadline if prompts go in this order at
    `tokens_per_s`; negative: what is left to spare. Minus infinity for an empty queue."""
    ahead_tokens, worst_s = 0, -math.inf
    for request in waiting:
        ahead_tokens += request.input_tokens
        done_s = now_s + (ahead_tokens / tokens_per_s if tokens_per_s > 0 else math.inf)
        worst_s = max(worst_s, done_s - request.deadline_s)
    return worst_s


def overdue(worst_s: float) -> float:
    """Lateness that stands for first tokens which instances owe. It never sheds: whoever waits is not the cause."""
    return min(worst_s - GRACE_S, LADDER[-1].late_s) if worst_s > GRACE_S else -math.inf


def climbed(standing: Standing, late_s: float, queued: int, now_s: float, *, sheds: bool = True) -> Standing:
    """One rung up at most, one down at most. Without `sheds` the topmost is out of reach, and left at once."""
    rungs, most = standing.rungs, len(LADDER) - (not sheds)
    if rungs > most:
        return Standing(most, now_s, now_s + LADDER[most - 1].hold_s, standing.cause)
    if rungs < most:
        above = LADDER[rungs]
        if late_s > above.late_s and now_s - standing.since_s >= above.after_s:
            cause = f"{queued} wait, the worst is predicted {late_s:.2f} s late"
            return Standing(rungs + 1, now_s, now_s + above.hold_s, cause)
    if rungs == 0:
        return standing
    here = LADDER[rungs - 1]
    if late_s > here.late_s:
        return replace(standing, until_s=now_s + here.hold_s)
    if now_s >= standing.until_s:
        below = LADDER[rungs - 2].hold_s if rungs > 1 else 0.0
        return Standing(rungs - 1, now_s, now_s + below, standing.cause)
    return standing


def taken(standing: Standing) -> tuple[str, ...]:
    return tuple(rung.name for rung in LADDER[: standing.rungs])
