"""The live cluster: all fleets, probed and observed, with actions applied. A controller's `Cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from core.clock import Clock
from core.instances import (
    Action,
    Exclude,
    Forget,
    GiveBack,
    Hold,
    OnInstance,
    Park,
    Release,
    Resume,
    Seen,
    SeenGpus,
    SeenInstance,
    SeenPool,
    SeenService,
    SetClock,
    Start,
    State,
    Steer,
    Stop,
    Wake,
)  # fmt: skip
from pools.clock_keeper import ClockKeeper
from pools.fleet import Fleet
from pools.gpu_book import Islands
from pools.probe import health
from pools.sleepers import Sleepers

Metered = Callable[[str], tuple[float, str, float] | None]  # of a service: watts, their quality, their age in seconds
NO_METER: Metered = lambda service: None  # noqa: E731


class LiveCluster:
    """Owns the fleets by service name, those that retire, the prober tasks and the keeper of clocks. `gpus`: how many
    instances may use; 0: nobody counts them. `islands`: which of them NVLink joins, where that is known. `metered`:
    what energy counters say that a service draws.

    A service may be removed and come back before its instances have drained: then two fleets bear its name for a
    while, the one in `fleets` and one in `retiring`."""

    def __init__(
        self, fleets: Iterable[Fleet], clock: Clock, *, probe_interval_s: float, probe_timeout_s: float,
        gpus: Callable[[], int] = int, islands: Callable[[], Islands] = tuple,
    ) -> None:  # fmt: skip
        self.fleets = {fleet.spec.name: fleet for fleet in fleets}
        self.retiring: list[Fleet] = []
        self.changed = asyncio.Event()
        self.clocks = ClockKeeper(self.all_fleets, clock)
        self.sleepers = Sleepers()
        self.metered = NO_METER
        self._clock = clock
        self._gpus = gpus
        self._islands = islands
        self._interval_s = probe_interval_s
        self._timeout_s = probe_timeout_s

    def add(self, fleet: Fleet) -> None:
        self.fleets[fleet.spec.name] = fleet

    def retire(self, service: str) -> None:
        """Its fleet starts nothing more and goes when its last instance has."""
        fleet = self.fleets.pop(service)
        fleet.retire()
        self.retiring.append(fleet)

    def all_fleets(self) -> Iterator[Fleet]:
        yield from self.fleets.values()
        yield from self.retiring

    async def observe(self) -> Seen:
        pools: list[SeenPool] = []
        instances: list[SeenInstance] = []
        for fleet in self.all_fleets():
            fleet.check_processes()
        self.retiring = [fleet for fleet in self.retiring if fleet.members]
        for fleet in self.all_fleets():
            seen_pools, seen_instances = fleet.observe()
            pools += seen_pools
            instances += seen_instances
        services = tuple(self._service(fleet) for fleet in self.fleets.values())
        used = sum(i.tp for i in instances if not i.adopted)
        gpus = SeenGpus(self._gpus(), used, 0, self._islands())
        return Seen(self._clock.now_s(), tuple(pools), tuple(instances), services, gpus, self._clock.wall_s())

    def _service(self, fleet: Fleet) -> SeenService:
        """Watts as they are counted, and else as the engine model has them now."""
        name = fleet.spec.name
        watts, quality, age_s = self.metered(name) or (*fleet.watts(), 0.0)
        return SeenService(name, fleet.counts.seen(), watts, quality, watts_age_s=age_s)

    async def apply(self, action: Action) -> None:
        """Idempotent: an action on something that has gone does nothing. GPUs of this host need no giving back."""
        if isinstance(action, Start | Steer):
            fleet = self.fleets.get(action.service)
            if fleet is not None and isinstance(action, Start):
                fleet.start(action.pool, action.reason, action.shape)
                self.clocks.wake.set()
            elif fleet is not None and isinstance(action, Steer):
                fleet.admission.router.steer(action)
                fleet.admission.pump()
            return
        if isinstance(action, GiveBack):
            return
        if isinstance(action, Exclude):
            for fleet in self.all_fleets():
                fleet.launcher.exclude(action.gpus)
            return
        for fleet in self.all_fleets():
            if action.instance_id in fleet.members:
                self._apply_to(fleet, action)

    def _apply_to(self, fleet: Fleet, action: OnInstance) -> None:
        match action:
            case Stop():
                fleet.drain(action.instance_id, action.reason)
            case Resume():
                fleet.serve_on(action.instance_id, action.reason)
            case Forget():
                fleet.forget(action.instance_id)
            case SetClock():
                fleet.want_clock(action.instance_id, action.clock_mhz)
                self.clocks.wake.set()
            case Park():
                self.sleepers.park(fleet, action.instance_id, action.reason)
            case Wake():
                self.sleepers.wake(fleet, action.instance_id, action.reason)
            case Hold():
                fleet.drain(action.instance_id, action.reason, resumable=True)
            case Release():
                fleet.resume(action.instance_id)

    async def probe_forever(self) -> None:
        """Probes every instance, each by a task of its own, so that one that hangs holds up no other."""
        async with asyncio.TaskGroup() as group:
            probing: dict[str, asyncio.Task[None]] = {}
            while True:
                members = {i: fleet for fleet in self.all_fleets() for i in fleet.members}
                for instance_id in probing.keys() - members.keys():
                    probing.pop(instance_id).cancel()
                for instance_id in members.keys() - probing.keys():
                    task = group.create_task(self._probe_one(members[instance_id], instance_id))
                    probing[instance_id] = task
                for fleet in self.all_fleets():
                    fleet.admission.pump()  # a breaker's pause ends without an event of its own
                await self._clock.sleep(min(0.1, self._interval_s))

    async def _probe_one(self, fleet: Fleet, instance_id: str) -> None:
        """While it is in the fleet; a starting one more often, so that it serves as soon as it can."""
        while (member := fleet.members.get(instance_id)) is not None:
            before = member.instance.state
            began_s = self._clock.now_s()
            healthy, detail = await health(member.probes, self._timeout_s)
            if healthy:
                member.instance.well_s = began_s
            fleet.probed(instance_id, healthy, detail)
            if member.instance.state is not before:
                self.changed.set()
            starting = member.instance.state is State.STARTING
            await self._clock.sleep(min(0.2, self._interval_s) if starting else self._interval_s)

    async def close(self, stop_timeout_s: float) -> None:
        """Ends every child: politely, then by force within `stop_timeout_s`."""
        await self.sleepers.close()
        children = [(f, i) for f in self.all_fleets() if f.launcher.managed for i in f.members]
        for fleet, instance_id in children:
            fleet.launcher.stop(instance_id, force=False)
        deadline_s = self._clock.now_s() + stop_timeout_s
        while any(f.launcher.alive(i) for f, i in children) and self._clock.now_s() < deadline_s:
            await self._clock.sleep(0.05)
        for fleet in self.all_fleets():
            for instance_id in list(fleet.members):
                fleet.forget(instance_id)
