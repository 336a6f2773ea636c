"""The live cluster: all fleets, probed and observed, with actions applied. A controller's `Cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import httpx

from core.clock import Clock
from core.instances import Action, Forget, Seen, SeenInstance, SeenPool, Start, State, Stop
from pools.fleet import Fleet


class LiveCluster:
    """Owns the fleets by service name and the prober tasks."""

    def __init__(
        self, fleets: Iterable[Fleet], clock: Clock, *, probe_interval_s: float, probe_timeout_s: float
    ) -> None:
        self.fleets = {fleet.spec.name: fleet for fleet in fleets}
        self.changed = asyncio.Event()
        self._clock = clock
        self._interval_s = probe_interval_s
        self._probes = httpx.AsyncClient(timeout=probe_timeout_s, trust_env=False)

    async def observe(self) -> Seen:
        pools: list[SeenPool] = []
        instances: list[SeenInstance] = []
        for name, fleet in list(self.fleets.items()):
            fleet.check_processes()
            if not fleet.wanted and not fleet.members:
                del self.fleets[name]
            seen_pools, seen_instances = fleet.observe()
            pools += seen_pools
            instances += seen_instances
        return Seen(self._clock.now_s(), tuple(pools), tuple(instances))

    async def apply(self, action: Action) -> None:
        """Idempotent: an action on something that has gone does nothing."""
        if isinstance(action, Start):
            fleet = self.fleets.get(action.service)
            if fleet is not None:
                fleet.start(action.pool, action.reason)
            return
        for fleet in self.fleets.values():
            if action.instance_id in fleet.members:
                if isinstance(action, Stop):
                    fleet.drain(action.instance_id, action.reason)
                elif isinstance(action, Forget):
                    fleet.forget(action.instance_id)

    async def probe_forever(self) -> None:
        """Probes every instance; a starting one more often, so that it serves as soon as it can."""
        due_s: dict[str, float] = {}
        while True:
            now_s = self._clock.now_s()
            members = [(f, m) for f in self.fleets.values() for m in f.members.values()]
            due = [(f, m) for f, m in members if due_s.get(m.instance.id, 0.0) <= now_s]
            await asyncio.gather(
                *(self._probe(fleet, member.instance.id, member.instance.url) for fleet, member in due)
            )
            due_s = {i: t for i, t in due_s.items() if any(m.instance.id == i for _, m in members)}
            for _, member in due:
                eager = member.instance.state is State.STARTING
                due_s[member.instance.id] = self._clock.now_s() + (
                    min(0.2, self._interval_s) if eager else self._interval_s
                )
            for fleet in self.fleets.values():
                fleet.admission.pump()  # a breaker's pause ends without an event of its own
            await self._clock.sleep(min(0.1, self._interval_s))

    async def _probe(self, fleet: Fleet, instance_id: str, url: str) -> None:
        try:
            answer = await self._probes.get(f"{url}/health")
            healthy, detail = answer.status_code == 200, f"/health answered {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            healthy, detail = False, f"/health failed: {type(error).__name__}"
        before = fleet.members[instance_id].instance.state if instance_id in fleet.members else None
        fleet.probed(instance_id, healthy, detail)
        after = fleet.members[instance_id].instance.state if instance_id in fleet.members else None
        if before is not after:
            self.changed.set()

    async def close(self, stop_timeout_s: float) -> None:
        """Ends every child: politely, then by force within `stop_timeout_s`."""
        await self._probes.aclose()
        children = [(f, i) for f in self.fleets.values() if f.launcher.managed for i in f.members]
        for fleet, instance_id in children:
            fleet.launcher.stop(instance_id, force=False)
        deadline_s = self._clock.now_s() + stop_timeout_s
        while any(f.launcher.alive(i) for f, i in children) and self._clock.now_s() < deadline_s:
            await self._clock.sleep(0.05)
        for fleet in self.fleets.values():
            for instance_id in list(fleet.members):
                fleet.forget(instance_id)
