"""What every baseline does with instances: brings those that there are to those that are wanted.

Owns the counts by (pool, TP) and the steps towards them: replaces what died, starts what is missing, re-shards in place
where a pool changes its TP, drains what is too many, gives bare GPUs back. What is wanted a policy decides, and writes
into `wanted`; it decides nothing itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from core.instances import Shape, State
from core.service import SIZES, InstanceLimits, PoolSpec, ServiceSpec
from simulator.case import Case
from simulator.cluster import SimCluster
from simulator.member import Member
from simulator.request_life import PoolOf
from simulator.run import Ran
from simulator.tally import Tally
from simulator.trace import Arrival
from simulator.world import World

Plan = Mapping[tuple[str, int], int]  # (pool, TP) -> instances
ShapeOf = Callable[[str, int], Shape]  # (pool, TP) -> as what an instance starts
LIVE = (State.STARTING, State.READY)


class Plant:
    """A `Driver`: `decide` is called every `tick_s` from second 0 on and may change `wanted` and clocks. `hold_s`: how
    long GPUs without an instance stay held before they are given back."""

    def __init__(self, plan: Plan, shape_of: ShapeOf, *, tick_s: float = 1.0, hold_s: float = 0.0) -> None:
        self.wanted = dict(plan)
        self.shape_of = shape_of
        self.tick_s = tick_s
        self.hold_s = hold_s
        self._bare_since_s: float | None = None
        self._drained_tp: dict[str, int] = {}  # of the pool's GPUs that are held for another TP

    def __call__(self, world: World, cluster: SimCluster, tally: Tally) -> None:
        self.world, self.cluster, self.tally = world, cluster, tally
        world.at(0.0, self._tick)

    def decide(self, now_s: float) -> None:
        """What the policy is."""

    def ready(self) -> list[Member]:
        return [member for member in self.cluster.members.values() if member.instance.state is State.READY]

    def set_clocks(self, clocks: Mapping[str, int]) -> None:
        """By instance id. What waits is placed anew where a clock has risen."""
        risen = False
        for instance_id, clock_mhz in clocks.items():
            risen = risen or clock_mhz > self.cluster.members[instance_id].instance.clock_mhz
            self.cluster.set_clock(instance_id, clock_mhz)
        if risen and self.cluster.router.queued():
            self.cluster.router.pump(self.world.now_s)

    # --- inside

    def _tick(self) -> None:
        self.decide(self.world.now_s)
        self._reconcile()
        self.world.at(self.world.now_s + self.tick_s, self._tick)

    def _reconcile(self) -> None:
        cluster = self.cluster
        for member in list(cluster.members.values()):
            if member.instance.state is State.FAILED:
                cluster.forget(member.instance.id)
        cluster.end_drained()
        there = Counter(_key(member) for member in cluster.members.values() if member.instance.state in LIVE)
        missing = {key: count - there[key] for key, count in self.wanted.items() if count > there[key]}
        surplus = {key: count - self.wanted.get(key, 0) for key, count in there.items()}
        for key, count in surplus.items():
            if count > 0:
                self._drain(key, count, keep=any(pool == key[0] for pool, _ in missing))
        cluster.end_drained()
        for key, count in missing.items():
            for _ in range(count):
                self._start(*key)
        self._give_back(bool(missing))

    def _start(self, pool: str, tp: int) -> None:
        stock = self.cluster.stock
        if stock.used + stock.reserved + tp > stock.total:
            return
        # Its own pool's GPUs come free in a moment: to fetch others would take minutes.
        waits = any(m.keep_gpus and m.instance.pool == pool for m in self.cluster.members.values())
        if waits and not stock.at_hand(tp):
            return
        from_tp = self._drained_tp.get(pool, 0) if stock.at_hand(tp) else 0
        self.cluster.start(pool, replace(self.shape_of(pool, tp), from_tp=from_tp if from_tp != tp else 0))

    def _drain(self, key: tuple[str, int], count: int, *, keep: bool) -> None:
        """Starting ones first, then those with the fewest requests."""
        mine = [m.instance for m in self.cluster.members.values() if _key(m) == key and m.instance.state in LIVE]
        mine.sort(key=lambda instance: (instance.state is State.READY, instance.requests, instance.id))
        for instance in mine[:count]:
            self.cluster.drain(instance.id, "the plan wants fewer", keep_gpus=keep or self.hold_s > 0)
            if keep:
                self._drained_tp[key[0]] = key[1]

    def _give_back(self, starting: bool) -> None:
        stock, now_s = self.cluster.stock, self.world.now_s
        if not stock.bare or starting:
            self._bare_since_s = None
        elif self._bare_since_s is None:
            self._bare_since_s = now_s
        if self._bare_since_s is not None and now_s - self._bare_since_s >= self.hold_s:
            stock.give_back(stock.bare, now_s)
            self._drained_tp.clear()


def _key(member: Member) -> tuple[str, int]:
    return member.instance.pool, member.instance.tp


def first_pool(spec: ServiceSpec, arrival: Arrival, output_size: str) -> int:
    return 0


def run_plant(
    case: Case, gpus: int, plant: Plant, names: Sequence[str] = ("all",), pool_of: PoolOf = first_pool,
    given_up: Callable[[Tally], bool] | None = None,
) -> Ran:  # fmt: skip
    """The plan that the plant was made with is READY at second 0. `given_up` ends the run early."""
    first: dict[str, list[Shape]] = {name: [] for name in names}
    for (name, tp), count in sorted(plant.wanted.items()):
        first[name] += [plant.shape_of(name, tp)] * count
    pools = []
    for name in names:
        shape = first[name][0] if first[name] else plant.shape_of(name, case.tp)
        limits = InstanceLimits(shape.slots, case.model.kv_tokens(shape.tp), shape.step_tokens)
        pools.append(PoolSpec(name, SIZES, len(first[name]), shape.tp, shape.clock_mhz, limits))
    setup = case.setup(tuple(pools), gpus, pool_of)
    return case.run(replace(setup, driver=plant, first=first), given_up)
