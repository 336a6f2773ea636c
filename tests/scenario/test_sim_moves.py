"""Answers that move in simulated time: nothing is cut by a death, tokens and gaps add up, moving is weighed as live."""

from dataclasses import replace

import pytest

from core.request import Outcome
from simulator.case import make_case, shipped_service
from simulator.faults import Faults
from simulator.joulegate_policy import joulegate
from simulator.policies import singlepool
from simulator.request_life import MOVES_FAILURE, MOVES_OFF, MOVES_ON
from simulator.run import Ran, check_books
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
