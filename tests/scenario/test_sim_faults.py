"""Faults by seed: each comes to pass, the books balance, nothing is lost but what a death cut, a seed repeats itself."""

from dataclasses import replace

import pytest

from controller.knowledge import Settings
from core.instances import Seen
from core.request import Outcome
from simulator.case import Case, make_case, shipped_service
from simulator.cluster import SimCluster
from simulator.faults import Faults
from simulator.joulegate_policy import joulegate, joulegate_setup
from simulator.policies import singlepool
from simulator.run import Ran, simulate
from simulator.world import World
from tests.unit.test_sim_policies import MODEL
from tests.unit.test_simulate_command import trace

LOAD = trace(3, 5.0, 240.0)


def run(policy: object = joulegate, seed: int = 1, **faults: float) -> Ran:
    case = make_case(shipped_service("llama-2-70b"), MODEL, lambda: iter(LOAD), seed=seed)
    return policy(replace(case, faults=Faults(**faults), static_instances=4), 32, lambda text: None)  # type: ignore[operator, no-any-return]


def minutely(case: Case, gpus: int, say: object) -> Ran:
    """A plan every minute: one that nothing has gone wrong with is made only every five."""
    return case.run(joulegate_setup(case, gpus, Settings(plan_every_s=60.0)))


@pytest.mark.parametrize("policy", [joulegate, singlepool])
def test_deaths_cut_answers_and_are_made_good(policy: object) -> None:
    ran = run(policy, deaths=40.0)
    outcomes = ran.tally.outcomes
    assert ran.met.deaths >= 2 and ran.switches.starts >= 2 and not ran.in_flight
    assert outcomes[Outcome.COMPLETED] + outcomes[Outcome.CUT] + outcomes[Outcome.SHED] == ran.tally.total_arrived
    assert ran.tally.attainment_all is not None and ran.tally.attainment_all > 0.5


@pytest.mark.parametrize(
    "faults", [{"stale_s": 5.0}, {"refused_clocks": 0.5}, {"lost_plans": 0.7}, {"slow_starts": 1.0, "deaths": 6.0}]
)
def test_the_controller_lives_with_what_does_not_work(faults: dict[str, float]) -> None:
    ran = run(minutely if "lost_plans" in faults else joulegate, **faults)
    met = ran.met.as_dict()
    assert all(met[name] > 0 for name in faults if name in met)
    lost = ran.tally.outcomes[Outcome.CUT] + ran.tally.outcomes[Outcome.SHED]
    assert ran.tally.outcomes[Outcome.COMPLETED] + lost == ran.tally.total_arrived
    assert ran.tally.outcomes[Outcome.CUT] == 0 or met["deaths"]
    assert ran.tally.attainment_all is not None and ran.tally.attainment_all > (0.5 if met["deaths"] else 0.85)


def test_a_view_that_is_too_old_lowers_no_clock_and_drains_nothing() -> None:
    """The same load, seen at once and half a minute late: the clocks that are given up are those of what is fresh."""
    fresh, late = run(), run(stale_s=30.0)
    assert fresh.switches.clock_writes > 0
    assert late.switches.stops == 0
    assert late.joules > fresh.joules
    assert late.tally.outcomes[Outcome.SHED] == 0


def test_a_seed_repeats_itself_and_another_does_not() -> None:
    one, same, other = (run(singlepool, seed=seed, deaths=20.0, slow_starts=0.5) for seed in (1, 1, 2))
    assert one.joules == same.joules and one.met == same.met
    assert other.joules != one.joules


def test_an_injected_fault_hides_no_real_one() -> None:
    case = replace(
        make_case(shipped_service("llama-2-70b"), MODEL, lambda: iter(LOAD)), faults=Faults(lost_plans=1.0)
    )  # fmt: skip
    setup = joulegate_setup(case, 32, Settings(plan_every_s=30.0))

    def blind_for_a_moment(world: World, cluster: SimCluster) -> None:
        sees, raised = cluster.observe, list[float]()

        async def observe() -> Seen:
            if world.now_s >= 20.0 and not raised:
                raised.append(world.now_s)
                raise RuntimeError("cannot see")
            return await sees()

        cluster.observe = observe  # type: ignore[method-assign]

    assert simulate(setup, LOAD).met.lost_plans > 0, "lost plans alone are no failure"
    with pytest.raises(RuntimeError, match="a tick failed: RuntimeError: cannot see"):
        simulate(setup, LOAD, disturb=blind_for_a_moment)
