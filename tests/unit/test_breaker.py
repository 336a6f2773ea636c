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
        breaker.failure(now_s, trial=breaker.begin())
        assert not breaker.allows(now_s + pause_s - 0.01)
        now_s += pause_s
        assert breaker.allows(now_s)


def test_requests_from_before_it_opened_do_not_lengthen_the_pause() -> None:
    breaker = Breaker(1, 1.0, 30.0)
    for _ in range(10):
        breaker.failure(0.0)
    assert breaker.allows(1.0)
    assert breaker.begin()
    breaker.failure(1.0)
    assert not breaker.allows(100.0), "the trial still runs"
    breaker.failure(1.0, trial=True)
    assert not breaker.allows(2.9) and breaker.allows(3.0)


def test_the_first_content_of_a_trial_ends_the_pause() -> None:
    breaker = Breaker(2, 1.0, 8.0)
    breaker.failure(0.0)
    breaker.failure(0.0)
    assert breaker.begin()
    breaker.works()
    assert breaker.allows(0.0) and not breaker.opened
    breaker.failure(0.0, trial=True)
    assert breaker.opened, "an instance that begins answers and breaks them off is not healthy"


def test_a_trial_that_tells_nothing_leaves_room_for_another() -> None:
    breaker = Breaker(1, 1.0, 8.0)
    breaker.failure(0.0)
    breaker.begin()
    breaker.neutral()
    assert breaker.allows(1.0)
