"""What goes wrong in a simulation, by seed: deaths, slow starts, stale readings, clock writes that do not take, plans
that do not come. Owns the draws and their counts; the cluster and the controller's world ask it."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from core.instances import Action, Seen, SeenInstance

if TYPE_CHECKING:
    from simulator.cluster import SimCluster
    from simulator.world import World

SLOW_TIMES = 4.0  # a slow start takes this many times as long


@dataclass(frozen=True, slots=True)
class Faults:
    """`deaths`: per hour and instance. `stale_s`: age of what the controller sees of loads and queues. The others are
    shares from 0 to 1: of starts, of clock writes, of plans."""

    deaths: float = 0.0
    slow_starts: float = 0.0
    stale_s: float = 0.0
    refused_clocks: float = 0.0
    lost_plans: float = 0.0


NO_FAULTS = Faults()


@dataclass(slots=True)
class Met:
    """How often each fault came to pass."""

    deaths: int = 0
    slow_starts: int = 0
    refused_clocks: int = 0
    lost_plans: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class PlanLost(Exception):
    """The solver did not answer in time. Injected."""


@dataclass(slots=True)
class Luck:
    """The draws of one run. One stream of random numbers for each fault, so that one does not shift the others."""

    faults: Faults = NO_FAULTS
    seed: int = 0
    met: Met = field(default_factory=Met)
    _draws: dict[str, random.Random] = field(default_factory=dict)

    def start_times(self) -> float:
        slow = self._comes("slow_starts", self.faults.slow_starts)
        self.met.slow_starts += slow
        return SLOW_TIMES if slow else 1.0

    def clock_takes(self) -> bool:
        refused = self._comes("refused_clocks", self.faults.refused_clocks)
        self.met.refused_clocks += refused
        return not refused

    def plan_comes(self) -> bool:
        lost = self._comes("lost_plans", self.faults.lost_plans)
        self.met.lost_plans += lost
        return not lost

    def kill(self, world: World, cluster: SimCluster) -> None:
        """Schedules the deaths of a run: each live instance with the same hazard, whoever lives then."""
        if self.faults.deaths > 0:
            self._next_death(world, cluster)

    def _next_death(self, world: World, cluster: SimCluster) -> None:
        draw = self._draw("deaths")
        wait_s = draw.expovariate(self.faults.deaths * max(1, len(cluster.living())) / 3600.0)

        def dies() -> None:
            if alive := cluster.living():
                self.met.deaths += 1
                cluster.fail(draw.choice(alive), "killed by the simulation")
            self._next_death(world, cluster)

        world.at(world.now_s + wait_s, dies)

    def _comes(self, name: str, share: float) -> bool:
        return share > 0 and self._draw(name).random() < share

    def _draw(self, name: str) -> random.Random:
        if name not in self._draws:
            self._draws[name] = random.Random(f"{self.seed} {name}")
        return self._draws[name]


class Blurred:
    """The cluster as the controller meets it: its readings are late."""

    def __init__(self, cluster: SimCluster, luck: Luck) -> None:
        self.changed = cluster.changed
        self._cluster = cluster
        self._luck = luck
        self._past: deque[Seen] = deque()

    async def observe(self) -> Seen:
        seen = await self._cluster.observe()
        stale_s = self._luck.faults.stale_s
        if stale_s <= 0:
            return seen
        self._past.append(seen)
        while len(self._past) > 1 and self._past[1].now_s <= seen.now_s - stale_s:
            self._past.popleft()
        return _late(seen, self._past[0])

    async def apply(self, action: Action) -> None:
        await self._cluster.apply(action)


def _late(seen: Seen, past: Seen) -> Seen:
    """Who lives is known at once (connections tell); what they hold and who waits is as it was, and says how old it
    is."""
    age_s = seen.now_s - past.now_s
    old = {one.id: one for one in past.instances}
    instances = tuple(_with_load(one, old[one.id], age_s) if one.id in old else one for one in seen.instances)
    queues = {pool.name: pool for pool in past.pools}
    pools = tuple(
        replace(pool, queued=queues[pool.name].queued, waiting=queues[pool.name].waiting, age_s=age_s)
        for pool in seen.pools
    )
    services = tuple(replace(one, age_s=age_s, watts_age_s=age_s) for one in past.services)
    return replace(seen, instances=instances, pools=pools, services=services)


def _with_load(one: SeenInstance, old: SeenInstance, age_s: float) -> SeenInstance:
    return replace(
        one, running=old.running, sequences=old.sequences, kv_tokens=old.kv_tokens, prefill_tokens=old.prefill_tokens,
        tbt_limit_s=old.tbt_limit_s, age_s=age_s,
    )  # fmt: skip
