"""What of the observations is too old to be acted on as if it were fresh. Pure.

What is old is not thrown away: it counts for the moment it tells of, and may make the controller do more. It may not
make it do less: no clock is lowered, nothing is drained and nothing is shed for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.knowledge import Settings
from core.instances import Seen, State


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is doubted of one service: `what` in words, by its age in seconds. `queues`: pools whose queue is, `pools`:
    those of which anything is. `watts` alone hold back nothing but learning."""

    what: Mapping[str, float]
    queues: frozenset[str] = frozenset()
    pools: frozenset[str] = frozenset()

    @property
    def holds(self) -> bool:
        """Whether anything is doubted that the number of instances rests on."""
        return bool(self.pools)


def doubted(seen: Seen, service: str, settings: Settings) -> Doubt:
    """Everything whose age is over `settings.stale_s`."""
    most_s = settings.stale_s
    what: dict[str, float] = {}
    mine = [pool for pool in seen.pools if pool.service == service]
    queues = {pool.name: pool.age_s for pool in mine if pool.age_s > most_s}
    what |= {f"queue of {name}": age_s for name, age_s in queues.items()}
    silent = [i for i in seen.instances if i.age_s > most_s and i.service == service and i.state is State.READY]
    what |= {i.id: i.age_s for i in silent}
    counts = next((one for one in seen.services if one.name == service), None)
    load = counts is not None and counts.age_s > most_s
    if counts is not None and load:
        what["load and attainment"] = counts.age_s
    if counts is not None and counts.watts_age_s > most_s:
        what["watts"] = counts.watts_age_s
    pools = {pool.name for pool in mine} if load else {*queues, *(i.pool for i in silent)}
    return Doubt(what, frozenset(queues), frozenset(pools))
