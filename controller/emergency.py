"""Where each pool stands on the ladder, from its queue and what its instances prefill in a second. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.knowledge import ServiceKnowledge
from controller.pressure import Standing, climbed, lateness_s, overdue, taken
from controller.state import ServiceState
from controller.trust import Doubt
from core.instances import Action, Seen, SeenInstance, SeenPool, State, Steer

STEERED = ("spill", "move", "shed")  # rungs that change how requests are taken


def climb(
    one: ServiceState, seen: Seen, known: ServiceKnowledge, doubt: Doubt, notes: list[Mapping[str, object]]
) -> tuple[ServiceState, list[Action]]:
    """A Steer where spilling, moving or shedding begins or ends; boosts are the clocks' business. Nobody is shed for a
    queue that may have gone long ago."""
    standings, actions = dict(one.standings), list[Action]()
    pools = [pool for pool in seen.pools if pool.service == known.spec.name]
    ready = [i for i in seen.instances if i.service == known.spec.name and i.state is State.READY]
    for place, pool in enumerate(pools):
        before = standings.get(pool.name, Standing())
        owed_s = overdue(max((i.overdue_s for i in ready if i.pool == pool.name), default=0.0))
        if not pool.queued and not before.rungs and owed_s < 0:
            continue
        late_s = max(owed_s, predicted_late_s(pools, place, ready, known, seen.now_s))
        after = climbed(before, late_s, pool.queued, seen.now_s, sheds=pool.name not in doubt.queues)
        if after.rungs != before.rungs:
            notes.append(
                {
                    "note": "ladder",
                    "service": pool.service,
                    "pool": pool.name,
                    "rungs": taken(after),
                    "cause": after.cause,
                }
            )
            actions += _steers(pool, before, after)
        standings[pool.name] = after
    return replace(one, standings=standings), actions


def predicted_late_s(
    pools: Sequence[SeenPool], place: int, ready: Sequence[SeenInstance], known: ServiceKnowledge, now_s: float
) -> float:  # fmt: skip
    """Of the worst request that waits for the pool at `place`; negative: the slack of its whole queue."""
    able = [i for i in ready if _reachable(pools, i, place)]
    return lateness_s(pools[place].waiting, now_s, prefill_tokens_per_s(able, known))


def prefill_tokens_per_s(instances: Sequence[SeenInstance], known: ServiceKnowledge) -> float:
    """Prompt tokens that these instances compute in a second beside what they decode, at their present clocks."""
    model, total = known.model, 0.0
    assert model is not None
    for i in instances:
        room = max(1, (known.step_tokens.get(i.tp) or 2048) - i.sequences)
        total += room / model.step_s(i.tp, i.clock_mhz, room, i.sequences, i.kv_tokens)
    return total


def _reachable(pools: Sequence[SeenPool], instance: SeenInstance, place: int) -> bool:
    """A pool's requests may go there: it serves them or longer ones."""
    return any(pool.name == instance.pool for pool in pools[place:])


def _steers(pool: SeenPool, before: Standing, after: Standing) -> list[Action]:
    was, now = taken(before), taken(after)
    if [name in was for name in STEERED] == [name in now for name in STEERED]:
        return []
    return [Steer(pool.service, pool.name, "spill" in now, "shed" in now, after.cause, "move" in now)]
