"""Simulator stories by seed. Each ends with the invariants: `simulate` itself refuses books that do not balance."""

import pickle

import pytest
from stories import costs, model, poisson, service, setup

from core.instances import State
from core.request import Outcome
from simulator.cluster import SimCluster
from simulator.request_life import Door
from simulator.run import Ran, check_books, simulate
from simulator.trace import Arrival
from simulator.world import World


def outcomes(ran: Ran) -> dict[str, int]:
    return {outcome.value: count for outcome, count in ran.tally.outcomes.items() if count}


def test_a_quiet_afternoon_completes_everything() -> None:
    ran = simulate(setup(), poisson(1, 3.0, 200.0))
    assert outcomes(ran) == {"completed": ran.tally.total_arrived}
    assert ran.in_flight == 0 and ran.switches.starts == 0
    assert ran.tally.attainment_all > 0.9
    causes = ran.by_cause()
    assert causes["switching"] == 0.0 and min(causes["prefill"], causes["decode"], causes["idle"]) > 0
    assert ran.gpu_s.held == pytest.approx(16 * ran.duration_s)
    assert ran.owned_joules == pytest.approx(ran.joules + 48 * 75 * ran.duration_s)


def test_one_request_alone_costs_what_the_engine_model_says() -> None:
    ran, m = simulate(setup(service({"all": 1})), [Arrival(0.0, 400, 100)]), model()
    prefill_s = m.prefill_s(8, 1980, 400)
    decode_s = m.decode_steps_s(8, 1980, 1, 401, 99)
    assert ran.duration_s == pytest.approx(prefill_s + decode_s)
    assert ran.tally.ttft().quantile(0.5) == pytest.approx(prefill_s, rel=0.003)
    assert ran.by_cause()["prefill"] == pytest.approx(prefill_s * m.watts(8, 1980, 0, 400))
    assert ran.by_cause()["decode"] == pytest.approx(decode_s * m.watts(8, 1980, 1))
    assert ran.by_cause()["idle"] == 0.0


def test_the_same_seed_gives_the_same_bytes() -> None:
    def told(seed: int) -> bytes:
        ran = simulate(setup(service({"short": 1, "long": 2}), seed=seed), poisson(3, 8.0, 60.0))
        return pickle.dumps((ran.duration_s, ran.energy, ran.meter.per_bin_j, ran.tally.gaps.pooled(), ran.happened))

    assert told(1) == told(1)
    assert told(1) != told(2)


def test_too_many_at_once_are_shed_and_counted_as_missed() -> None:
    few = setup(service({"all": 1}, slots=4), door=Door(max_queue=10, max_wait_s=3.0))
    ran = simulate(few, poisson(5, 20.0, 30.0))
    assert ran.tally.outcomes[Outcome.SHED] > 100
    assert sum(ran.tally.outcomes.values()) == ran.tally.total_arrived
    assert not ran.tally.keeps_promise()


def test_a_dead_instance_is_replaced_and_its_untold_requests_go_elsewhere() -> None:
    seen: list[State] = []

    def disturb(world: World, cluster: SimCluster) -> None:
        world.at(30.0, lambda: cluster.fail("all-1", "the story wants it"))
        world.at(150.0, lambda: seen.extend(m.instance.state for m in cluster.members.values()))

    ran = simulate(setup(service({"all": 2})), poisson(4, 4.0, 200.0), disturb=disturb)
    check_books(ran)
    assert ran.switches.starts == 1 and seen == [State.READY, State.READY]
    ended = outcomes(ran)
    assert ended["cut"] > 0 and set(ended) <= {"completed", "cut", "failed"}
    start_s = model().start_s
    assert ran.by_cause()["switching"] == pytest.approx(start_s * model().watts(8, 1980, 0))


