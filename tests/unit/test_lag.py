"""The lateness of the event loop, told from a clock that the test moves."""

import asyncio

import pytest

from gateway.lag import SUSTAINED, LoopLag


class LateClock:
    """Each sleep ends late by the next number."""

    def __init__(self, *late_s: float) -> None:
        self._now_s = 0.0
        self._late_s = list(late_s)

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("absolute times only: lateness must not add up unseen")

    async def sleep_until(self, due_s: float, wake: asyncio.Event | None = None) -> None:
        if not self._late_s:
            raise asyncio.CancelledError
        self._now_s = due_s + self._late_s.pop(0)


def measured(*late_s: float) -> LoopLag:
    lag = LoopLag(LateClock(*late_s))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(lag.run())
    return lag


def test_one_long_step_is_no_overload() -> None:
    lag = measured(0.0, 3.0, 0.01)
    assert lag.sustained_s == 0.0
    assert lag.last_s == pytest.approx(0.01)
    assert lag.histogram.count == 3


def test_a_loop_that_stays_late_is() -> None:
    lag = measured(*[2.0 + i for i in range(SUSTAINED)])
    assert lag.sustained_s == pytest.approx(2.0)
    lag.note(0.0)
    assert lag.sustained_s == 0.0
