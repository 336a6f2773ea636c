"""The circuit breaker of one instance."""

from pools.breaker import Breaker


def test_opens_after_consecutive_failures_only() -> None:
    breaker = Breaker(3, 1.0, 8.0)
    for _ in range(2):
        breaker.failure(0.0)
    breaker.success()
    for _ in range(2):
        breaker.failure(0.0)
    assert breaker.allows(0.0)
    breaker.failure(0.0)
    assert not breaker.allows(0.5)


def test_one_trial_after_the_pause_decides() -> None:
    breaker = Breaker(1, 1.0, 8.0)
    breaker.failure(0.0)
    assert breaker.allows(1.0)
    breaker.begin()
    assert not breaker.allows(1.0)
    breaker.success()
    assert breaker.allows(1.0) and not breaker.opened


def test_the_pause_doubles_up_to_its_limit() -> None:
    breaker = Breaker(1, 1.0, 3.0)
    now_s = 0.0
    for pause_s in (1.0, 2.0, 3.0, 3.0):
        breaker.failure(now_s)
        assert not breaker.allows(now_s + pause_s - 0.01)
        now_s += pause_s
        assert breaker.allows(now_s)


def test_a_trial_that_tells_nothing_leaves_room_for_another() -> None:
    breaker = Breaker(1, 1.0, 8.0)
    breaker.failure(0.0)
    breaker.begin()
    breaker.neutral()
    assert breaker.allows(1.0)
