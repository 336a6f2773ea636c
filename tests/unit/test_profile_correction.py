"""Learning from live traffic: the factor, its doubt, the clamp, the alarm, and the way through a file."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.correction import DEFAULT, Correction, Observation, restore
from profiles.profile import UNKNOWN
from profiles.profile_file import load_profile, save_profile
from tests.profile_samples import profile, row


def seen(latency: float | None = None, watts: float | None = None, clock_mhz: int = 1200) -> Observation:
    """An observation with live over profiled as given."""
    return Observation(
        tp=4,
        clock_mhz=clock_mhz,
        latency_s=None if latency is None else 0.02 * latency,
        profiled_latency_s=0.02,
        watts=None if watts is None else 1000 * watts,
        profiled_watts=1000.0,
    )


def after(ratios: list[float], state: Correction | None = None) -> Correction:
    state = state or Correction()
    for ratio in ratios:
        state = state.observe(seen(latency=ratio))
    return state


def noisy(factor: float, sd: float, n: int, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [factor * math.exp(rng.gauss(0, sd)) for _ in range(n)]


def test_nothing_seen_is_the_profile_with_a_margin() -> None:
    fresh = Correction()
    assert fresh.latency_factor(4, 1200) == fresh.watts_factor(4, 1200) == 1.0
    assert fresh.margin(4, 1200) == pytest.approx(math.exp(1.64 * 0.2 / 2))
    assert fresh.drifts() == ()
    assert fresh.residuals() == ()


def test_it_finds_the_factor_through_noise() -> None:
    state = after(noisy(1.3, 0.1, 300))
    assert state.latency_factor(4, 1200) == pytest.approx(1.3, rel=0.05)
    assert state.slack(4, 1200) == state.latency_factor(4, 1200) * state.margin(4, 1200)


def test_the_margin_falls_as_samples_come_and_never_below_one() -> None:
    margins = [after(noisy(1.0, 0.05, n)).margin(4, 1200) for n in (0, 5, 20, 100)]
    assert margins == sorted(margins, reverse=True)
    assert margins[-1] > 1
    assert margins[-1] < 1.03
    assert after(noisy(1.0, 0.3, 200)).margin(4, 1200) > after(noisy(1.0, 0.03, 200)).margin(4, 1200)


def test_each_tp_and_clock_learns_by_itself_and_latency_apart_from_watts() -> None:
    state = Correction()
    for _ in range(100):
        state = state.observe(seen(latency=1.2, watts=0.8)).observe(seen(watts=1.1, clock_mhz=1980))
    assert state.latency_factor(4, 1200) == pytest.approx(1.2, rel=0.02)
    assert state.watts_factor(4, 1200) == pytest.approx(0.8, rel=0.02)
    assert state.watts_factor(4, 1980) == pytest.approx(1.1, rel=0.02)
    assert state.latency_factor(4, 1980) == 1.0
    assert state.margin(4, 1980) == Correction().margin(4, 1980)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(min_value=1e-9, max_value=1e9), max_size=60))
def test_factors_stay_within_the_clamp(ratios: list[float]) -> None:
    state = after(ratios)
    assert 0.5 <= state.latency_factor(4, 1200) <= 2.0
    assert 1.0 < state.margin(4, 1200) < 3.0


@pytest.mark.parametrize("bad", [None, 0.0, -1.0, math.nan, UNKNOWN])
def test_what_tells_nothing_changes_nothing(bad: float | None) -> None:
    state = after([1.1])
    assert state.observe(Observation(4, 1200, latency_s=bad, profiled_latency_s=0.02)) is state
    assert state.observe(Observation(4, 1200, latency_s=0.02, profiled_latency_s=bad)) is state


def test_a_state_is_never_changed_in_place() -> None:
    state = after([1.1])
    kept = dict(state.estimates)
    state.observe(seen(latency=2.0))
    assert dict(state.estimates) == kept


def test_one_wild_window_moves_little() -> None:
    steady = after(noisy(1.0, 0.02, 100))
    shaken = steady.observe(seen(latency=1000.0))
    assert shaken.latency_factor(4, 1200) < 1.05
    assert shaken.drifts() == ()


@pytest.mark.parametrize(("factor", "soonest", "latest"), [(2.0, 4, 8), (1.2, 30, 55), (0.6, 4, 12)])
def test_the_alarm_comes_after_a_lasting_deviation(factor: float, soonest: int, latest: int) -> None:
    state, count = Correction(), 0
    while not state.drifts():
        state = state.observe(seen(latency=factor))
        count += 1
    assert soonest <= count <= latest
    drift = state.drifts()[0]
    assert (drift.tp, drift.clock_mhz, drift.quantity) == (4, 1200, "latency")
    assert "measure it again" in str(drift)
    assert ("above" in str(drift)) == (factor > 1)


def test_no_alarm_for_noise_or_for_a_small_deviation() -> None:
    assert after(noisy(1.0, 0.15, 3000)).drifts() == ()
    assert after(noisy(1.05, 0.05, 3000)).drifts() == ()


def test_an_alarm_ends_when_profile_and_traffic_agree_again() -> None:
    state = after([1.5] * 20)
    assert state.drifts()
    assert not after([1.0] * 60, state).drifts()


def test_it_goes_through_a_file(tmp_path: Path) -> None:
    state = after(noisy(1.2, 0.1, 30)).observe(seen(watts=0.9, clock_mhz=1980))
    path = tmp_path / "a.profile.csv"
    save_profile(replace(profile([row()]), residuals=state.residuals()), path)
    again = restore(load_profile(path).residuals)
    for clock in (1200, 1980):
        assert again.latency_factor(4, clock) == pytest.approx(state.latency_factor(4, clock))
        assert again.watts_factor(4, clock) == pytest.approx(state.watts_factor(4, clock))
        assert again.margin(4, clock) == pytest.approx(state.margin(4, clock))
    more = seen(latency=1.4)
    assert again.observe(more).latency_factor(4, 1200) == pytest.approx(state.observe(more).latency_factor(4, 1200))
    assert restore(()).rule == DEFAULT
