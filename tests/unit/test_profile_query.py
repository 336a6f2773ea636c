"""Queries of a profile: monotone, exact at clean rows, never outside of what was held, and always with a reason."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.service import Slo
from profiles.profile import UNKNOWN, Point
from profiles.query import Limits, NotFeasible, Operating, ProfileIndex, build_index, limits_of, stale
from profiles.recommend import recommend
from profiles.smoothing import smooth
from tests.profile_samples import cliff_of, profile, row, sample

CLASSES = [a + b for a in "SML" for b in "SML"]
CLOCKS = (800, 1000, 1200, 1400, 1600, 1800, 1980)


def answer(index: ProfileIndex, *cell: object) -> Operating:
    found = index.at(*cell)  # type: ignore[arg-type]
    assert isinstance(found, Operating), found
    return found


def refusal(found: object) -> str:
    assert isinstance(found, NotFeasible), found
    return found.reason


def held(index: ProfileIndex) -> list[Point]:
    return [p for p in index.profile.points if not p.saturated]


def test_clean_rows_are_answered_as_they_were_measured() -> None:
    index = build_index(sample())
    for point in held(index):
        at = answer(index, *point.cell, point.offered_rps)
        for name in ("watts", "ttft_p50_s", "ttft_p99_s", "tbt_p50_s", "tbt_p99_s", "running", "output_tps"):
            assert getattr(at, name) == pytest.approx(getattr(point, name), rel=1e-9), (point.cell, name)
        assert at.j_per_output_token == pytest.approx(point.j_per_output_token)
        assert at.j_per_request == pytest.approx(point.watts / point.offered_rps)
        assert (at.origin, at.missing) == ("measured", ())


def test_between_loads_and_between_clocks_it_is_linear() -> None:
    low, high = row(offered_rps=1.0, watts=1000.0), row(offered_rps=2.0, watts=1400.0)
    fast = [replace(p, clock_mhz=1600, watts=p.watts + 200) for p in (low, high)]
    index = build_index(profile([low, high, *fast]))
    assert answer(index, "LL", 4, 1200, 1.25).watts == pytest.approx(1100)
    assert answer(index, "LL", 4, 1600, 1.25).watts == pytest.approx(1300)
    between = answer(index, "LL", 4, 1300, 1.25)
    assert between.watts == pytest.approx(1150)
    assert between.origin == "derived"


@pytest.mark.parametrize("idle_w", [None, 110.0])
def test_nothing_outside_of_what_was_held(idle_w: float | None) -> None:
    rows = [row(offered_rps=0.5), row(offered_rps=2.5), row(offered_rps=3.0, saturated=True), row(offered_rps=4.0)]
    index = build_index(profile(rows), idle_w)
    told = refusal(index.at("LL", 4, 1200, 2.7))
    assert told == "LL TP4 at 1200 MHz: 2.7 rps is beyond the largest measured load 2.5 rps; saturated at 3"
    assert index.capacity("LL", 4, 1200, Limits()) == 2.5  # the lucky row above the cliff counts for nothing
    assert "is not in the profile, which has LL TP4" in refusal(index.at("LL", 8, 1200, 1.0))
    assert "outside of the profiled clocks, 1200 to 1200 MHz" in refusal(index.at("LL", 4, 1980, 1.0))
    assert "is no load" in refusal(index.at("LL", 4, 1200, math.nan))
    assert "is no load" in refusal(index.at("LL", 4, 1200, -1.0))
    if idle_w is None:
        assert "below the lowest measured load 0.5 rps, and idle watts are not known" in refusal(
            index.at("LL", 4, 1200, 0.1)
        )
    else:
        assert answer(index, "LL", 4, 1200, 0.1).origin == "derived"


def test_a_step_in_a_tail_counts_from_the_lower_load_on() -> None:
    """TBT p99 goes from 30 to 150 ms somewhere between two loads: no load between them is sold as 90 ms."""
    rows = [row(offered_rps=1.0), row(offered_rps=2.0, tbt_p99_s=0.15), row(offered_rps=3.0, tbt_p99_s=0.16)]
    fast = [row(clock_mhz=1600, offered_rps=rps, tbt_p99_s=0.028) for rps in (1.0, 1.4, 3.0)]
    index = build_index(profile([*rows, *fast]))
    assert answer(index, "LL", 4, 1200, 1.0).tbt_p99_s == 0.03
    assert answer(index, "LL", 4, 1200, 1.01).tbt_p99_s == pytest.approx(0.15)
    assert answer(index, "LL", 4, 1200, 2.5).tbt_p99_s == pytest.approx(0.155)
    assert index.capacity("LL", 4, 1200, Limits(tbt_s=0.1)) == pytest.approx(1.0, rel=1e-5)
    assert index.capacity("LL", 4, 1600, Limits(tbt_s=0.1)) == 3.0


def test_no_interpolation_over_a_clock_that_holds_nothing() -> None:
    index = build_index(profile([row(clock_mhz=800, offered_rps=0.3, saturated=True), row(), row(offered_rps=2.0)]))
    assert "held no load that was tried, from 0.3 rps" in refusal(index.at("LL", 4, 800, 0.1))
    assert "outside of the profiled clocks, 1200 to 1200" in refusal(index.at("LL", 4, 1000, 1.0))
    apart = [row(offered_rps=1.0), row(clock_mhz=1600, offered_rps=2.0)]
    assert "no load in common" in refusal(build_index(profile(apart)).at("LL", 4, 1400, 1.5))
    all_lost = build_index(profile([row(saturated=True)]))
    assert "held no load" in refusal(all_lost.at("LL", 4, 1300, 1.0))


def test_an_idle_anchor_prices_low_loads() -> None:
    rows = [row(offered_rps=1.0, watts=1000.0), row(offered_rps=2.0, watts=1200.0)]
    idle = row(offered_rps=0.0, watts=460.0, output_tps=0.0, j_per_output_token=UNKNOWN)
    for index in (build_index(profile(rows), idle_w=115.0), build_index(profile([idle, *rows]))):
        low = answer(index, "LL", 4, 1200, 0.5)
        assert low.watts == pytest.approx((460 + 1000) / 2)
        assert low.ttft_p99_s == rows[0].ttft_p99_s  # an upper bound: latency does not rise when load falls
        assert low.running == pytest.approx(rows[0].running / 2)
        assert answer(index, "LL", 4, 1200, 0.0).watts == 460.0
        assert answer(index, "LL", 4, 1200, 0.0).j_per_output_token == UNKNOWN


def test_capacity_is_the_largest_load_within_the_limits() -> None:
    index = build_index(sample(CLASSES, clocks=CLOCKS))
    slo, tight = Slo(), 0
    for load, tp, clock in index.cells:
        limits = limits_of(load, slo)
        capacity = index.capacity(load, tp, clock, slo)
        curve = index.sheets[load, tp].curves[clock]
        if isinstance(capacity, NotFeasible):
            assert "at the lowest load" in capacity.reason
            assert not answer(index, load, tp, clock, curve.loads[0]).within(limits)
            continue
        assert answer(index, load, tp, clock, capacity).within(limits)
        if capacity < curve.loads[-1]:
            tight += 1
            assert not answer(index, load, tp, clock, capacity * (1 + 1e-6)).within(limits)
        assert index.capacity(load, tp, clock, slo, slack=1.2) != capacity or capacity == curve.loads[-1]
    assert tight > 20


def test_limits_come_from_the_input_size() -> None:
    slo = Slo()
    assert [limits_of(name, slo).ttft_s for name in ("SL", "ML", "LS", "chat")] == [0.25, 0.4, 2.0, 0.25]
    assert limits_of("SS", {"SS": Limits(1.0, 2.0)}) == Limits(1.0, 2.0)


def test_what_is_not_known_is_infinite_and_named() -> None:
    index = build_index(profile([row(ttft_p99_s=UNKNOWN, watts=UNKNOWN), row(offered_rps=2.0, watts=UNKNOWN)]))
    at = answer(index, "LL", 4, 1200, 1.5)
    assert set(at.missing) == {"ttft_p99_s", "watts"}
    assert at.watts == at.ttft_p99_s == at.j_per_output_token == UNKNOWN
    assert at.tbt_p99_s < UNKNOWN
    assert "TTFT p99 is not in the profile" in refusal(index.capacity("LL", 4, 1200, Slo()))
    assert index.capacity("LL", 4, 1200, Limits(tbt_s=0.1)) == 2.0


QUANTITIES = ("ttft_p50_s", "ttft_p99_s", "tbt_p50_s", "tbt_p99_s", "watts")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), noise=st.floats(0.0, 0.3))
def test_noise_is_smoothed_into_what_physics_allows(seed: int, noise: float) -> None:
    """Latency and watts never fall with load; with the clock latency never rises and watts never fall; p50 <= p99."""
    rng = np.random.default_rng(seed)

    def shaken(point: Point) -> Point:
        factors = rng.lognormal(0, noise, size=3)
        ttft, tbt, watts = (float(f) for f in factors)
        return replace(
            point,
            ttft_p50_s=point.ttft_p50_s * ttft,
            ttft_p99_s=point.ttft_p99_s * ttft,
            tbt_p50_s=point.tbt_p50_s * tbt,
            tbt_p99_s=point.tbt_p99_s * tbt,
            watts=point.watts * watts,
            requests=int(rng.integers(0, 200)),
            offered_rps=point.offered_rps * float(rng.uniform(0.9, 1.0)),
        )

    clean = sample(loads=("SS",), tps=(4,))
    index = build_index(replace(clean, points=tuple(shaken(p) for p in clean.points)))
    curves = index.sheets["SS", 4].curves
    for curve in curves.values():
        for name in QUANTITIES:
            assert all(np.diff(curve.values[name]) >= 0), name
        for low, high in (("ttft_p50_s", "ttft_p99_s"), ("tbt_p50_s", "tbt_p99_s")):
            assert all(np.array(curve.values[low]) <= np.array(curve.values[high]) * (1 + 1e-9))
    clocks = sorted(curves)
    for slow, fast in zip(clocks, clocks[1:], strict=False):
        for rps in np.linspace(0.01, 12, 60):
            a, b = index.at("SS", 4, slow, float(rps)), index.at("SS", 4, fast, float(rps))
            if isinstance(a, Operating) and isinstance(b, Operating):
                assert a.watts <= b.watts * (1 + 1e-9)
                for name in QUANTITIES[:4]:
                    assert getattr(a, name) >= getattr(b, name) * (1 - 1e-9), (name, rps)
                middle = answer(index, "SS", 4, (slow + fast) / 2, float(rps))
                assert a.watts * (1 - 1e-9) <= middle.watts <= b.watts * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.lists(st.floats(0, 10), min_size=4, max_size=4), min_size=1, max_size=5), rises=st.booleans())
def test_smoothing_gives_a_monotone_surface_near_the_values(rows: list[list[float]], rises: bool) -> None:
    values = np.array(rows)
    values[0, 0] = np.nan
    smoothed = smooth(values, np.ones_like(values), rises)
    assert np.isnan(smoothed[0, 0])
    filled = smoothed.copy()
    assert np.all(np.diff(filled[0, 1:]) >= 0)
    assert np.all(np.diff(filled[1:], axis=1) >= 0)
    down = np.diff(filled[:, 1:], axis=0)
    assert np.all(down >= 0) if rises else np.all(down <= 0)
    assert np.nanmin(smoothed) >= np.nanmin(values) - 1e-6
    assert np.nanmax(smoothed) <= np.nanmax(values) + 1e-6


def test_monotone_values_are_left_as_they_are() -> None:
    values = np.array([[3.0, 4.0, np.nan], [2.0, 3.5, 9.0]])
    assert np.array_equal(smooth(values, np.ones_like(values), False), values, equal_nan=True)


def test_a_mix_fits_while_its_shares_add_up_to_one() -> None:
    index, slo = build_index(sample(), idle_w=110.0), Slo()
    short, long = (index.capacity(load, 8, 1980, slo) for load in ("SS", "LL"))
    assert isinstance(short, float)
    assert isinstance(long, float)
    assert index.utilisation({"SS": short / 2, "LL": long / 4}, 8, 1980, slo) == pytest.approx(0.75)
    shares = {"SS": 3.0, "LL": 1.0}
    most = index.mix_capacity(shares, 8, 1980, slo)
    assert most == pytest.approx(1 / (0.75 / short + 0.25 / long))
    full = index.mix_at({"SS": 0.75 * most, "LL": 0.25 * most}, 8, 1980, slo)
    assert isinstance(full, Operating)
    alone = [answer(index, "SS", 8, 1980, short), answer(index, "LL", 8, 1980, long)]
    assert min(a.watts for a in alone) <= full.watts <= max(a.watts for a in alone)
    assert full.ttft_p99_s == pytest.approx(max(a.ttft_p99_s for a in alone))
    assert full.output_tps == pytest.approx(0.75 * most * 80 + 0.25 * most * 600)
    assert full.origin == "derived"
    assert "takes 1.50 of what TP8" in refusal(index.mix_at({"SS": short, "LL": long / 2}, 8, 1980, slo))
    assert "not in the profile" in refusal(index.utilisation({"XX": 1.0}, 8, 1980, slo))
    assert "no load" in refusal(index.mix_capacity({}, 8, 1980, slo))
    assert index.mix_at({"SS": short / 2, "LL": 0.0}, 8, 1980, slo) == index.at("SS", 8, 1980, short / 2)


def test_a_load_that_rounding_puts_over_the_end_is_the_end() -> None:
    index = build_index(profile([row(offered_rps=0.1), row(offered_rps=0.3)]))
    assert answer(index, "LL", 4, 1200, 0.1 + 0.2).watts == 1200.0
    assert isinstance(index.at("LL", 4, 1200, 0.3001), NotFeasible)


def test_origin_is_the_weakest_of_the_rows_behind_an_answer() -> None:
    rows = [row(offered_rps=1.0), row(offered_rps=2.0, origin="emulated"), row(offered_rps=3.0, origin="derived")]
    index = build_index(profile(rows))
    assert [answer(index, "LL", 4, 1200, rps).origin for rps in (1.0, 1.5, 2.0, 2.5)] == [
        "measured",
        "emulated",
        "emulated",
        "derived",
    ]


def test_stale_says_why() -> None:
    made, today = sample(), date(2026, 11, 21)
    assert stale(made, "h100-sxm-80g", "1.2.3", "555.1", today) == ()
    assert stale(made, "", "", "", today) == ()
    reasons = stale(made, "H200", "1.3.0", "560.0", date(2027, 6, 1))
    assert reasons[0] == "made on GPU H100-SXM-80G, running on H200"
    assert reasons[1] == "made on emulated-vllm 1.2.3, running on 1.3.0"
    assert [word in reason for word, reason in zip(("driver", "212 days ago"), reasons[2:], strict=True)] == [
        True,
        True,
    ]
    assert "in the future" in stale(made, "", "", "", date(2026, 1, 1))[0]


def test_a_controller_can_price_every_cell_within_a_tick() -> None:
    index, slo = build_index(sample(CLASSES, clocks=CLOCKS)), Slo()
    assert len(index.cells) == 9 * 3 * 7
    best_s = math.inf
    for _ in range(3):  # the best of three: what it costs, not what else the machine was doing
        started = time.perf_counter()
        for load, tp, clock in index.cells:
            capacity = index.capacity(load, tp, clock, slo)
            if not isinstance(capacity, NotFeasible):
                for level in (0.25, 0.5, 0.75, 1.0):
                    index.at(load, tp, clock, level * capacity)
        best_s = min(best_s, time.perf_counter() - started)
    assert best_s < 0.1


def test_loads_are_listed_in_the_order_of_their_sizes() -> None:
    index = build_index(profile([row(load=name) for name in ("chat", "LL", "SS", "ML")]))
    assert index.loads == ("SS", "ML", "LL", "chat")
    assert index.clocks_mhz("LL", 4) == (1200,)
    assert index.clocks_mhz("XX", 4) == ()
    assert cliff_of("SS", 4, 1980) > cliff_of("SS", 4, 800)


NUMBER = st.one_of(st.sampled_from([0.0, 0.01, 1.0, 1e-12, 1e12, UNKNOWN]), st.floats(0, 100))
ANY_ROW = st.builds(
    lambda rps, tp, clock, tokens, lost, p50, p99, watts: row(
        offered_rps=rps,
        tp=tp,
        clock_mhz=clock,
        output_tps=rps * tokens,
        saturated=lost and rps > 0,
        ttft_p50_s=min(p50, p99),
        ttft_p99_s=max(p50, p99),
        tbt_p50_s=min(p50, p99),
        tbt_p99_s=max(p50, p99),
        watts=watts,
        j_per_output_token=watts,
    ),
    st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1.0 + 1e-7, 2.0]), st.floats(1e-6, 1e6)),
    st.sampled_from([1, 4]),
    st.sampled_from([0, 800, 1200]),
    st.floats(0.1, 1000),
    st.booleans(),
    NUMBER,
    NUMBER,
    NUMBER,
)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(ANY_ROW, min_size=1, max_size=12, unique_by=lambda p: (*p.cell, p.offered_rps)),
    idle_w=st.sampled_from([None, 0.0, 115.0]),
    rps=st.floats(0, 10),
    clock=st.sampled_from([0, 400, 800, 1000.5, 1200]),
    limits=st.builds(Limits, NUMBER, NUMBER),
)
def test_any_table_has_an_answer_or_a_reason(
    rows: list[Point], idle_w: float | None, rps: float, clock: float, limits: Limits
) -> None:
    index = build_index(profile(rows), idle_w)
    found = index.at("LL", 4, clock, rps)
    if isinstance(found, Operating):
        told = (
            found.watts,
            found.ttft_p50_s,
            found.ttft_p99_s,
            found.tbt_p99_s,
            found.running,
            found.j_per_output_token,
        )
        assert all(value >= 0 for value in told)  # NaN fails too
        assert found.ttft_p50_s <= found.ttft_p99_s * (1 + 1e-9)
    else:
        assert found.reason
    capacity = index.capacity("LL", 4, clock, limits)
    if isinstance(capacity, float):
        assert answer(index, "LL", 4, clock, capacity).within(limits)
    mixed = index.mix_at({"LL": rps}, 4, clock, limits)
    assert mixed == found or rps == 0
    advice = recommend(index, {"LL": rps}, limits)
    assert isinstance(advice, NotFeasible) or advice.best.watts < UNKNOWN