def test_a_gpu_that_was_given_back_takes_minutes_to_return() -> None:
    ready_s: list[float] = []

    def disturb(world: World, cluster: SimCluster) -> None:
        def watch() -> None:
            if any(m.instance.state is State.READY and m.instance.id != "all-1" for m in cluster.members.values()):
                ready_s.append(world.now_s)
            else:
                world.at(world.now_s + 1.0, watch)

        world.at(10.0, lambda: cluster.wanted.update(all=2))
        world.at(11.0, watch)

    ran = simulate(setup(service({"all": 1}), gpus=16), poisson(4, 0.5, 700.0), disturb=disturb)
    whole_s = model().switch.return_s + model().start_s
    assert ready_s[0] == pytest.approx(10.0 + whole_s, abs=7.0)
    assert ran.by_cause()["switching"] == pytest.approx(model().start_s * model().watts(8, 1980, 0))


def test_a_surplus_instance_drains_and_its_gpus_go() -> None:
    def disturb(world: World, cluster: SimCluster) -> None:
        world.at(50.0, lambda: cluster.wanted.update(all=1))

    given = simulate(setup(service({"all": 3}), gpus=24), poisson(4, 1.0, 200.0), disturb=disturb)
    kept = simulate(setup(service({"all": 3}), gpus=24, costs=costs(keep_free=True)), poisson(4, 1.0, 200.0), disturb=disturb)  # fmt: skip
    assert given.switches.stops == kept.switches.stops == 2
    assert outcomes(given) == {"completed": given.tally.total_arrived}
    assert kept.joules > given.joules and kept.bare_j > 0 and given.bare_j == 0
    assert given.owned_joules == pytest.approx(kept.owned_joules)


def test_a_lower_clock_is_slower_and_takes_a_moment_to_settle() -> None:
    def disturb(world: World, cluster: SimCluster) -> None:
        world.at(20.0, lambda: cluster.set_clock("all-1", 800))
        world.at(20.1, lambda: cluster.set_clock("all-1", 800))

    fast = simulate(setup(service({"all": 1})), poisson(6, 1.0, 120.0))
    slow = simulate(setup(service({"all": 1})), poisson(6, 1.0, 120.0), disturb=disturb)
    assert slow.switches.clock_writes == 1
    assert slow.tally.gaps.pooled().quantile(0.5) > 1.3 * fast.tally.gaps.pooled().quantile(0.5)
    assert slow.meter.watts_quantile(0.99) < fast.meter.watts_quantile(0.99)


def test_with_nobody_ready_requests_fail_after_their_wait() -> None:
    ran = simulate(setup(service({"all": 0}), door=Door(max_wait_s=20.0)), [Arrival(0.0, 10, 10)])
    assert outcomes(ran) == {"failed": 1} and ran.duration_s == pytest.approx(20.0)


@pytest.mark.parametrize("seed", range(3))
def test_deaths_at_random_leave_the_books_in_balance(seed: int) -> None:
    def disturb(world: World, cluster: SimCluster) -> None:
        for number, at_s in enumerate((13.0, 29.0, 130.0, 190.0)):
            world.at(
                at_s + seed, lambda n=number: cluster.fail(sorted(cluster.members)[n % len(cluster.members)], "fate")
            )

    ran = simulate(setup(service({"short": 1, "medium": 1, "long": 2})), poisson(seed, 6.0, 250.0), disturb=disturb)
    assert ran.in_flight == 0 and sum(ran.tally.outcomes.values()) == ran.tally.total_arrived


def test_a_hopeless_run_ends_early() -> None:
    ran = simulate(setup(service({"all": 1}, slots=2)), poisson(5, 20.0, 300.0), hopeless=lambda tally: sum(
        one.missed for one in tally.classes) > 20)  # fmt: skip
    assert ran.duration_s < 200 and ran.in_flight > 0


def test_an_empty_trace_is_over_at_once() -> None:
    ran = simulate(setup(), [])
    assert ran.duration_s == 0.0 and ran.joules == 0.0 and ran.tally.attainment_all is None
