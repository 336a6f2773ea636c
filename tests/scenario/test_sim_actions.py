"""What a controller can do to a simulated cluster besides starting and stopping: shapes, re-shards, sleep, resumed
drains, steering. Every run ends with balanced books, which simulate() checks itself."""

import pytest
from stories import costs, model, poisson, service, setup

from core.instances import Shape, State, Steer
from core.request import Outcome
from simulator.cluster import SimCluster
from simulator.run import Ran, simulate
from simulator.world import World

Story = list[tuple[float, str, object]]


def test_an_instance_is_started_in_another_shape_and_takes_load() -> None:
    seen = {}

    def disturb(world: World, cluster: SimCluster) -> None:
        def start() -> None:
            cluster.wanted["all"] = 3
            cluster.start("all", Shape(tp=4, clock_mhz=1200, slots=48, step_tokens=256))

        world.at(6.0, start)
        world.at(120.0, lambda: seen.update(member=list(cluster.members.values())[-1]))

    ran = simulate(setup(costs=costs(back_after_s=0.0)), poisson(3, 9.0, 150.0), disturb=disturb)
    member = seen["member"]
    assert (member.instance.tp, member.instance.clock_mhz, member.instance.step_tokens) == (4, 1200, 256)
    assert member.instance.limits.slots == 48 and member.instance.limits.kv_tokens == model().kv_tokens(4)
    assert any(one.tp == 4 and one.decode_j > 0 for one in ran.energy)


def test_a_reshard_in_place_is_sooner_than_a_start_and_counted() -> None:
    ready_s = {}

    def disturb(world: World, cluster: SimCluster) -> None:
        def reshape() -> None:
            cluster.drain("all-2", "reshape", keep_gpus=True)
            cluster.wanted["all"] = 1

        def again() -> None:
            cluster.wanted["all"] = 2
            cluster.start("all", Shape(tp=4, from_tp=8))

        def look() -> None:
            for member in cluster.members.values():
                if member.instance.tp == 4 and member.instance.state is State.READY:
                    ready_s.setdefault("at", member.instance.since_s)

        world.at(10.0, reshape)
        world.at(60.0, again)
        for at_s in range(60, 180):
            world.at(float(at_s), look)

    ran = simulate(setup(), poisson(4, 0.5, 170.0), disturb=disturb)
    assert ran.switches.reshards == 1
    assert ready_s["at"] == pytest.approx(60.0 + model().reshard_s(8, 4))
    assert ran.gpu_s.bare > 0, "its GPUs were held meanwhile"


def test_a_parked_instance_takes_nothing_and_is_back_within_its_time() -> None:
    told: list[tuple[float, State, int]] = []

    def disturb(world: World, cluster: SimCluster) -> None:
        def look() -> None:
            instance = cluster.members["all-2"].instance
            told.append((world.now_s, instance.state, instance.requests))

        def want(instances: int) -> None:
            cluster.wanted["all"] = instances  # or the controller wakes it at once

        world.at(0.0, lambda: want(1))
        world.at(0.0, lambda: cluster.park("all-2", "quiet"))
        for at_s in (20.0, 49.9, 50.1):
            world.at(at_s, look)
        world.at(50.0, lambda: want(2))
        world.at(50.0, lambda: cluster.wake("all-2", "load"))
        world.at(50.0 + model().switch.unpark_s + 0.01, look)

    ran = simulate(setup(), poisson(5, 1.0, 100.0), disturb=disturb)
    assert [(state, requests) for _, state, requests in told[:3]] == [
        (State.PARKED, 0), (State.PARKED, 0), (State.STARTING, 0)
    ]  # fmt: skip
    assert told[3][1] is State.READY
    assert (ran.switches.parks, ran.switches.wakes, ran.switches.starts) == (1, 1, 0)


def test_sleep_is_booked_at_what_a_parked_gpu_draws() -> None:
    def asleep(world: World, cluster: SimCluster) -> None:
        world.at(0.0, lambda: cluster.park("all-2", "quiet"))
        world.at(0.0, lambda: cluster.wanted.update(all=1))

    def joules(ran: Ran) -> float:
        return next(one.total_j for one in ran.energy if one.id == "all-2")

    load = list(poisson(6, 0.5, 60.0))
    slept = simulate(setup(), load, disturb=asleep)
    assert joules(slept) == pytest.approx(8 * model().parked_w * slept.duration_s, rel=1e-6)


def test_a_drain_that_is_taken_back_serves_on_and_its_empty_time_was_switching() -> None:
    def disturb(world: World, cluster: SimCluster) -> None:
        world.at(21.0, lambda: cluster.drain("all-2", "surplus"))
        world.at(21.5, lambda: cluster.resume("all-2", "load again"))

    ran = simulate(setup(), poisson(7, 3.0, 60.0), disturb=disturb)
    assert ran.switches.stops == 1 and ran.switches.starts == 0
    assert {one.id for one in ran.energy} == {"all-1", "all-2"}


def test_late_ones_make_way_where_the_ladder_says_so() -> None:
    def shed(world: World, cluster: SimCluster) -> None:
        cluster.router.steer(Steer("llama-2-70b", "all", False, True, "overload"))

    spec = service({"all": 1}, slots=16)
    load = list(poisson(8, 12.0, 40.0))
    kept, crowded = simulate(setup(spec), load, disturb=shed), simulate(setup(spec), load)
    assert kept.tally.outcomes[Outcome.SHED] > 0 and kept.tally.outcomes[Outcome.COMPLETED] > 0
    assert min(kept.tally.good_tokens, crowded.tally.good_tokens) > 20_000, "neither collapses"
    attained = sum(one.attained for one in kept.tally.classes)
    assert attained > 0.95 * kept.tally.outcomes[Outcome.COMPLETED], "who is served is served in time"


def test_with_spill_a_shorter_pool_serves_longer_answers() -> None:
    def spill(world: World, cluster: SimCluster) -> None:
        cluster.router.steer(Steer("llama-2-70b", "long", True, False, "queue"))

    spec = service({"short": 2, "long": 1}, slots=16)
    load = list(poisson(9, 5.0, 40.0))
    usual, spilled = simulate(setup(spec), load), simulate(setup(spec), load, disturb=spill)
    assert spilled.tally.attainment_all > usual.tally.attainment_all


def test_a_short_prompt_overtakes_long_ones_that_still_wait() -> None:
    from simulator.trace import Arrival

    load = [Arrival(0.0, 1500, 4), Arrival(0.01, 1500, 4), Arrival(0.02, 200, 4)]
    ran = simulate(setup(service({"all": 1})), load)
    short, long = ran.tally.classes[0].ttft, ran.tally.classes[6].ttft
    assert short.count == 1 and long.count == 2
    assert short.quantile(0.5) < long.quantile(1.0), "it went before the second long one"
