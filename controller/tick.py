"""One decision of the controller: from what is seen to the next safe steps. Pure: no I/O, no clock, no randomness.

The plan it reconciles towards is the number of instances that each pool is configured or asked to have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from core.instances import Action, Forget, Seen, SeenInstance, SeenPool, Start, State, Stop

BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # before the n-th start in a row that did not become ready
LIVE = (State.STARTING, State.READY, State.PARKED)


@dataclass(frozen=True, slots=True)
class ControllerState:
    """Survives from tick to tick. `failures` counts starts in a row that failed, by (service, pool)."""

    failures: dict[tuple[str, str], int] = field(default_factory=dict)
    retry_at_s: dict[tuple[str, str], float] = field(default_factory=dict)
    ticks: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    actions: tuple[Action, ...]
    next_due_s: float


def tick(state: ControllerState, seen: Seen, interval_s: float) -> tuple[ControllerState, Decision]:
    """Replaces what died, starts what is missing, drains what is too many. Applying it twice changes nothing more."""
    failures, retry_at_s = dict(state.failures), dict(state.retry_at_s)
    actions: list[Action] = []
    for pool in seen.pools:
        if not pool.managed:
            continue
        key = (pool.service, pool.name)
        mine = [i for i in seen.instances if (i.service, i.pool) == key]
        dead = [i for i in mine if i.state is State.FAILED and not i.adopted]
        actions += [Forget(i.id, "it failed") for i in dead]
        if dead:
            failures[key] = failures.get(key, 0) + len(dead)
            retry_at_s[key] = seen.now_s + BACKOFF_S[min(failures[key], len(BACKOFF_S) - 1)]
        if any(i.state is State.READY and seen.now_s - i.since_s > BACKOFF_S[-1] for i in mine):
            failures.pop(key, None)
        if seen.now_s >= retry_at_s.get(key, 0.0):
            actions += _missing(pool, mine)
        actions += _surplus(pool, mine)
    new_state = ControllerState(failures, retry_at_s, state.ticks + 1)
    return new_state, Decision(tuple(actions), seen.now_s + interval_s)


def _missing(pool: SeenPool, mine: list[SeenInstance]) -> Iterator[Action]:
    live = sum(1 for i in mine if i.state in LIVE or i.held)
    for _ in range(pool.wanted - live):
        yield Start(pool.service, pool.name, f"the plan wants {pool.wanted}, {live} are there")


def _surplus(pool: SeenPool, mine: list[SeenInstance]) -> Iterator[Action]:
    """Starting ones go first, then those with the fewest requests: the cheapest to lose."""
    live = sorted((i for i in mine if i.state in LIVE), key=lambda i: (i.state is State.READY, i.running, i.id))
    for instance in live[: max(0, len(live) - pool.wanted)]:
        yield Stop(instance.id, f"the plan wants {pool.wanted}, {len(live)} are there")
