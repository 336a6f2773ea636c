"""The ledger against a cluster whose physics is off by a tenth from its model: what is booked is what was spent, through
deaths, drains, sleep, counters that restart or fall silent, and answers that move."""

from __future__ import annotations

import pytest

from gateway.ledger_store import JOULES
from tests.ledger_rig import Rig, Told


@pytest.fixture(scope="module", params=[1, 5])
def told(request: pytest.FixtureRequest) -> Told:
    return Rig(request.param, seconds=1200).run()


def test_every_ten_minutes_add_up_to_what_was_spent(told: Told) -> None:
    assert told.starts > 4 and told.moved > 5 and told.resets > 3  # the story has what it is about
    assert max(map(abs, told.shares())) < 0.01
    assert abs(told.total("residual_j")) < 0.001 * told.total("meter_j")


def test_the_unscaled_model_learns_the_physics(told: Told) -> None:
    assert abs(told.foretold(600)) < 0.05


def test_bills_are_the_requests_joules_and_moved_answers_pay_at_both_places(told: Told) -> None:
    assert sum(bill.joules for bill in told.bills) == pytest.approx(told.rows_j)
    assert told.accounts_j == pytest.approx(told.total("prefill_j") + told.total("decode_j"))
    assert told.rows_j == pytest.approx(told.accounts_j, rel=0.01)  # but for those that run at the end
    assert all(bill.prefill_j > 0 and bill.joules < 20_000 for bill in told.bills)


def test_an_untaught_model_is_caught() -> None:
    """The figure can be bad: in its first ten seconds a model that is off by half foretells what is not counted."""
    told = Rig(4, seconds=120, share=0.45, faults=False).run()
    expected, judged = (told.booked[0][JOULES.index(name)] for name in ("expected_j", "judged_j"))
    assert abs(expected / judged - 1) > max(0.04, 4 * abs(told.foretold(60)))
