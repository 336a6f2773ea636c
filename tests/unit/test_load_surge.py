"""Surges: the busiest ten seconds of a minute, and how far above the mean before them they went."""

import pytest

from predictor.load_surge import excess
from predictor.load_windows import NOTHING, SERIES, Windows, as_array


def told(windows: Windows, end_s: float, prompt_tokens: float) -> Windows:
    counts = [[0.0, 0.0, 0.0]] * 9
    counts[0] = [1.0, prompt_tokens, 1.0]
    return windows.add(end_s, as_array(counts))


def minute(windows: Windows, tens: list[float]) -> Windows:
    """One minute, second by second, with so many prompt tokens in each of its ten seconds."""
    start_s = windows.at_s or 0.0
    for place, tokens in enumerate(tens):
        for second in range(10):
            windows = told(windows, start_s + 10 * place + second + 1, tokens / 10)
    return windows.close()


def test_an_even_minute_has_its_mean_and_a_burst_its_own_ten_seconds() -> None:
    windows = minute(minute(Windows(at_s=0.0), [600.0] * 6), [0, 0, 6000, 0, 0, 0])
    assert windows.surges == pytest.approx((60.0, 600.0))
    assert (windows.surge, windows.ten_tokens, windows.ten_s) == (0.0, 0.0, 0.0)
    assert sum(windows.minutes[-1][1::3]) == pytest.approx(100.0)


def test_an_observation_of_a_whole_minute_knows_no_surge() -> None:
    windows = told(Windows(at_s=0.0), 60.0, 6000.0).close()
    assert windows.surges == pytest.approx((100.0,))


def test_a_minute_of_which_too_little_was_seen_leaves_nothing() -> None:
    windows = told(Windows(at_s=40.0), 60.0, 6000.0).close()
    assert (windows.minutes, windows.surges, windows.surge) == ((), (), 0.0)
    assert windows.open_counts == NOTHING and len(windows.open_counts) == SERIES


def test_excess_is_above_the_mean_that_was_known_then() -> None:
    even = [100.0] * 10
    assert excess(even, even) == 0.0
    burst = [*even[:6], 900.0, *even[7:]]
    assert excess(even, burst) == pytest.approx(800.0)
    level = [100.0] * 5 + [200.0] * 5  # a step is an excess when it comes, over the mean of before
    assert excess(level, level) == pytest.approx(100.0)
    falling = [200.0, 200.0, 200.0, 200.0, 50.0, 50.0]
    assert excess(falling, falling) == 0.0


def test_the_first_minutes_say_little() -> None:
    assert excess([], []) == 0.0
    assert excess([10.0], [50.0]) == 0.0  # no mean was known when it began
    assert excess([10.0, 10.0], [50.0, 60.0]) == pytest.approx(50.0)
    ramp = [10.0, 50.0, 50.0, 50.0, 50.0]
    assert excess(ramp, ramp) < 20.0


def test_a_checkpoint_without_surges_is_still_read() -> None:
    before = Windows(at_s=60.0, minutes=((1.0,) * SERIES,), fresh=1)
    assert before.excess() == 0.0
    assert len(minute(before, [600.0] * 6).surges) == 1


def test_a_load_that_went_at_once_may_come_back_at_once() -> None:
    fell = [200.0] * 5 + [50.0] * 2
    assert excess(fell, fell) == 0.0, "two minutes of less are no new level"
    gone = [*fell, 50.0]
    assert excess(gone, gone) == pytest.approx(150.0)
    slowly = [200.0 - 5 * minute for minute in range(20)]
    assert excess(slowly, slowly) == pytest.approx(15.0), (
        "what ebbs is held room for as far as it ebbs in a few minutes"
    )
