"""What transitions cost: counted or modelled, kept over a restart, and taken by the plan."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.knowledge import ServiceKnowledge
from controller.planning import switch_joules
from core.clock import SystemClock
from core.service import InstanceLimits, PoolSpec
from joulegate import app
from pools.breaker import Breaker
from pools.instance import Instance
from pools.knobs import NoKnobs
from pools.transitions import KEPT, SOON_S, Cost, Kind, Transitions
from profiles.engine_model import load_engine_model
from tests.unit.test_planning import SPEC

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

    def begin(self, seconds: float, kind: str, one: Instance, cpu: Callable[[], float | None] = lambda: None) -> None:
        self.at(seconds, lambda: self.transitions.begin(kind, "chat", one, self.knobs, cpu))

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


def test_what_is_over_before_it_is_read_counts_once_and_is_modelled() -> None:
    def story(world: World) -> None:
        one = instance("a-1", 2)

        def at_once() -> None:
            world.transitions.begin("park", "chat", one, world.knobs)
            world.transitions.end("park", one.id)

        world.at(1, at_once)

    (cost,) = told(story).costs()
    assert (cost.kind.kind, cost.count, cost.quality) == ("park", 1, "modelled")


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


def reshards(story: Callable[["World"], None]) -> list[Cost]:
    return [cost for cost in told(story).costs() if cost.kind.kind == "reshard"]


@pytest.mark.parametrize(("pause_s", "counted"), [(1, 1), (SOON_S + 1, 0)])
def test_a_stop_and_then_a_start_where_gpus_are_short_are_a_reshard(pause_s: float, counted: int) -> None:
    """Later it is another decision, and a stop is paired once."""

    def story(world: World) -> None:
        old, new, more = instance("a-1", 8), instance("a-2", 4), instance("a-3", 4)
        world.begin(0, "stop", old)
        world.end(5, "stop", old)
        for one in (new, more):
            world.begin(5 + pause_s, "start", one)
        for one in (new, more):
            world.end(25 + pause_s, "start", one)

    found = reshards(story)
    assert len(found) == counted
    if found:
        assert (found[0].kind, found[0].count) == (Kind("chat", "reshard", 4, from_tp=8), 1)
        assert (found[0].seconds, found[0].joules) == (26.0, 2500.0 + 10_000.0)


def test_a_stop_goes_with_the_newest_start() -> None:
    """The first instance of a pool was started too, and has been re-sharded away meanwhile."""

    def story(world: World) -> None:
        one, two, three = instance("a-1", 2), instance("a-2", 4), instance("a-3", 8)
        for at_s, begin, end in ((0, one, None), (100, two, one), (200, three, two)):
            world.begin(at_s, "start", begin)
            world.end(at_s + 10, "start", begin)
            if end is not None:
                world.begin(at_s + 10, "stop", end)
                world.end(at_s + 12, "stop", end)

    kinds = [(cost.kind.from_tp, cost.kind.tp, cost.seconds) for cost in reshards(story)]
    assert kinds == [(2, 4, 12.0), (4, 8, 12.0)]


def test_an_instance_that_has_ended_replaces_nothing() -> None:
    def story(world: World) -> None:
        one, two = instance("a-1", 2), instance("a-2", 4)
        for at_s, kind, who in ((0, "start", one), (10, "stop", one), (100, "start", two), (110, "stop", two)):
            world.begin(at_s, kind, who)
            world.end(at_s + 5, kind, who)

    assert reshards(story) == []


def test_as_many_gpus_in_one_pool_are_no_reshard() -> None:
    def story(world: World) -> None:
        old, new = instance("a-1", 2), instance("a-2", 2)
        world.begin(0, "start", new)
        world.end(10, "start", new)
        world.begin(10, "stop", old)
        world.end(12, "stop", old)

    assert reshards(story) == []


def test_processor_time_stands_beside_joules_and_is_none_once_the_processes_are_gone(tmp_path: Path) -> None:
    used = {"a-1": 0.5}

    def story(world: World) -> None:
        one = instance("a-1", 2)
        world.begin(0, "start", one, lambda: used.get("a-1"))
        world.at(9, lambda: used.update({"a-1": 4.0}))
        world.end(10, "start", one)
        world.begin(20, "stop", one, lambda: used.get("a-1"))
        world.at(21, used.clear)
        world.end(22, "stop", one)

    path = tmp_path / "t.json"
    told(story, path)
    start, stop = Transitions(SystemClock(), path).costs()
    assert (start.cpu_s, stop.cpu_s) == (4.0, None), "a start's processes are born with it"


def test_the_command_shows_what_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    words = ["transitions", "--set", f"controller.transitions={path}"]
    assert CliRunner().invoke(app, words).exit_code == 1, "nothing yet"
    told(start_of_ten_seconds, path)
    shown = CliRunner().invoke(app, [*words, "--json"])
    (one,) = json.loads(shown.stdout)["transitions"]
    assert (one["kind"], one["tp"], one["seconds"], one["joules"], one["cpu_s"]) == ("start", 2, 10.0, 5000.0, None)
    assert "| chat | start | 2 | 1 | 10 | 5000 | measured |  |" in CliRunner().invoke(app, words).stdout
    assert CliRunner().invoke(app, ["transitions", "--set", "controller.transitions=null"]).exit_code == 2


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
    nothing = ServiceKnowledge(SPEC, MODEL)
    assert switch_joules("chat", MODEL, 2, nothing).start_j == MODEL.idle_w * 2 * MODEL.start_s
    assert switch_joules("chat", MODEL, 2, nothing).wake_j == MODEL.parked_w * 2 * MODEL.switch.unpark_s
    recorded = replace(nothing, switch_j={2: (1500.0, 100.0), 4: (5000.0, 200.0)}, wake_j={2: 90.0})
    two, eight = (switch_joules("chat", MODEL, tp, recorded) for tp in (2, 8))
    assert two.wake_j == 90.0
    assert (two.start_j, two.stop_j) == (1500.0, 100.0)
    assert (eight.start_j, eight.stop_j) == pytest.approx((8 * 1000.0, 8 * 50.0)), "as a GPU of the others"
