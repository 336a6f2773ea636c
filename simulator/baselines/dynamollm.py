"""DynamoLLM and its three ablations: pools by class, scaled by instances, by tensor parallelism, by clock.

Source: Stojkovic et al., DynamoLLM (HPCA 2025), sections III-VI. A hierarchy over nine pools: every 30 min the nodes of
each pool from the forecast peak (whole ones, what is left passed on to the next larger pool), every 5 min the TP mix of
its GPUs from the profile at the highest clock, every 5 s the clock of each instance from its load. A request that an
instance would answer late makes it run at the highest clock until the next period; what has no place goes to a larger
pool. The ablations keep one of the three and take the rest from the peak of the whole trace: scaleinst, scaleshard,
scalefreq. Unlike the paper's they round as the hierarchy does and stay within the GPUs.

Left open: the forecast's accuracy (here the true peak of the epoch, as a perfect template: known before the epoch, so
that instances start in time); the number of pools, what a peak is and head-room
(all swept); the horizon of a saving against
the joules of a change (the period); where unused GPUs are (given back at once); the engine's step (one that suits the
middle clocks). Profiles are the shipped ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.service import CLASSES, ServiceSpec
from simulator.baselines.clocks import dues, first_tokens_s, step_s
from simulator.baselines.dynamo_plan import Mix, Table, best_clock, best_mix, mix_watts, nodes, table_of
from simulator.baselines.load import Epoch, Work, epochs, work_of
from simulator.baselines.plant import Plant, run_plant
from simulator.case import Case
from simulator.cluster import SimCluster
from simulator.member import Member
from simulator.policies import Say
from simulator.run import Ran
from simulator.tally import Tally
from simulator.trace import Arrival
from simulator.world import World

CLUSTER_S, POOL_S, INSTANCE_S = 1800.0, 300.0, 5.0
DRAINS_S = 15.0  # until an instance that changes its TP is empty


@dataclass(frozen=True, slots=True)
class Options:
    peak_s: float = 60.0
    headroom: float = 1.2
    clock_headroom: float = 1.5
    pools: tuple[str, ...] = CLASSES  # a class without one uses the next larger class's
    steps_mhz: int = 1980  # the clock that the engine's step suits


@dataclass(frozen=True, slots=True)
class Knobs:
    instances: bool = True
    shards: bool = True
    clocks: bool = True


def spread(pools: int) -> tuple[str, ...]:
    """The classes that get a pool of their own, evenly up to the largest; nine at most."""
    count = min(pools, len(CLASSES))
    return tuple(CLASSES[(number + 1) * len(CLASSES) // count - 1] for number in range(count))


class Passing:
    """Routes a request to its class's pool, or on to the next larger one by the epoch's shares, evenly and not at
    random."""

    def __init__(self) -> None:
        self.shares: tuple[float, ...] = (0.0,) * len(CLASSES)
        self._owed = [0.0] * len(CLASSES)

    def __call__(self, spec: ServiceSpec, arrival: Arrival, output_size: str) -> int:
        place = CLASSES.index(spec.edges.input_size(arrival.input_tokens) + output_size)
        while place < len(CLASSES) - 1:
            self._owed[place] += self.shares[place]
            if self._owed[place] < 1 - 1e-9:
                break
            self._owed[place] -= 1
            place += 1
        return place


class Hierarchy(Plant):
    def __init__(self, case: Case, gpus: int, options: Options, knobs: Knobs) -> None:
        self.case, self.knobs = case, knobs
        self.pools = spread(case.pools) if case.pools else options.pools
        self.headroom, self.clock_headroom = options.headroom, options.clock_headroom
        self.most = max(1, gpus // case.tp)
        self.work: Work = work_of(case, case.tp, case.clock_mhz)
        self.table: Table = table_of(case, self.work)
        self.by_pool = epochs(case, self.work, POOL_S, options.peak_s)
        whole = case.facts.duration_s + 1
        self.by_cluster = epochs(case, self.work, CLUSTER_S if knobs.instances else whole, options.peak_s)
        self.passing = Passing()
        shapes = {
            tp: case.shape(
                tp, case.clock_mhz, case.shape(tp, options.steps_mhz).step_tokens if knobs.clocks else 0
            ) for tp in case.model.points
        }  # fmt: skip
        super().__init__({}, lambda pool, tp: shapes[tp], tick_s=1.0)
        self._pool_due_s = self._clock_due_s = 0.0
        self._boosted: set[str] = set()
        self._done: dict[str, tuple[int, int]] = {}
        self._plan(0.0)

    def __call__(self, world: World, cluster: SimCluster, tally: Tally) -> None:
        super().__call__(world, cluster, tally)
        if self.knobs.clocks:
            cluster.on_placed = self._placed

    def decide(self, now_s: float) -> None:
        if now_s >= self._pool_due_s:
            self._plan(now_s)
        if self.knobs.clocks and now_s >= self._clock_due_s:
            self._clock_due_s = now_s + INSTANCE_S
            self._set_clocks()

    # --- nodes and their mixes

    def needs(self, epoch: Epoch) -> list[float]:
        """Nodes that each pool takes for its own classes."""
        clock, found, merged = self.case.clock_mhz, [], 0.0
        for place, work in enumerate(epoch.peak_work):
            merged += work / self.table.weight[place] / self.table.capacity[place, self.case.tp, clock]
            own = CLASSES[place] in self.pools or place == len(CLASSES) - 1
            found.append(self.headroom * merged if own else 0.0)
            merged = 0.0 if own else merged
        return found

    def _plan(self, now_s: float) -> None:
        """Pools that will grow with the next epoch do so before it, so that its instances are there in time."""
        self._pool_due_s = now_s + POOL_S
        lead_s = self.case.costs.start_s + self.case.costs.back_after_s
        here = nodes(self.needs(_at(self.by_cluster, now_s)), self.most)
        soon = nodes(self.needs(_at(self.by_cluster, now_s + lead_s)), self.most)
        self.passing.shares = here.passed
        counts = [max(pair) for pair in zip(here.count, soon.count, strict=True)]
        if sum(counts) > self.most:
            counts = list(here.count)
        loads = here.load(self.needs(_at(self.by_pool, now_s)))
        plan: dict[tuple[str, int], int] = {}
        for place, name in enumerate(CLASSES):
            for tp, count in self._mix(place, name, loads[place], counts[place]).items():
                plan[name, tp] = count
        self.wanted = plan

    def _mix(self, place: int, name: str, need: float, count: int) -> Mix:
        whole: Mix = {self.case.tp: count}
        if not self.knobs.shards or not count:
            return whole
        rps = need * self.table.capacity[place, self.case.tp, self.case.clock_mhz]
        new = best_mix(self.table, place, rps, count * self.case.tp)
        old = {tp: wanted for (pool, tp), wanted in self.wanted.items() if pool == name and wanted}
        if not old or sum(tp * n for tp, n in old.items()) > count * self.case.tp:
            return new
        old_w, new_w = mix_watts(self.table, place, rps, old), mix_watts(self.table, place, rps, new)
        saves = old_w is None or new_w is None or (old_w - new_w) * POOL_S > self._change_j(old, new)
        return new if saves else old

    def _change_j(self, old: Mix, new: Mix) -> float:
        """Loaded idle while the new ones start on GPUs whose instances have drained."""
        model, joules = self.case.model, 0.0
        for tp, count in new.items():
            added = max(0, count - old.get(tp, 0))
            sync_s = model.switch.reshard_sync_s
            joules += added * model.watts(tp, self.case.clock_mhz, 0) * (sync_s + DRAINS_S)
        return joules

    # --- clocks

    def _set_clocks(self) -> None:
        self._boosted.clear()
        crowded = self.cluster.router.queued() > 0
        for member in self.ready():
            rps = self._measured_rps(member)
            place = CLASSES.index(member.instance.pool)
            clock = best_clock(self.table, place, member.instance.tp, rps * self.clock_headroom)
            self.cluster.throttle(member.instance.id, self.case.clock_mhz if crowded else clock)

    def _measured_rps(self, member: Member) -> float:
        """Of the last period, from the engine's own counts of tokens, in profile requests of the pool's class."""
        assert member.engine is not None
        counters, name = member.engine.counters, member.instance.id
        prompts, outputs = counters.prompt_tokens, counters.generation_tokens
        before = self._done.get(name, (0, 0))
        self._done[name] = prompts, outputs
        work = self.work.of(prompts - before[0], outputs - before[1])
        return work / INSTANCE_S / self.table.weight[CLASSES.index(member.instance.pool)]

    def _placed(self, member: Member) -> None:
        """An instance that would be late runs at the highest clock until the next period."""
        instance, now_s = member.instance, self.world.now_s
        if instance.id in self._boosted or member.written_mhz >= self.case.clock_mhz:
            return
        prompts = dues(member)
        times = first_tokens_s(instance, member.written_mhz, prompts)
        late = step_s(instance, member.written_mhz, instance.prefill_tokens) > self.case.spec.slo.tbt_s
        if late or any(now_s + time_s > prompt.deadline_s for time_s, prompt in zip(times, prompts, strict=True)):
            self._boosted.add(instance.id)
            self.cluster.throttle(instance.id, self.case.clock_mhz)


def _at(known: list[Epoch], at_s: float) -> Epoch:
    return max((epoch for epoch in known if epoch.start_s <= at_s), key=lambda epoch: epoch.start_s)


def _run(case: Case, gpus: int, options: Options, knobs: Knobs) -> Ran:
    plant = Hierarchy(case, gpus, options, knobs)
    return run_plant(case, gpus, plant, CLASSES, plant.passing)


def run(case: Case, gpus: int, say: Say, options: Options = Options()) -> Ran:
    return _run(case, gpus, options, Knobs())


def scaleinst(case: Case, gpus: int, say: Say, options: Options = Options()) -> Ran:
    return _run(case, gpus, options, Knobs(shards=False, clocks=False))


def scaleshard(case: Case, gpus: int, say: Say, options: Options = Options()) -> Ran:
    return _run(case, gpus, options, Knobs(instances=False, clocks=False))


def scalefreq(case: Case, gpus: int, say: Say, options: Options = Options()) -> Ran:
    return _run(case, gpus, options, Knobs(instances=False, shards=False))
