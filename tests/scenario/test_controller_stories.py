"""The controller that serves, on simulated engines: square waves do not make it thrash, deaths are replaced, shadow
changes nothing, GPUs are never over the count. Every run ends with balanced books, which simulate() checks itself."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from stories import model

from controller.knowledge import Settings
from core.instances import State
from predictor import load_windows
from simulator.case import Case, make_case, shipped_service
from simulator.cluster import SimCluster
from simulator.joulegate_policy import joulegate_setup
from simulator.run import Setup, simulate
from simulator.trace import Arrival
from simulator.world import World

GPUS = 32


def wave(high_rps: float, low_rps: float, period_s: float, seconds: float, seed: int = 1) -> Iterator[Arrival]:
    rng, at_s = random.Random(seed), 0.0
    while at_s < seconds:
        yield Arrival(at_s, min(6000, int(rng.lognormvariate(6, 1)) + 1), int(rng.lognormvariate(4.9, 0.6)) + 1)
        high = at_s % period_s < period_s / 2
        at_s += rng.expovariate(high_rps if high else low_rps)


def case(load: list[Arrival]) -> Case:
    return make_case(shipped_service("llama-2-70b"), model(), lambda: iter(load))


def planned(load: list[Arrival], **settings: object) -> Setup:
    return joulegate_setup(case(load), GPUS, replace(Settings(), **settings))  # type: ignore[arg-type]


def test_a_square_wave_does_not_make_it_thrash() -> None:
    load = list(wave(9.0, 2.0, 240.0, 1800.0))
    ran = simulate(planned(load), load)
    budget = Settings().switches_per_hour * ran.duration_s / 3600
    assert ran.switches.starts <= budget + Settings().most_changes
    assert ran.tally.attainment_all > 0.9, "two instances to begin with, and minutes until more are there"


def test_it_spends_less_than_the_same_gpus_held_static() -> None:
    load = list(wave(6.0, 3.0, 600.0, 1200.0))
    one = case(load)
    static = one.setup((one.pool("all", ("S", "M", "L"), GPUS // one.tp),), GPUS)
    fixed, ran = simulate(static, load), simulate(planned(load), load)
    assert ran.tally.attainment_all > 0.98 and ran.joules < 0.8 * fixed.joules


def test_what_dies_is_replaced_and_gpus_stay_within_their_count() -> None:
    load = list(wave(6.0, 6.0, 600.0, 900.0))
    used: list[int] = []
    ready: list[int] = []

    def disturb(world: World, cluster: SimCluster) -> None:
        def kill() -> None:
            cluster.fail(next(iter(cluster.members)), "killed")

        def look() -> None:
            live = [m for m in cluster.members.values() if m.instance.state is State.READY]
            used.append(sum(m.instance.tp for m in cluster.members.values() if m.instance.state is not State.FAILED))
            ready.append(len(live))
            world.at(world.now_s + 5.0, look)

        world.at(100.0, kill)
        world.at(1.0, look)

    ran = simulate(planned(load), load, disturb=disturb)
    assert max(used) <= GPUS and min(ready) >= 1
    assert ran.switches.starts >= 1 and ready[-1] >= ready[0] - 1


def test_in_shadow_it_only_tells() -> None:
    load = list(wave(6.0, 2.0, 300.0, 700.0))
    setup = planned(load)
    assert setup.knowledge is not None and setup.first_plan is not None
    counts = setup.first_plan.counts()
    pools = tuple(
        replace(pool, instances=sum(n for (name, _), n in counts.items() if name == pool.name))
        for pool in setup.spec.pools
    )
    setup = replace(setup, spec=replace(setup.spec, pools=pools))
    told: list[dict[str, object]] = []

    class Log:
        def record(self, row: dict[str, object]) -> None:
            told.append(row)

    ran = simulate(replace(setup, knowledge=replace(setup.knowledge, mode="shadow")), load, recorder=Log())
    assert ran.switches.starts == ran.switches.stops == ran.switches.clock_writes == 0
    assert any("proposed" in row for row in told)


def test_twice_the_same() -> None:
    load = list(wave(6.0, 2.0, 300.0, 600.0))
    first, second = (simulate(planned(load), load) for _ in range(2))
    assert (first.joules, first.switches) == (second.joules, second.switches)


def bursts(seconds: float, seed: int = 3) -> Iterator[Arrival]:
    """A quiet load of long prompts that for twenty seconds in every two minutes is ten times itself."""
    rng, at_s = random.Random(seed), 0.0
    while at_s < seconds:
        yield Arrival(at_s, min(6000, int(rng.lognormvariate(7.3, 0.8)) + 1), int(rng.lognormvariate(3, 0.6)) + 1)
        at_s += rng.expovariate(6.0 if at_s % 120.0 < 20.0 else 0.6)


def room_rps(setup: Setup) -> float:
    """What the first plan carries with all clocks at their highest."""
    assert setup.first_plan is not None
    fastest = [(one.count, max(one.clocks, key=lambda price: price.clock_mhz)) for one in setup.first_plan.targets]
    return setup.first_plan.planned[0] * sum(count / price.needs for count, price in fastest)


def test_a_load_that_comes_in_bursts_is_held_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the mean of five minutes, 1.5 requests/s, two instances would do; a burst is over before a third has started."""
    load = list(bursts(900.0))
    setup = planned(load)
    ran = simulate(setup, load)
    assert room_rps(setup) > 6.0 * 0.75
    assert ran.tally.attainment_all > 0.97
    monkeypatch.setattr(load_windows, "excess", lambda minutes, surges: 0.0)
    assert room_rps(planned(load)) < 0.8 * room_rps(setup), "surges are what the room is for"


def test_learning_opens_clocks_one_by_one_and_keeps_the_promises() -> None:
    load = list(wave(6.0, 6.0, 600.0, 900.0))
    told: list[dict[str, object]] = []

    class Log:
        def record(self, row: dict[str, object]) -> None:
            told.append(row)

    ran = simulate(planned(load, learn=True), load, recorder=Log())
    written = [act for row in told if row["kind"] == "tick" for act in row["actions"] if act["action"] == "setclock"]  # type: ignore[attr-defined]
    tried = list(dict.fromkeys(act["clock_mhz"] for act in written if "boost" not in act["reason"]))
    grid = sorted(model().clocks_mhz, reverse=True)
    assert tried == grid[: len(tried)] and len(tried) >= 2, "from the fastest down, none left out"
    assert ran.tally.attainment_all > 0.99
