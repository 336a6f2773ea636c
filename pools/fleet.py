"""The instances of one service as they are now: starting, probing, draining, ending.

Owns the `Instance` objects and their states. Decides nothing: what should exist is the controller's business, who gets
a request is the router's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from core.clock import Clock
from core.instances import AS_CONFIGURED, SeenInstance, SeenPool, Shape, State
from core.service import PoolSpec, ServiceSpec
from pools.admission import Admission
from pools.breaker import Breaker
from pools.connection import Wires
from pools.instance import Instance
from pools.knobs import KnobRefused, Knobs, NoKnobs
from pools.launcher import Found, Launcher, Place, place_of
from pools.load_counts import LoadCounts
from pools.shape import shaped
from pools.transitions import Transitions
from profiles.engine_model import EngineModel

WAITING_SEEN = 256  # queued requests of a pool that the controller is told of
Event = Callable[[str, dict[str, object]], None]


@dataclass(frozen=True, slots=True)
class FleetLimits:
    connect_timeout_s: float = 2.0
    probe_fall: int = 3
    probe_rise: int = 1
    breaker_failures: int = 3
    breaker_backoff_s: float = 1.0
    breaker_backoff_max_s: float = 30.0


@dataclass(slots=True)
class Member:
    """An instance with what only the fleet needs: its connections and its probe counts. `probes`: those that only ask
    for its health, so that no request meets a connection that a probe has left."""

    instance: Instance
    wires: Wires
    probes: Wires
    heard_s: float = 0.0  # when it last answered a probe
    good: int = 0
    bad: int = 0
    stopping_since_s: float | None = None
    resumable: bool = False
    configured: bool = False  # its URL stands in the configuration
    unlisted: bool = False  # it drains because its URL has left the configuration
    wanted_mhz: int = 0  # the clock it is to run at; 0: its GPUs' default
    set_mhz: int | None = None  # the clock that was written and confirmed; None: nobody has, or it was undone
    epoch: int | None = None  # the lease under which it was
    sleepless: bool = False  # it was asked to sleep, and refused
    knob_refused: str = ""  # why its clock cannot be written now
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while it is put to sleep or woken


class Fleet:
    """One per service. Every method is synchronous; `probed` is fed by the prober task."""

    def __init__(
        self,
        spec: ServiceSpec,
        launcher: Launcher,
        admission: Admission,
        model: EngineModel | None,
        clock: Clock,
        limits: FleetLimits,
        on_event: Event,
        new_id: Callable[[str], str],
        knobs: Knobs | None = None,
        transitions: Transitions | None = None,
    ) -> None:
        self._transitions = transitions or Transitions(clock, None)
        self.spec = spec
        self.counts = LoadCounts()
        self.knobs: Knobs = knobs or NoKnobs()
        self.launcher = launcher
        self.admission = admission
        self.members: dict[str, Member] = {}
        self.wanted = {pool.name: pool.instances for pool in spec.pools}
        self.pinned: set[str] = set()  # pools whose number of instances an operator has set
        self._retired = False
        self.model = model
        self._clock = clock
        self._limits = limits
        self._event = on_event
        self._new_id = new_id
        for pool in spec.pools:
            for url in pool.urls:
                self.members[self.adopt(pool.name, url)].configured = True

    def pool(self, name: str) -> PoolSpec | None:
        return next((pool for pool in self.spec.pools if pool.name == name), None)

    def adopt(self, pool_name: str, url: str) -> str:
        """Adds a server that somebody else runs. It becomes READY when its first probe succeeds."""
        pool = self.pool(pool_name)
        assert pool is not None
        return self._add(self._new_id(pool.name), place_of(url), pool, adopted=True)

    def start(self, pool_name: str, reason: str, shape: Shape = AS_CONFIGURED) -> str | None:
        pool = self.pool(pool_name)
        if pool is None:
            return None
        pool = shaped(pool, shape, self.model)
        instance_id = self._new_id(pool.name)
        self._event("instance_starting", {"instance": instance_id, "pool": pool_name, "reason": reason})
        try:
            place = self.launcher.start(instance_id, pool, shape.near)
        except OSError as error:  # its program is missing, or the host is out of processes: a failed start like others
            self._add(instance_id, Place("127.0.0.1", 0), pool, adopted=False)
            self._move(self.members[instance_id], State.FAILED, f"cannot be started: {error}")
            return instance_id
        self._add(instance_id, place, pool, adopted=False)
        self._begin("start", self.members[instance_id])
        return instance_id

    def take_over(self) -> list[Found]:
        """Instances that an earlier gateway left running are ours again: READY as soon as they answer. A clock that it
        set is not known any more; it is written anew."""
        found, ended = self.launcher.take_over()
        for instance_id in ended:
            self._event("leftover_ended", {"instance": instance_id})
        for one in found:
            self._add(one.instance_id, one.place, one.pool, adopted=False)
            self.members[one.instance_id].set_mhz = None
            self.members[one.instance_id].instance.reason = "left by an earlier gateway, taken over"
            self._event("instance_taken_over", {"instance": one.instance_id, "pool": one.pool.name})
        return found

    def drain(self, instance_id: str, reason: str, *, resumable: bool = False, move: bool = False) -> None:
        """No new requests; what runs there finishes, or with `move` goes on elsewhere where it can. `resumable` keeps
        it running afterwards."""
        member = self.members.get(instance_id)
        if member is None:
            return
        member.resumable = resumable
        dead = member.instance.state is State.FAILED and member.instance.adopted  # it may come back, and must not serve
        if dead or member.instance.state in (State.READY, State.STARTING, State.PARKED):
            self._move(member, State.DRAINING, reason)
        member.instance.leave = move or member.instance.leave

    def pin(self, pool_name: str, instances: int) -> int:
        """An operator's word on a pool's number of instances; no plan changes it until it is let go."""
        self.wanted[pool_name] = max(0, instances)
        self.pinned.add(pool_name)
        return self.wanted[pool_name]

    def resume(self, instance_id: str) -> None:
        """Takes a drain back, unless its processes are already ending."""
        self._resume(self.members[instance_id], "resumed by an operator")

    def serve_on(self, instance_id: str, reason: str) -> None:
        """Takes back a drain of the controller's own, while requests still run there."""
        member = self.members.get(instance_id)
        if member is not None and not member.resumable:
            self._resume(member, reason)

    def want_clock(self, instance_id: str, clock_mhz: int) -> None:
        """The clock keeper writes it; until then nobody counts on a faster one."""
        member = self.members.get(instance_id)
        if member is not None:
            member.wanted_mhz = clock_mhz
            member.instance.clock_mhz = min(member.instance.clock_mhz, clock_mhz)

    def clock_refused(self, member: Member, why: str) -> None:
        """Empty: it could be written. Serving goes on either way."""
        if member.knob_refused != why and (why or member.knob_refused):
            self._event("clock_refused" if why else "clock_obeys", {
                "instance": member.instance.id, "clock_mhz": member.wanted_mhz, "reason": why,
            })  # fmt: skip
        member.knob_refused = why

    def park(self, instance_id: str, reason: str) -> Member | None:
        """It takes no request from now on, and is to be put to sleep; None where it cannot be now."""
        member = self.members.get(instance_id)
        if member is None or member.instance.state is not State.READY or member.instance.requests:
            return None
        self._move(member, State.PARKED, reason)
        self._begin("park", member)
        return member

    def asleep(self, member: Member) -> None:
        self._transitions.end("park", member.instance.id)

    def sleep_failed(self, member: Member, refused: KnobRefused) -> None:
        """It serves on as before, unless nobody knows whether it sleeps now."""
        if member.instance.state is not State.PARKED:
            return
        self._transitions.drop(member.instance.id)
        member.sleepless = True
        if refused.silent:
            self._move(member, State.FAILED, f"asked to sleep, it says nothing: {refused}")
        else:
            self._move(member, State.READY, f"cannot sleep: {refused}")
            self.admission.pump()

    def wake(self, instance_id: str, reason: str) -> Member | None:
        """It is to be woken, and probed then; None where it does not sleep."""
        member = self.members.get(instance_id)
        if member is None or member.instance.state is not State.PARKED:
            return None
        self._move(member, State.STARTING, reason)
        self._begin("wake", member)
        member.good = 0
        return member

    def wake_failed(self, member: Member, refused: KnobRefused) -> None:
        if member.instance.state is State.STARTING:
            self._move(member, State.FAILED, f"cannot wake: {refused}")

    def watts(self) -> tuple[float | None, str]:
        """What its instances draw now by the engine model, and how that is known."""
        if self.model is None:
            return None, "modelled"
        model, total_w = self.model, 0.0
        for instance in (member.instance for member in self.members.values()):
            if instance.state is State.PARKED:
                total_w += model.parked_w * instance.tp
            elif instance.tp in model.points:
                prefill = min(instance.prefill_tokens, instance.step_tokens)
                total_w += model.watts(instance.tp, instance.clock_mhz, instance.sequences, prefill)
        return total_w, "modelled"

    def probed(self, instance_id: str, healthy: bool, detail: str = "") -> None:
        """Result of one health probe."""
        member = self.members.get(instance_id)
        if member is None or member.turn.locked():
            return
        member.good, member.bad = (member.good + 1, 0) if healthy else (0, member.bad + 1)
        member.heard_s = self._clock.now_s() if healthy else member.heard_s
        state = member.instance.state
        if healthy and state in (State.STARTING, State.FAILED) and member.good >= self._limits.probe_rise:
            if state is State.STARTING or member.instance.adopted:
                member.instance.breaker.success()
                self._move(member, State.READY, "healthy")
                self.admission.pump()
        elif not healthy and member.bad >= self._limits.probe_fall and self._is_over(member):
            self._move(member, State.FAILED, detail)

    @staticmethod
    def _is_over(member: Member) -> bool:
        """A child that starts has a time limit of its own; of somebody else's server nobody knows that it starts."""
        state = member.instance.state
        return state is State.READY or (state is State.STARTING and member.instance.adopted)

    def check_processes(self) -> None:
        """Finds children that died or did not become ready in time, and ends drained ones step by step."""
        now_s = self._clock.now_s()
        for member in list(self.members.values()):
            instance = member.instance
            if instance.adopted:
                if instance.state is State.DRAINING and instance.requests == 0 and not member.resumable:
                    self.forget(instance.id)
            elif member.stopping_since_s is not None:
                self._continue_stopping(member, now_s)
            elif instance.state is not State.FAILED and not self.launcher.alive(instance.id):
                self._move(member, State.FAILED, "its process ended")
            elif instance.state is State.STARTING and now_s - instance.since_s > self.spec.launcher.start_timeout_s:
                self._move(member, State.FAILED, f"not ready within {self.spec.launcher.start_timeout_s:g} s")
            elif instance.state is State.DRAINING and instance.requests == 0 and not member.resumable:
                member.stopping_since_s = now_s
                self._begin("stop", member)
                self.launcher.stop(instance.id, force=False)
            if self._retired and instance.state is State.FAILED:  # no controller sees to the dead of a retired fleet
                self.forget(instance.id)

    def forget(self, instance_id: str) -> None:
        """Ends what is left of it and takes it off the books."""
        member = self.members.pop(instance_id, None)
        if member is None:
            return
        self.launcher.stop(instance_id, force=True)
        self._transitions.drop(instance_id)
        member.wires.close()
        member.probes.close()
        del self.admission.router.instances[instance_id]
        self._event("instance_gone", {"instance": instance_id, "reason": member.instance.reason})

    def respec(self, spec: ServiceSpec, *, keep_wanted: bool = False) -> None:
        """Takes new promises and pools whole. Instances of pools that are gone drain; static URLs come and go.

        `keep_wanted`: an operator's change of promises. What operators added and removed stays as it is."""
        self.spec = spec
        if not keep_wanted:
            self.wanted = {pool.name: pool.instances for pool in spec.pools}
        self.admission.router.respec(spec)
        urls = {(pool.name, place_of(url)): url for pool in spec.pools for url in pool.urls}
        for member in list(self.members.values()):
            instance = member.instance
            pool = self.pool(instance.pool)
            place = (instance.pool, Place(instance.host, instance.port))
            if pool is None or (member.configured and place not in urls):
                operator_removed = instance.state is State.DRAINING and not member.resumable
                member.unlisted = member.unlisted or not operator_removed
                self.drain(instance.id, "its pool or URL left the configuration")
                continue
            urls.pop(place, None)
            if member.unlisted and member.configured:
                self._resume(member, "its URL is back in the configuration")
        if not keep_wanted:
            for (pool_name, _), url in urls.items():
                self.members[self.adopt(pool_name, url)].configured = True
        self.admission.pump()

    def retire(self) -> None:
        """The service left the configuration: what runs finishes, what waits is told, nothing starts."""
        self._retired = True
        self.wanted = {}
        self.admission.close()
        for instance_id in list(self.members):
            self.drain(instance_id, "its service left the configuration")

    def observe(self) -> tuple[list[SeenPool], list[SeenInstance]]:
        """A retired fleet shows instances only: a pool of that name may belong to its service's next fleet."""
        router, now_s = self.admission.router, self._clock.now_s()
        pools = [
            SeenPool(
                self.spec.name, p.name, self.wanted.get(p.name, 0), p.tp, router.queued(i), self.launcher.managed,
                router.seen_waiting(i, WAITING_SEEN), p.name in self.pinned,
            )
            for i, p in enumerate(() if self._retired else self.spec.pools)
        ]  # fmt: skip
        instances = [
            m.instance.seen(
                self.spec.name,
                now_s,
                held=m.resumable and m.instance.state is State.DRAINING,
                clock_knob=self.knobs.clock and not m.knob_refused,
                parks=self.launcher.managed and not m.sleepless,
                age_s=max(0.0, now_s - m.heard_s) // 1.0,
            )
            for m in self.members.values()
        ]
        return pools, instances

    def _resume(self, member: Member, reason: str) -> None:
        member.resumable = member.unlisted = False
        if member.instance.state is State.DRAINING and member.stopping_since_s is None:
            member.good = member.bad = 0
            self._move(member, State.STARTING, reason)

    def _continue_stopping(self, member: Member, now_s: float) -> None:
        assert member.stopping_since_s is not None
        gone = not self.launcher.alive(member.instance.id)
        if gone:
            self._transitions.end("stop", member.instance.id)
        if gone or now_s - member.stopping_since_s > self.spec.launcher.stop_timeout_s:
            self._move(member, State.STOPPED, member.instance.reason)
            self.forget(member.instance.id)

    def _add(self, instance_id: str, place: Place, pool: PoolSpec, *, adopted: bool) -> str:
        limits = self._limits
        breaker = Breaker(limits.breaker_failures, limits.breaker_backoff_s, limits.breaker_backoff_max_s)
        now_s = self._clock.now_s()
        instance = Instance(
            instance_id,
            place.host,
            place.port,
            pool,
            breaker,
            self.model,
            now_s=now_s,
            adopted=adopted,
            gpus=place.gpus,
        )
        wires, probes = (Wires(place.host, place.port, limits.connect_timeout_s) for _ in range(2))
        member = Member(instance, wires, probes, now_s, wanted_mhz=pool.clock_mhz)
        if self.knobs.leased and not adopted:
            instance.clock_mhz = instance.default_mhz
        else:
            member.set_mhz = pool.clock_mhz
        self.members[instance_id] = member
        self.admission.router.instances[instance_id] = instance
        return instance_id

    def _move(self, member: Member, state: State, reason: str) -> None:
        instance = member.instance
        if instance.state is not state:
            self._event("instance_state", {"instance": instance.id, "from": instance.state.value, "to": state.value,
                                           "reason": reason})  # fmt: skip
        if state is State.READY:
            self._transitions.end("start", instance.id)
            self._transitions.end("wake", instance.id)
        elif state is State.FAILED:
            self._transitions.drop(instance.id)
        instance.set_state(state, self._clock.now_s(), reason)

    def _begin(self, kind: str, member: Member) -> None:
        instance_id = member.instance.id
        self._transitions.begin(
            kind, self.spec.name, member.instance, self.knobs, lambda: self.launcher.cpu_s(instance_id)
        )
