"""Answers that move in simulated time: nothing is cut by a death, tokens and gaps add up, moving is weighed as live."""

from dataclasses import replace

import pytest
from stories import costs, model, poisson, service, setup

from controller import pressure
from controller.knowledge import Knowledge, ServiceKnowledge
from core.request import Outcome
from simulator.case import make_case, shipped_service
from simulator.cluster import SimCluster
from simulator.faults import Faults
from simulator.joulegate_policy import joulegate
from simulator.policies import singlepool
from simulator.request_life import MOVES_FAILURE, MOVES_OFF, MOVES_ON
from simulator.run import Ran, check_books, simulate
from simulator.world import World
from tests.unit.test_sim_policies import MODEL
from tests.unit.test_simulate_command import trace

LOAD = trace(5, 5.0, 240.0)


def run(policy: object, moves: str, deaths: float = 40.0, seed: int = 1, predictor: str = "0.6") -> Ran:
    case = make_case(shipped_service("llama-2-70b"), MODEL, lambda: iter(LOAD), seed=seed, predictor=predictor)
    case = replace(case, faults=Faults(deaths=deaths), static_instances=4, moves=moves)
    return policy(case, 32, lambda text: None)  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_death_cuts_no_answer(seed: int) -> None:
    cut, moved = (run(singlepool, moves, seed=seed) for moves in (MOVES_OFF, MOVES_FAILURE))
    assert cut.tally.outcomes[Outcome.CUT] > 0 and cut.tally.migrations == 0
    assert moved.met.deaths >= 2 and moved.tally.migrations > 0
    assert moved.tally.outcomes[Outcome.CUT] == 0
    # With nothing cut the books also hold every gap to a token.
    check_books(moved)
    assert moved.tally.output_tokens == sum(arrival.output_tokens for arrival in LOAD)
    assert moved.tally.ttft().count == len(LOAD)


def test_answers_that_outgrow_their_prediction_are_weighed() -> None:
    still, moved = (run(joulegate, moves, deaths=0.0) for moves in (MOVES_FAILURE, MOVES_ON))
    assert still.tally.migrations == 0
    for ran in (still, moved):
        check_books(ran)
        assert ran.tally.output_tokens == sum(arrival.output_tokens for arrival in LOAD)


@pytest.mark.parametrize("rps", [3.0, 6.0, 9.0])
def test_what_an_engine_has_not_begun_goes_elsewhere_on_the_ladder(rps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two engines has a cache far smaller than its profile says, so that prompts wait in it for room."""
    spec = service({"all": 2})
    known = ServiceKnowledge(spec, model(), costs().step_tokens)
    knowledge = Knowledge({spec.name: known}, gpus=16, mode="shadow")

    def shrinks(world: World, cluster: SimCluster) -> None:
        first = next(iter(cluster.members.values()))
        world.at(5.0, lambda: setattr(first.engine, "kv_tokens", 5000))

    def ran() -> Ran:
        load = list(poisson(1, rps, 60.0))
        return simulate(setup(spec, gpus=16, knowledge=knowledge, tick_s=1.0), load, disturb=shrinks)

    moved = ran()
    monkeypatch.setattr(pressure, "LADDER", tuple(rung for rung in pressure.LADDER if rung.name != "move"))
    kept = ran()
    assert moved.tally.retried > 0 == kept.tally.retried
    assert moved.tally.attainment_all > kept.tally.attainment_all
    for one in (moved, kept):
        assert one.tally.outcomes[Outcome.COMPLETED] == one.tally.total_arrived
