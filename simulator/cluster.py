"""The simulated cluster: a controller's `Cluster` whose instances are engines of simulations.

Owns the members, their states and the GPUs. An instance starts in `start_s`, after its GPUs have come back if they were
given back; it drains until it is empty, and ends. What should exist is the controller's to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from core.instances import (
    AS_CONFIGURED,
    Action,
    Exclude,
    Forget,
    GiveBack,
    Hold,
    Park,
    Release,
    Resume,
    Seen,
    SeenGpus,
    SeenPool,
    SeenService,
    SetClock,
    Shape,
    Start,
    State,
    Steer,
    Stop,
    Wake,
)  # fmt: skip
from core.service import STEP_TOKENS, PoolSpec, ServiceSpec
from pools.breaker import Breaker
from pools.instance import Instance
from pools.load_counts import LoadCounts
from pools.router import Router
from pools.shape import shaped, step_tokens
from profiles.engine_model import EngineModel
from simulator.des_engine import DesEngine
from simulator.engine import EngineLimits
from simulator.faults import Luck
from simulator.member import EnergyOfInstance, Member, OnSeqs
from simulator.power import GpuStock, PowerMeter
from simulator.sequence import EngineCounters
from simulator.sketch import GapSketches
from simulator.step_costs import CostBook
from simulator.world import World

LIVE = (State.STARTING, State.READY, State.DRAINING, State.PARKED)
WAITING_SEEN = 256  # queued requests of a pool that the controller is told of


@dataclass(frozen=True, slots=True)
class Costs:
    """What changes cost besides the engine model's steps. `keep_free`: GPUs of an ended instance stay held."""

    start_s: float
    clock_switch_s: float  # until a written clock is there
    back_after_s: float  # until a GPU that was given back can be used again
    bare_w: float
    keep_free: bool = False
    park_s: float = 0.0
    unpark_s: float = 0.0
    step_tokens: Mapping[int, int] = field(default_factory=dict)  # prefill and decode tokens of a step, by TP


def costs_of(model: EngineModel, tbt_s: float) -> Costs:
    """The engine model's switch costs. A step takes as many tokens as keep `tbt_s` for those who decode beside them,
    which is what an operator sets --max-num-batched-tokens for."""
    switch = model.switch
    steps = {tp: step_tokens(model, tp, max(model.clocks_mhz), tbt_s) for tp in model.points}
    return Costs(
        model.start_s, switch.clock_s, switch.return_s, model.bare_idle_w,
        park_s=switch.park_s, unpark_s=switch.unpark_s, step_tokens=steps,
    )  # fmt: skip


@dataclass(slots=True)
class Switches:
    """Counts of what the controller did. A switch is an instance entering STARTING."""

    starts: int = 0
    reshards: int = 0  # among the starts: on the GPUs of an instance that drained, in place
    stops: int = 0
    parks: int = 0
    wakes: int = 0
    clock_writes: int = 0
    refused_starts: int = 0


def add_counters(total: EngineCounters, more: EngineCounters) -> None:
    total.steps += more.steps
    total.prompt_tokens += more.prompt_tokens
    total.generation_tokens += more.generation_tokens
    total.preemptions += more.preemptions


