"""What transitions cost: counted or modelled, kept over a restart, and taken by the plan."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.planning import switch_joules
from core.clock import SystemClock
from core.service import InstanceLimits, PoolSpec
from pools.breaker import Breaker
from pools.instance import Instance
from pools.knobs import NoKnobs
from pools.transitions import KEPT, Kind, Transitions
from profiles.engine_model import load_engine_model

MODEL = load_engine_model("llama-3.1-8b")


class Meter(NoKnobs):
    """A counter that gains `watts` a second."""

    quality = "measured"

    def __init__(self, clock: "Hand", watts: float | None) -> None:
        self.clock, self.watts = clock, watts

    async def joules(self, instance: Instance) -> float | None:
        return None if self.watts is None else self.watts * self.clock.now_s()


class Hand(SystemClock):
    def __init__(self) -> None:
        self.at_s = 100.0

    def now_s(self) -> float:
        return self.at_s


def instance(name: str, tp: int, pool: str = "all") -> Instance:
    spec = PoolSpec(pool, ("S", "M", "L"), 1, tp, 1980, InstanceLimits(4))
    return Instance(name, "127.0.0.1", 1, spec, Breaker(3, 1.0, 30.0), MODEL, now_s=0.0)


def told(story: Callable[["World"], None], path: Path | None = None, watts: float | None = 500.0) -> Transitions:
    """The story with the counters read after each step."""

    async def play() -> Transitions:
        world = World(path, watts)
        world.running = asyncio.create_task(world.transitions.run())
        await world.play(story)
        world.running.cancel()
        return world.transitions

    return asyncio.run(play())


class World:
    def __init__(self, path: Path | None, watts: float | None) -> None:
        self.clock = Hand()
        self.transitions = Transitions(self.clock, path)
        self.knobs = Meter(self.clock, watts)
        self.steps: list[tuple[float, Callable[[], None]]] = []

    def at(self, seconds: float, step: Callable[[], None]) -> None:
        self.steps.append((seconds, step))

    def begin(self, seconds: float, kind: str, one: Instance) -> None:
        self.at(seconds, lambda: self.transitions.begin(kind, "chat", one, self.knobs))

    def end(self, seconds: float, kind: str, one: Instance) -> None:
        self.at(seconds, lambda: self.transitions.end(kind, one.id))

    async def play(self, story: Callable[["World"], None]) -> None:
        story(self)
        for seconds, step in self.steps:
            self.clock.at_s = 100.0 + seconds
            step()
            await self.transitions.settled()


def start_of_ten_seconds(world: World) -> None:
    one = instance("a-1", 2)
    world.begin(0, "start", one)
    world.end(10, "start", one)


def test_a_start_is_counted_by_its_gpus() -> None:
    (cost,) = told(start_of_ten_seconds).costs()
    assert (cost.kind, cost.count, cost.seconds) == (Kind("chat", "start", 2), 1, 10.0)
    assert (cost.joules, cost.quality) == (5000.0, "measured")


def test_without_a_counter_it_is_modelled() -> None:
    (cost,) = told(start_of_ten_seconds, watts=None).costs()
    assert (cost.joules, cost.quality) == (10.0 * 2 * MODEL.idle_w, "modelled")


def test_what_failed_is_no_price() -> None:
    def story(world: World) -> None:
        one = instance("a-1", 2)
        world.begin(0, "start", one)
        world.at(5, lambda: world.transitions.drop("a-1"))
        world.end(6, "start", one)
        world.end(7, "stop", one)

    assert told(story).costs() == ()


def test_a_start_and_then_a_stop_of_another_tp_in_the_pool_are_a_reshard() -> None:
    def story(world: World) -> None:
        old, new, other = instance("a-1", 4), instance("a-2", 2), instance("b-3", 8, "other")
        world.begin(0, "start", new)
        world.end(10, "start", new)
        world.begin(20, "stop", other)
        world.end(21, "stop", other)
        world.begin(30, "stop", old)
        world.end(32, "stop", old)

    reshard = next(cost for cost in told(story).costs() if cost.kind.kind == "reshard")
    assert reshard.kind == Kind("chat", "reshard", 2, from_tp=4)
    assert (reshard.seconds, reshard.joules) == (32.0, 5000.0 + 1000.0)


def test_records_outlive_the_process_and_only_the_newest_count(tmp_path: Path) -> None:
    path = tmp_path / "t.json"

    def story(world: World) -> None:
        for number in range(KEPT + 5):
            one = instance(f"a-{number}", 2)
            world.begin(100 * number, "start", one)
            world.end(100 * number + (1 if number < 5 else 3), "start", one)

    told(story, path)
    (cost,) = Transitions(SystemClock(), path).costs()
    assert (cost.count, cost.seconds, cost.joules) == (KEPT, 3.0, 1500.0)
    assert Transitions(SystemClock(), path).switch_j("chat") == {2: (1500.0, 0.0)}
    path.write_text("{")
    assert Transitions(SystemClock(), path).costs() == ()


def test_the_plan_takes_what_was_recorded() -> None:
    assert switch_joules("chat", MODEL, 2, {}).start_j == MODEL.idle_w * 2 * MODEL.start_s
    recorded = {2: (1500.0, 100.0), 4: (5000.0, 200.0)}
    two, eight = (switch_joules("chat", MODEL, tp, recorded) for tp in (2, 8))
    assert (two.start_j, two.stop_j) == (1500.0, 100.0)
    assert (eight.start_j, eight.stop_j) == pytest.approx((8 * 1000.0, 8 * 50.0)), "as a GPU of the others"
