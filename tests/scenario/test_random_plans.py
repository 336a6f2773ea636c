"""A thousand random plans, one after another, on fleets of emulated and of process launchers: each is reached, no GPU is
ever held twice or beyond what there is, no instance straddles islands, and the ready floor holds.

Real: tick, reconcile, placement, cluster, fleet, launcher, GPU book. Stand-ins: child processes (values in this process
that become healthy after some seconds and take some to end; the launchers' own contract suite runs real ones), probes,
and the clock, which is set by hand."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from controller.knowledge import Knowledge, ServiceKnowledge, Settings
from controller.planning import ServicePlan, Target
from controller.problem import Kind
from controller.state import ControllerState, ServiceState
from controller.tick import tick
from core.clock import SystemClock
from core.instances import SeenInstance, State
from core.service import Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from pools.admission import Admission
from pools.cluster import LiveCluster
from pools.fleet import Fleet, FleetLimits
from pools.gpu_book import GpuBook, islands_of
from pools.instance import Instance
from pools.knobs import KnobRefused, NoKnobs
from pools.launcher import ProcessLauncher
from profiles.engine_model import load_engine_model

PLANS = int(os.environ.get("PLANS", "40"))  # of both kinds together; `make plans` has a thousand
SEED = int(os.environ.get("SEED", "0"))
GPUS, ISLAND, FLOOR = 16, 8, 1
TPS = (2, 4, 8)
POOLS = ("short", "long")
MODEL = load_engine_model("llama-3.1-70b")
STEP_S, MOST_STEPS = 5.0, 200
SETTINGS = Settings(switches_per_hour=1e9, settle_s=0.0, floor=FLOOR, plan_every_s=1e9, park=True)
ARGV = {"emulated": (), "process": ("engine", "{port}", "{gpus}")}


class Hand(SystemClock):
    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s


class FakeChild:
    """Ends some seconds after it was asked to, at once when it is killed."""

    def __init__(self, clock: Hand, rng: random.Random) -> None:
        self.pid = 1
        self.healthy_s = clock.at_s + rng.uniform(1, 60)
        self.ends_s = float("inf")
        self._clock = clock
        self._stop_s = rng.uniform(0, 8)

    def alive(self) -> bool:
        return self._clock.at_s < self.ends_s

    def terminate(self) -> None:
        self.ends_s = min(self.ends_s, self._clock.at_s + self._stop_s)

    def kill(self, kill: object) -> None:
        self.ends_s = self._clock.at_s

    def reap(self) -> None:
        return


class Sleep(NoKnobs):
    """Emulated engines sleep; the others refuse, as vLLM does without --enable-sleep-mode, and are ended instead."""

    def __init__(self, able: bool) -> None:
        self.able, self.slept, self.woken = able, 0, 0

    async def sleep(self, instance: Instance) -> None:
        if not self.able:
            raise KnobRefused("it answered 404")
        self.slept += 1

    async def wake(self, instance: Instance) -> None:
        self.woken += 1


class World:
    def __init__(self, kind: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = Hand()
        self.sleep = Sleep(able=kind == "emulated")
        self.book = GpuBook(islands_of([f"GPU-{number:02}" for number in range(GPUS)], ISLAND))
        self.children: dict[str, FakeChild] = {}
        pools = [
            PoolSpec(name, sizes, 1, 1, 1980, InstanceLimits(64))
            for name, sizes in (("short", ("S",)), ("long", ("M", "L")))
        ]
        launcher = LauncherSpec(kind, ARGV[kind], stop_timeout_s=30.0, start_timeout_s=600.0)
        self.spec = ServiceSpec("chat", "m", 8192, Slo(), Edges(), tuple(pools), launcher, profile="llama-3.1-70b")
        numbers = iter(range(1, 1 << 30))
        admission = Admission(self.spec, self.clock, max_queue=10, max_wait_s=1.0)
        self.fleet = Fleet(
            self.spec, ProcessLauncher(self.spec, {}, self.book, spawn=self.spawn), admission, MODEL, self.clock,
            FleetLimits(), lambda *_: None, lambda pool: f"{pool}-{next(numbers)}", self.sleep,
        )  # fmt: skip
        self.cluster = LiveCluster(
            [self.fleet], self.clock, probe_interval_s=1.0, probe_timeout_s=1.0, gpus=lambda: GPUS,
            islands=lambda: self.book.islands or (),
        )  # fmt: skip
        self.knowledge = Knowledge({"chat": ServiceKnowledge(self.spec, MODEL)}, SETTINGS, GPUS, ISLAND)
        self.state = ControllerState()
        self.starts = 0

    def spawn(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str], about: Mapping[str, Any], log: Path
    ) -> Any:
        child = self.children[name.partition("/")[2]] = FakeChild(self.clock, self.rng)
        self.starts += 1
        return child

    def want(self, counts: Mapping[tuple[str, int], int]) -> None:
        targets = tuple(
            Target(Kind("chat", pool, MODEL.gpu, tp), count, 1980, ()) for (pool, tp), count in counts.items()
        )
        plan = ServicePlan(self.clock.at_s, targets, (1.0, 1.0, 1.0), 1.0, 1.0, 0.0, "random")
        self.state = ControllerState({"chat": ServiceState(plan=plan)})

    def random_counts(self) -> dict[tuple[str, int], int]:
        """At least two instances that fit on the islands; where a plan asks for more, it is not a plan."""
        while True:
            free = [ISLAND] * (GPUS // ISLAND)
            counts: Counter[tuple[str, int]] = Counter()
            for _ in range(self.rng.randint(2, GPUS)):
                tp = self.rng.choice(TPS)
                room = [at for at, gpus in enumerate(free) if gpus >= tp]
                if room:
                    free[self.rng.choice(room)] -= tp
                    counts[self.rng.choice(POOLS), tp] += 1
            if sum(counts.values()) >= 2:
                return dict(counts)

    async def step(self) -> tuple[SeenInstance, ...]:
        for name, member in list(self.fleet.members.items()):
            if name in self.children and self.clock.at_s >= self.children[name].healthy_s:
                self.fleet.probed(name, True)
            elif member.instance.state is State.READY:
                raise AssertionError(f"{name} is ready without a healthy child")
        seen = await self.cluster.observe()
        self.state, decision = tick(self.state, seen, self.knowledge, STEP_S)
        for action in decision.actions:
            await self.cluster.apply(action)
        await self.cluster.sleepers.settled()
        self.check()
        self.clock.at_s += STEP_S
        return seen.instances

    def check(self) -> None:
        held = self.book.held
        gpus = [gpu for one in held.values() for gpu in one]
        assert len(gpus) == len(set(gpus)) <= GPUS
        for name, one in held.items():
            assert any(set(one) <= set(island) for island in self.book.islands or ()), (name, one)
        running = {name for name, child in self.children.items() if child.alive()}
        assert running <= held.keys(), "whoever runs holds GPUs"
        assert not [m for m in self.fleet.members.values() if m.instance.state is State.FAILED], "no start without room"

    def ready(self) -> int:
        return sum(member.instance.state is State.READY for member in self.fleet.members.values())


async def reach(world: World, counts: dict[tuple[str, int], int]) -> int:
    world.want(counts)
    for step in range(MOST_STEPS):
        before = world.ready()
        instances = await world.step()
        assert world.ready() >= min(before, FLOOR), "never under the floor by an act of our own"
        got = Counter((i.pool, i.tp) for i in instances if i.state is State.READY)
        if got == Counter(counts) and all(i.state in (State.READY, State.PARKED) for i in instances):
            return step
    raise AssertionError(f"not reached: {counts}, there are {[(i.id, i.tp, i.state, i.gpus) for i in instances]}")


@pytest.mark.parametrize("kind", ["emulated", "process"])
def test_every_plan_is_reached(kind: str) -> None:
    async def story() -> None:
        world = World(kind, seed=len(kind) + 100 * SEED)
        slowest, planned = 0, 0
        for _ in range(PLANS // 2):
            counts = world.random_counts()
            slowest = max(slowest, await reach(world, counts))
            planned += sum(counts.values())
        assert bool(world.sleep.slept and world.sleep.woken) == world.sleep.able
        print(
            f"{kind}, seed {SEED}: {PLANS // 2} plans, {world.starts} starts for {planned} planned instances, slowest {slowest} steps, "
            f"{world.sleep.slept} put to sleep, {world.sleep.woken} woken"
        )

    asyncio.run(story())
