"""When a request is not tried again: poison, no progress, an empty budget."""

from core.errors import UpstreamFailed, UpstreamTimeout
from gateway.attempt import broken_off, died
from gateway.retry import POISON_S, RetryBudget, Tries
from pools.connection import ConnectionLost, Unreachable


def test_two_deaths_soon_after_its_prefill_make_a_poison() -> None:
    tries = Tries()
    tries.failed("a", 0.0, died=True, after_s=0.1, arrivals=0)
    assert not tries.poison
    tries.failed("b", 0.0, died=True, after_s=POISON_S, arrivals=3)
    assert tries.poison
    tries.acquit(["b", "c"])
    assert not tries.poison, "b lives"
    tries.failed("d", 0.0, died=True, after_s=0.1, arrivals=0)
    assert tries.poison


def test_innocents_are_not_poison() -> None:
    tries = Tries()
    for _ in range(5):
        tries.failed("a", 0.0, died=True, after_s=POISON_S + 0.1, arrivals=3)  # it ran there before
        tries.failed("a", 0.0, died=True, after_s=0.5, arrivals=400)  # a fast instance, hit by something else
        tries.failed("a", 0.0, died=False, after_s=0.1, arrivals=0)  # it refused or stalled
    assert not tries.poison


def test_failures_in_vain_are_counted_in_a_row() -> None:
    tries = Tries()
    for _ in range(3):
        tries.failed("a", 0.0, died=False, after_s=1, arrivals=0)
    assert tries.in_vain == 3
    tries.failed("a", 0.0, died=False, after_s=1, arrivals=1)
    assert tries.in_vain == 0


def failed(times: int, *, arrivals: int = 0) -> Tries:
    tries = Tries()
    for at in range(times):
        tries.failed("a", float(at), died=False, after_s=0.1, arrivals=arrivals)
    return tries


def test_a_request_that_is_answered_with_errors_is_tried_as_often_as_is_set() -> None:
    assert [failed(n).spent(9.0, 2, 60.0, vanished=False) for n in range(1, 4)] == [False, False, True]
    assert failed(1).spent(9.0, 0, 60.0, vanished=True), "0 is never"


def test_a_request_that_instances_break_off_is_tried_twice_as_often_but_not_for_ever() -> None:
    assert [failed(n).spent(9.0, 2, 60.0, vanished=True) for n in range(1, 6)] == [False] * 4 + [True]
    assert failed(4).spent(60.1, 2, 60.0, vanished=True), "the first was at 0"
    tries = failed(4)
    tries.failed("a", 50.0, died=False, after_s=0.1, arrivals=1)
    for _ in range(4):
        tries.failed("a", 51.0, died=False, after_s=0.1, arrivals=0)
    assert not tries.spent(110.0, 2, 60.0, vanished=True), "a row begins anew with a token"


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
