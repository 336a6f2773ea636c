"""When a request is not tried again: poison, no progress, an empty budget."""

from core.errors import UpstreamFailed, UpstreamTimeout
from gateway.attempt import broken_off, died
from gateway.retry import POISON_S, RetryBudget, Tries
from pools.connection import ConnectionLost, Unreachable


def test_two_deaths_soon_after_its_prefill_make_a_poison() -> None:
    tries = Tries()
    tries.failed("a", died=True, after_s=0.1, arrivals=0)
    assert not tries.poison
    tries.failed("b", died=True, after_s=POISON_S, arrivals=3)
    assert tries.poison
    tries.acquit(["b", "c"])
    assert not tries.poison, "b lives"
    tries.failed("d", died=True, after_s=0.1, arrivals=0)
    assert tries.poison


def test_innocents_are_not_poison() -> None:
    tries = Tries()
    for _ in range(5):
        tries.failed("a", died=True, after_s=POISON_S + 0.1, arrivals=3)  # it ran there before
        tries.failed("a", died=True, after_s=0.5, arrivals=400)  # a fast instance, hit by something else
        tries.failed("a", died=False, after_s=0.1, arrivals=0)  # it refused or stalled
    assert not tries.poison


def test_failures_in_vain_are_counted_in_a_row() -> None:
    tries = Tries()
    for _ in range(3):
        tries.failed("a", died=False, after_s=1, arrivals=0)
    assert tries.in_vain == 3
    tries.failed("a", died=False, after_s=1, arrivals=1)
    assert tries.in_vain == 0


def test_an_outage_does_not_double_the_load() -> None:
    budget, slots = RetryBudget(), 30
    assert sum(budget.take(0.0, slots) for _ in range(100)) == slots, "a dead instance's load may move at once"
    allowed = 0
    for at in range(10_000):  # a thousand a second, and each of them fails
        budget.arrived()
        allowed += budget.take(at / 1000, slots)
    assert 0.2 * 10_000 <= allowed <= 0.21 * 10_000


def test_a_quiet_service_gets_some_back() -> None:
    budget = RetryBudget()
    while budget.take(0.0, 16):
        pass
    assert budget.take(0.5, 16) and not budget.take(0.5, 16)


def test_each_way_to_break_off_has_its_word() -> None:
    errors = (Unreachable("x"), ConnectionLost("x"), UpstreamTimeout("x"), UpstreamFailed("x"))
    assert [broken_off(error).kind for error in errors] == ["refused", "cut", "stall", "garbage"]
    assert [died(broken_off(error)) for error in errors] == [False, True, False, False]
