"""A key's tokens and joules of a minute: reserved on what is foretold, settled on what was, whatever runs at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import RateLimited
from gateway.auth import Identity
from gateway.budgets import Budgets, tokens_spent


class Hand:
    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s


def job(
    name: str = "ann", tokens: int | None = 1000, joules: int | None = None, input_tokens: int = 100, q50: int = 100
) -> Any:
    prediction = SimpleNamespace(q50_tokens=q50)
    return SimpleNamespace(
        identity=Identity(name, None, None, tokens, joules), reserved={}, usage=None, stint=None, timing=None,
        sized=SimpleNamespace(input_tokens=input_tokens, prediction=prediction), parsed=SimpleNamespace(sequences=1),
        route=SimpleNamespace(generates=True, embeds=False),
    )  # fmt: skip


def budgets(joules: float = 50.0) -> tuple[Budgets, Hand]:
    hand = Hand()
    return Budgets(hand, lambda job: joules), hand  # type: ignore[arg-type]


def test_many_at_once_cannot_spend_the_same_tokens_twice() -> None:
    made, _ = budgets()
    for _ in range(5):
        made.reserve(job())
    with pytest.raises(RateLimited) as told:
        made.reserve(job())
    assert told.value.retry_after_s == pytest.approx(12.0) and "tokens per minute" in told.value.message
    made.reserve(job("ben"))  # another key's


def test_what_was_not_spent_comes_back_and_what_was_overspent_is_a_debt() -> None:
    made, hand = budgets()
    first, second = job(), job(input_tokens=600)
    made.reserve(first)
    made.reserve(second)
    made.settle(first, "tokens", 20)
    assert first.reserved == {"joules": 0.0} or first.reserved == {}
    made.settle(first, "tokens", 20)  # once
    made.settle(second, "tokens", 1480)
    with pytest.raises(RateLimited) as told:
        made.reserve(job())
    assert told.value.retry_after_s == pytest.approx((200 + 500) * 60 / 1000)
    hand.at_s += 42.1
    made.reserve(job())


def test_a_request_larger_than_a_minute_waits_for_a_full_bucket() -> None:
    made, hand = budgets()
    made.reserve(job())
    with pytest.raises(RateLimited):
        made.reserve(job(input_tokens=5000))
    hand.at_s += 12.01
    made.reserve(job(input_tokens=5000))


def test_joules_and_tokens_are_taken_together_or_not_at_all() -> None:
    made, hand = budgets(joules=60.0)
    made.reserve(job(tokens=1000, joules=100))
    with pytest.raises(RateLimited, match="joules per minute"):
        made.reserve(job(tokens=1000, joules=100))
    hand.at_s += 1e-3
    for _ in range(4):  # the refused one took no tokens
        made.reserve(job(tokens=1000, joules=None))


def test_a_key_without_limits_reserves_nothing() -> None:
    made, _ = budgets()
    free = job(tokens=None)
    made.reserve(free)
    assert free.reserved == {}


def test_a_reload_changes_the_limit_and_leaves_no_more_than_it() -> None:
    made, hand = budgets()
    made.reserve(job())
    hand.at_s += 60
    with pytest.raises(RateLimited):
        for _ in range(3):
            made.reserve(job(tokens=400))


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 800), st.floats(0, 20)), min_size=1, max_size=60))
def test_over_any_time_no_more_is_admitted_than_was_filled_and_owed(asks: list[tuple[int, int, float]]) -> None:
    """Foretold tokens admitted, less what was handed back, never exceed a full bucket and what has refilled."""
    made, hand = budgets()
    spent, running = 0.0, []
    for input_tokens, real, pause_s in asks:
        hand.at_s += pause_s
        one = job(input_tokens=input_tokens, q50=0)
        try:
            made.reserve(one)
        except RateLimited:
            continue
        spent += input_tokens
        running.append((one, input_tokens, real))
        if len(running) > 3:
            done, reserved, used = running.pop(0)
            made.settle(done, "tokens", used)
            spent += used - reserved
    largest = max(used for *_, used in asks)
    assert spent <= 1000 + hand.at_s * 1000 / 60 + 4 * (largest + 400) + 1e-6


def test_tokens_of_a_request_that_never_said_its_usage() -> None:
    cut = job()
    assert tokens_spent(cut) == 0  # it was sent nowhere
    cut.stint = SimpleNamespace()
    assert tokens_spent(cut) == 100
    cut.timing = SimpleNamespace(first_s=1.0, gaps=30)
    assert tokens_spent(cut) == 131
    cut.usage = (90, 44)
    assert tokens_spent(cut) == 134
