"""Load forecasts: they cover the peaks they promise to, follow jumps and the calendar, and stay small, finite and plain."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.load import HORIZONS_S, Forecast, Load, load_from_dict
from predictor.load_headroom import COVERAGES, HIGHEST, LOWEST, STEP
from predictor.load_template import DAY_S, SLOT_S, Template, place
from predictor.load_windows import CLASS_COUNT, MINUTES_KEPT, QUANTITIES, SERIES

MONDAY_S = 1_715_558_400.0  # 2024-05-13 00:00 UTC
TICK_S = 5.0
SILENCE = np.zeros((CLASS_COUNT, QUANTITIES))
SHARES = np.array([0.05, 0.03, 0.02, 0.15, 0.1, 0.19, 0.2, 0.0, 0.26])
TOKENS = np.array([1.0, 1000.0, 200.0])


@dataclass
class Traffic:
    """Poisson arrivals at a total rate that follows a function of time, split over the classes by SHARES."""

    seed: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def tick(self, rate_rps: float, took_s: float = TICK_S) -> np.ndarray:
        return self.rng.poisson(rate_rps * took_s * SHARES)[:, None] * TOKENS

    def run(self, load: Load, start_s: float, rate, ticks: int, tick_s: float = TICK_S) -> tuple[Load, float]:
        for tick in range(ticks):
            at_s = start_s + (tick + 1) * tick_s
            load = load.observed(at_s, self.tick(rate(at_s), tick_s))
        return load, start_s + ticks * tick_s


def begun(at_s: float = MONDAY_S) -> Load:
    return Load().observed(at_s, SILENCE)


def diurnal(at_s: float) -> float:
    return 10 + 6 * math.sin(2 * math.pi * at_s / DAY_S)


def numbers(forecast: Forecast) -> list[float]:
    rates = (*forecast.mean, *forecast.upper, forecast.total_mean, forecast.total_upper)
    return [value for one in rates for value in (one.requests_rps, one.input_tokens_per_s, one.output_tokens_per_s)]


def test_peaks_of_a_poisson_day_are_covered_as_often_as_promised() -> None:
    """Two days of one minute a tick. The bound of adaptive conformal inference: (range + step) / (step x T)."""
    traffic, tick_s, ticks = Traffic(), 60.0, 2 * 1440
    load, counts, foretold = begun(), [], []
    for tick in range(ticks):
        at_s = MONDAY_S + (tick + 1) * tick_s
        counts.append(traffic.tick(diurnal(at_s), tick_s))
        load = load.observed(at_s, counts[-1])
        foretold.append([load.forecast(at_s, 300.0, coverage) for coverage in COVERAGES])
    totals = np.array(counts).sum(axis=1) / tick_s
    judged = range(1440, ticks - 5)  # the second day
    slack = (HIGHEST - LOWEST + STEP) / (STEP * len(judged))
    for place_, coverage in enumerate(COVERAGES):
        uppers = [foretold[n][place_].total_upper for n in judged]
        held = [totals[n + 1 : n + 6, 0].max() <= upper.requests_rps for n, upper in zip(judged, uppers, strict=True)]
        assert abs(np.mean(held) - coverage) <= slack
    assert np.mean([f[0].total_upper.requests_rps / f[0].total_mean.requests_rps for f in foretold[1440:]]) < 1.3


def test_without_history_it_is_persistence_with_wide_room() -> None:
    load, at_s = Traffic().run(begun(), MONDAY_S, lambda _: 10.0, 60)
    for horizon_s in HORIZONS_S:
        forecast = load.forecast(at_s, horizon_s)
        assert forecast.total_mean.requests_rps == pytest.approx(10, rel=0.25)
    later, latest = load.forecast(at_s, 300.0), load.forecast(at_s, 1800.0)
    assert later.total_upper.requests_rps > 1.3 * later.total_mean.requests_rps
    assert latest.total_upper.requests_rps > 1.6 * latest.total_mean.requests_rps


def test_a_jump_is_followed_within_three_minutes() -> None:
    traffic = Traffic()
    load, at_s = traffic.run(begun(), MONDAY_S, lambda _: 10.0, 720)
    assert load.jumps == 0
    load, at_s = traffic.run(load, at_s, lambda _: 30.0, 36)
    assert load.jumps == 1
    assert load.forecast(at_s, 300.0).total_mean.requests_rps == pytest.approx(30, rel=0.15)
    assert load.forecast(at_s, 1800.0).total_mean.requests_rps == pytest.approx(30, rel=0.15)
    load, at_s = traffic.run(load, at_s, lambda _: 5.0, 36)
    assert load.jumps == 2
    assert load.forecast(at_s, 300.0).total_mean.requests_rps == pytest.approx(5, rel=0.25)


def test_one_minute_of_burst_is_no_jump_and_is_soon_forgotten() -> None:
    traffic = Traffic()
    load, at_s = traffic.run(begun(), MONDAY_S, lambda _: 10.0, 720)
    load, at_s = traffic.run(load, at_s, lambda _: 40.0, 12)
    assert load.jumps == 0
    load, at_s = traffic.run(load, at_s, lambda _: 10.0, 36)
    assert load.forecast(at_s, 300.0).total_mean.requests_rps == pytest.approx(10, rel=0.15)


def test_the_usual_day_foretells_a_rise_that_recent_minutes_do_not_show() -> None:
    """Load doubles at 8:00 every working day; at 7:58 of the third the half hour to come is nearly all after it."""

    def rate(at_s: float) -> float:
        return 20.0 if at_s % DAY_S > 8 * 3600 else 10.0

    load, at_s = Traffic().run(begun(), MONDAY_S, rate, 2 * 1440 + 478, 60.0)
    assert load.forecast(at_s, 300.0).total_mean.requests_rps == pytest.approx(10, rel=0.1)
    assert load.forecast(at_s, 1800.0).total_mean.requests_rps > 14


def test_weekends_are_learnt_apart_and_borrow_a_shape_until_then() -> None:
    saturday_s, weekday = MONDAY_S + 5 * DAY_S, np.full(SERIES, 4.0)
    assert [place(MONDAY_S + day * DAY_S)[0] for day in range(7)] == [0, 0, 0, 0, 0, 1, 1]
    assert place(saturday_s - 1) == (0, 287)
    template = Template().learn(MONDAY_S, weekday)
    assert template.slot(saturday_s) == tuple(weekday)
    template = template.learn(saturday_s, weekday / 4)
    assert template.slot(saturday_s + DAY_S) == tuple(weekday / 4)
    assert template.slot(MONDAY_S + DAY_S) == tuple(weekday)
    assert template.mean(MONDAY_S, 2 * SLOT_S) is None  # the second slot was never seen


def test_the_offset_from_utc_says_where_the_weekend_begins() -> None:
    friday_evening_s = MONDAY_S + 5 * DAY_S - 600
    east = Load(utc_offset_s=3600.0).observed(friday_evening_s, SILENCE)
    load, _ = Traffic().run(east, friday_evening_s, lambda _: 5.0, 121)
    assert any(load.template.days[1]) and not any(load.template.days[0])


def test_no_load_is_forecast_as_none_without_nan_and_room_does_not_run_away() -> None:
    never = Load().forecast(MONDAY_S, 1800.0)
    assert set(numbers(never)) == {0.0} and never.age_s == math.inf
    load = begun()
    for tick in range(300):
        load = load.observed(MONDAY_S + (tick + 1) * 60.0, SILENCE)
    rare = SILENCE.copy()
    rare[4] = (1, 500, 100)
    end_s = MONDAY_S + 300 * 60.0
    load = load.observed(end_s + 5, rare)
    for horizon_s in HORIZONS_S:
        assert all(math.isfinite(value) and value >= 0 for value in numbers(load.forecast(end_s + 5, horizon_s)))
    assert all(math.isfinite(value) for room in load.rooms for value in room.offsets)


def test_the_state_goes_through_json_and_goes_on_the_same() -> None:
    load, at_s = Traffic().run(begun(), MONDAY_S, diurnal, 800)
    back = load_from_dict(json.loads(json.dumps(load.to_dict())))
    assert back == load
    ticks = [Traffic(1).tick(10.0) for _ in range(30)]
    for tick in ticks:
        at_s += TICK_S
        load, back = load.observed(at_s, tick), back.observed(at_s, tick)
    assert back == load
    assert back.forecast(at_s, 1800.0) == load.forecast(at_s, 1800.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [("schema", 0), ("windows", {"fast": [1.0]}), ("rooms", []), ("template", {"days": [[], []]}), ("bets", 3)],
)
def test_a_state_that_is_none_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match="load state"):
        load_from_dict({**Load().to_dict(), key: value})


def test_memory_is_bounded() -> None:
    """A Friday and a Saturday fill every part of the state: this is its largest."""
    friday_s = MONDAY_S + 4 * DAY_S
    load, _ = Traffic().run(begun(friday_s), friday_s, diurnal, 2 * 1440, 60.0)
    assert all(slot is not None for day in load.template.days for slot in day)
    assert len(load.template.days) == 2 and {len(day) for day in load.template.days} == {288}
    assert len(load.windows.minutes) == MINUTES_KEPT
    assert len(load.bets) == 300 / 60 + 1800 / 300
    assert len(json.dumps(load.to_dict())) < 500_000


def test_observations_are_cut_at_minutes_and_lose_nothing() -> None:
    """Ticks of 7 s and one of 100 s: what the minutes hold is what was counted."""
    load = begun()
    one = SILENCE.copy()
    one[0] = (7, 70, 7)
    for tick in range(1, 60):
        load = load.observed(MONDAY_S + 7 * tick, one)
    load = load.observed(MONDAY_S + 59 * 7 + 100, one * 100 / 7)
    counted = 59 * 7 + 100
    kept = sum(minute[0] * 60 for minute in load.windows.minutes) + load.windows.open_counts[0]
    assert kept == pytest.approx(counted)
    assert all(minute[0] == pytest.approx(1) for minute in load.windows.minutes)


def test_a_long_silence_and_a_clock_set_back_start_the_measuring_anew() -> None:
    load, at_s = Traffic().run(begun(), MONDAY_S, lambda _: 10.0, 800)
    for then_s in (at_s + 3600, at_s - 3600):
        anew = load.observed(then_s, np.full((9, 3), 1e9))
        assert anew.windows.minutes == () and anew.bets == () and anew.soon is None
        assert anew.rooms == load.rooms and anew.template == load.template
        assert anew.observed(then_s + 5, SILENCE + 5).forecast(then_s + 5, 5.0).total_mean.requests_rps == 9


def test_bounds_of_classes_can_be_shared_to_the_totals() -> None:
    load, at_s = Traffic().run(begun(), MONDAY_S, lambda _: 10.0, 800)
    forecast = load.forecast(at_s, 1800.0, 0.99)
    shared = forecast.shared()
    assert sum(one.requests_rps for one in shared) == pytest.approx(forecast.total_upper.requests_rps)
    assert sum(one.requests_rps for one in forecast.upper) > forecast.total_upper.requests_rps
    assert all(
        m.requests_rps <= s.requests_rps <= u.requests_rps + 1e-9
        for m, s, u in zip(forecast.mean, shared, forecast.upper, strict=True)
    )
    surer, sure = forecast.total_upper.requests_rps, load.forecast(at_s, 1800.0).total_upper.requests_rps
    assert surer >= sure


@pytest.mark.parametrize("counts", [[[1.0] * 3] * 8, [[-1.0] * 3] * 9, [[math.nan] * 3] * 9])
def test_bad_counts_are_refused(counts: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="counts must be 9 rows"):
        Load().observed(0.0, counts)


def test_unlearnt_horizons_are_refused() -> None:
    with pytest.raises(ValueError, match="not 60"):
        Load().forecast(0.0, 60.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 200.0), st.integers(0, 8), st.integers(0, 500)), max_size=60))
def test_whatever_is_observed_forecasts_are_finite_and_the_same_twice(seen: list[tuple[float, int, int]]) -> None:
    def play() -> Load:
        load, at_s = begun(), MONDAY_S
        for took_s, row, requests in seen:
            at_s += took_s
            counts = SILENCE.copy()
            counts[row] = requests * TOKENS
            load = load.observed(at_s, counts)
        return load

    load = play()
    assert load == play()
    for horizon_s in HORIZONS_S:
        forecast = load.forecast(MONDAY_S + 20_000, horizon_s)
        assert all(math.isfinite(value) and value >= 0 for value in numbers(forecast))
        assert all(u.requests_rps >= m.requests_rps for m, u in zip(forecast.mean, forecast.upper, strict=True))