class SimCluster:
    """One service. `changed` wakes the controller, as with live instances."""

    def __init__(
        self, spec: ServiceSpec, router: Router, book: CostBook, gaps: GapSketches, world: World, gpus: int,
        costs: Costs, on_seqs: OnSeqs, on_lost: Callable[[Member], None], luck: Luck | None = None,
    ) -> None:  # fmt: skip
        self.changed = asyncio.Event()
        self.spec = spec
        self.router = router
        self.members: dict[str, Member] = {}
        self.wanted = {pool.name: pool.instances for pool in spec.pools}
        self.counts = LoadCounts()
        self.meter = PowerMeter()
        self.stock = GpuStock(gpus, costs.bare_w, self.meter)
        self.switches = Switches()
        self.ended: list[EnergyOfInstance] = []
        self.totals = EngineCounters()  # of the instances that ended
        self.on_placed: Callable[[Member], None] = lambda member: None  # a request has come to an instance
        self.on_steered: Callable[[], None] = lambda: None
        self._book = book
        self._gaps = gaps
        self._world = world
        self._costs = costs
        self._on_seqs = on_seqs
        self._on_lost = on_lost
        self._numbers = count(1)
        self._luck = luck or Luck()

    # --- the controller's side

    async def observe(self) -> Seen:
        now_s = self._world.now_s
        self.end_drained()
        pools = tuple(
            SeenPool(
                self.spec.name, pool.name, self.wanted[pool.name], pool.tp, self.router.queued(index), True,
                self.router.seen_waiting(index, WAITING_SEEN),
            )
            for index, pool in enumerate(self.spec.pools)
        )  # fmt: skip
        instances = tuple(
            member.instance.seen(self.spec.name, now_s, clock_knob=True, parks=True) for member in self.members.values()
        )
        service = SeenService(self.spec.name, self.counts.seen(), self.meter.watts)
        gpus = SeenGpus(self.stock.total, self.stock.used + self.stock.reserved, self.stock.bare)
        return Seen(now_s, pools, instances, (service,), gpus, now_s)

    async def apply(self, action: Action) -> None:
        """Idempotent: an action on something that has gone does nothing."""
        match action:
            case Start():
                self.start(action.pool, action.shape)
            case Stop():
                self.drain(action.instance_id, action.reason, keep_gpus=action.keep_gpus)
            case Resume():
                self.resume(action.instance_id, action.reason)
            case Forget():
                self.forget(action.instance_id)
            case SetClock():
                self.set_clock(action.instance_id, action.clock_mhz)
            case Park():
                self.park(action.instance_id, action.reason)
            case Wake():
                self.wake(action.instance_id, action.reason)
            case GiveBack():
                self.stock.give_back(action.gpus, self._world.now_s)
            case Hold() | Release() | Exclude():
                # Only an operator's orders bring these; one in a simulation is a fault of its setup.
                raise NotImplementedError("simulated instances have no operators")
            case Steer():
                self.router.steer(action)
                self.router.pump(self._world.now_s)
                self.on_steered()

    # --- life of an instance

    def start_ready(self, first: Mapping[str, Sequence[Shape]]) -> None:
        """The plan of the first window, READY at second 0: as configured where `first` does not say as what."""
        for pool in self.spec.pools:
            for shape in first.get(pool.name) or (AS_CONFIGURED,) * self.wanted[pool.name]:
                if not self.stock.reserve(shape.tp or pool.tp):
                    raise ValueError(f"the plan needs more than the {self.stock.total} GPUs there are")
                member = self._add(pool, shape)
                self._power_on(member)
                self._ready(member)

    def start(self, pool_name: str, shape: Shape = AS_CONFIGURED) -> Member | None:
        """None: the pool is unknown or the GPUs are used up."""
        pool = next((pool for pool in self.spec.pools if pool.name == pool_name), None)
        if pool is None or not self.stock.reserve(shape.tp or pool.tp):
            self.switches.refused_starts += 1
            return None
        member = self._add(pool, shape)
        tp = member.instance.tp
        self.switches.starts += 1
        slow = self._luck.start_times()
        in_place = bool(shape.from_tp) and self.stock.at_hand(tp)
        if in_place:
            self.switches.reshards += 1
            member.start_s = self._book.model.reshard_s(shape.from_tp, tp)
        member.start_s *= slow
        if self.stock.at_hand(tp):
            self._boot(member)
        else:
            self._world.at(self._world.now_s + self._costs.back_after_s, lambda: self._boot(member))
        return member

    def end_drained(self) -> None:
        for member in list(self.members.values()):
            if member.instance.state is State.DRAINING and member.instance.requests == 0:
                self._end(member, State.STOPPED)

    def drain(self, instance_id: str, reason: str, *, keep_gpus: bool = False) -> None:
        member = self.members.get(instance_id)
        if member is None or member.instance.state not in (State.STARTING, State.READY, State.PARKED):
            return
        member.drains(self._world.now_s)
        member.keep_gpus = keep_gpus
        member.instance.set_state(State.DRAINING, self._world.now_s, reason)
        self.switches.stops += 1

    def resume(self, instance_id: str, reason: str) -> None:
        """One that drains serves on; one that had not started yet is lost to us, for its start was given up."""
        member = self.members.get(instance_id)
        if member is not None and member.instance.state is State.DRAINING and member.engine is not None:
            member.resumes(self._world.now_s)
            member.instance.set_state(State.READY, self._world.now_s, reason)
            self.router.pump(self._world.now_s)

    def park(self, instance_id: str, reason: str) -> None:
        """Asleep it draws what a parked GPU draws; whatever is booked there is idling."""
        member = self.members.get(instance_id)
        if member is None or member.instance.state is not State.READY or member.instance.requests:
            return
        member.instance.set_state(State.PARKED, self._world.now_s, reason)
        member.parks(self._book.model.parked_w * member.instance.tp, self._world.now_s, self.meter.change)
        self.switches.parks += 1

    def wake(self, instance_id: str, reason: str) -> None:
        member = self.members.get(instance_id)
        if member is None or member.instance.state is not State.PARKED:
            return
        now_s, since_s = self._world.now_s, member.instance.since_s
        asleep_s = max(now_s, since_s + self._costs.park_s)  # falling asleep is finished before it is woken
        member.instance.set_state(State.STARTING, now_s, reason)
        self.switches.wakes += 1
        self._world.at(asleep_s + self._costs.unpark_s, lambda: self._awake(member))

    def fail(self, instance_id: str, reason: str) -> None:
        """It dies; `on_lost` takes up what ran there."""
        member = self.members.get(instance_id)
        if member is not None and member.instance.state in LIVE:
            self._close(member)
            member.instance.set_state(State.FAILED, self._world.now_s, reason)
            self._on_lost(member)
            self.changed.set()

    def set_clock(self, instance_id: str, clock_mhz: int) -> None:
        """The write is counted now and takes effect a little later, at the next step."""
        member = self.members.get(instance_id)
        if member is None or member.instance.clock_mhz == clock_mhz or not self._luck.clock_takes():
            return
        member.instance.clock_mhz = clock_mhz
        self._write_clock(member, clock_mhz)

    def throttle(self, instance_id: str, clock_mhz: int) -> None:
        """As `set_clock`, but beneath the clock that the router reckons with: whoever throttles an instance lets it run
        up again as soon as what it holds needs that."""
        member = self.members.get(instance_id)
        changes = member is not None and member.engine is not None and member.written_mhz != clock_mhz
        if member is not None and changes and self._luck.clock_takes():
            self._write_clock(member, clock_mhz)

    def living(self) -> list[str]:
        return sorted(one.instance.id for one in self.members.values() if one.instance.state in LIVE)

    def energy(self) -> Iterator[EnergyOfInstance]:
        """Of every instance there was, until now. What bare GPUs draw is the stock's."""
        now_s = self._world.now_s
        yield from self.ended
        for member in self.members.values():
            if member.instance.state in LIVE:
                yield member.energy(now_s)

    def counters(self) -> EngineCounters:
        """Of every instance there was."""
        whole = EngineCounters()
        add_counters(whole, self.totals)
        for member in self.members.values():
            if member.engine is not None:
                add_counters(whole, member.engine.counters)
        return whole

    # --- inside

    def _add(self, pool: PoolSpec, shape: Shape = AS_CONFIGURED) -> Member:
        number = next(self._numbers)
        model = self._book.model
        now_s = self._world.now_s
        pool = self._with_step(shaped(pool, shape, model))
        instance = Instance(f"{pool.name}-{number}", "sim", number, pool, Breaker(3, 1.0, 30.0), model, now_s=now_s)
        starting_w = model.watts(pool.tp, instance.clock_mhz, 0)
        member = Member(instance, self._world, self._on_seqs, starting_w, self._costs.start_s)
        self.members[instance.id] = member
        self.router.instances[instance.id] = instance
        return member

    def _with_step(self, pool: PoolSpec) -> PoolSpec:
        """Where the pool leaves its step's tokens open the costs say, so that the router knows what the engine does."""
        limits = pool.limits
        if limits.step_tokens:
            return pool
        per_step = self._costs.step_tokens.get(pool.tp, STEP_TOKENS)
        return replace(pool, limits=replace(limits, step_tokens=per_step))

    def _power_on(self, member: Member) -> None:
        if member.instance.state is not State.STARTING:
            return
        now_s = self._world.now_s
        self.stock.use(member.instance.tp, now_s)
        member.held_from_s = now_s
        self.meter.change(now_s, member.starting_w)

    def _boot(self, member: Member) -> None:
        self._power_on(member)
        self._world.at(self._world.now_s + member.start_s, lambda: self._ready(member))

    def _ready(self, member: Member) -> None:
        instance, now_s = member.instance, self._world.now_s
        if instance.state is not State.STARTING:
            return
        self.meter.change(now_s, -member.starting_w)
        spec = self.spec
        limits = EngineLimits(instance.limits.slots, spec.context_tokens, instance.step_tokens)
        engine = DesEngine(
            self._book, instance.tp, member.written_mhz, limits, self._gaps, now_s=now_s,
            tbt_limit_s=spec.slo.tbt_s, on_watts=self.meter.change,
        )  # fmt: skip
        member.awake(engine, now_s)
        instance.set_state(State.READY, now_s, "started")
        self.changed.set()
        self.router.pump(now_s)

    def _awake(self, member: Member) -> None:
        if member.instance.state is State.STARTING and member.engine is not None:
            member.wakes(self._world.now_s, self.meter.change)
            member.instance.set_state(State.READY, self._world.now_s, "awake")
            self.changed.set()
            self.router.pump(self._world.now_s)

    def _write_clock(self, member: Member, clock_mhz: int) -> None:
        self.switches.clock_writes += 1
        member.written_mhz = clock_mhz
        self._world.at(self._world.now_s + self._costs.clock_switch_s, lambda: self._clock_settles(member))

    def _clock_settles(self, member: Member) -> None:
        if member.engine is not None:
            member.engine.set_clock(member.written_mhz, self._world.now_s)
            member.touch()

    def _close(self, member: Member) -> None:
        """Books its energy and gives its GPUs back."""
        now_s, instance = self._world.now_s, member.instance
        member.wakes(now_s, self.meter.change)
        self.ended.append(member.energy(now_s))
        if member.engine is not None:
            member.engine.close(now_s)
            add_counters(self.totals, member.engine.counters)
            member.engine = None
        elif member.held_from_s is not None:
            self.meter.change(now_s, -member.starting_w)
        if member.held_from_s is None:
            self.stock.unreserve(instance.tp)
        else:
            drained = instance.state is State.DRAINING
            self.stock.put(instance.tp, now_s, keep=self._costs.keep_free or member.keep_gpus or not drained)

    def _end(self, member: Member, state: State) -> None:
        self._close(member)
        member.instance.set_state(state, self._world.now_s, member.instance.reason)
        self._remove(member)

    def forget(self, instance_id: str) -> None:
        member = self.members.get(instance_id)
        if member is None:
            return
        if member.instance.state in LIVE:
            self.fail(instance_id, "forgotten")
        self._remove(member)

    def _remove(self, member: Member) -> None:
        del self.members[member.instance.id]
        del self.router.instances[member.instance.id]
