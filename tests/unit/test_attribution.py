"""Whose joules they are: shares add up to the counter whatever runs, and go to those who ran."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pools.attribution import Site, billed, shared_out, work_of
from pools.counters import Odometers
from pools.learning import Factors
from pools.stints import Bill, Stint
from profiles.engine_model import load_engine_model

MODEL = load_engine_model("llama-3.1-8b")
SITE = Site(MODEL, 1, 1980, 2048, MODEL.idle_w)
NEUTRAL = (1.0, 1.0, 1.0)


def stint(from_s: float, first_s: float = 0.0, end_s: float = 0.0, tokens: int = 500, sequences: int = 1) -> Stint:
    return Stint(Bill("r", "k", "s", "SS", open=1), "i", tokens, sequences, from_s, first_s, end_s)


@st.composite
def stints(draw: st.DrawFn) -> list[Stint]:
    made = []
    for _ in range(draw(st.integers(0, 8))):
        begin_s = draw(st.floats(0, 12))
        first_s = draw(st.one_of(st.just(0.0), st.floats(0.001, 6).map(lambda more, at=begin_s: at + more)))
        begun_s = max(begin_s, first_s)
        end_s = draw(st.one_of(st.just(0.0), st.floats(0, 6).map(lambda more, at=begun_s: at + more)))
        made.append(stint(begin_s, first_s, end_s, draw(st.integers(0, 9000)), draw(st.integers(0, 4))))
    return made


@settings(max_examples=200, deadline=None)
@given(
    stints(),
    st.floats(1, 1e5),
    st.tuples(*[st.floats(0.5, 2)] * 3),
    st.sampled_from([SITE, Site(None, 1, 0, 2048, 1.0)]),
)
def test_bills_and_lines_add_up_to_the_counter(
    ran: list[Stint], joules: float, factors: tuple[float, float, float], site: Site
) -> None:
    work = work_of(site, ran, 4.0, 10.0)
    shares = shared_out(work, factors, joules)
    parts = [(one, prefill, decode) for one, prefill, decode in billed(work, shares)]
    assert sum(prefill + decode for _, prefill, decode in parts) == pytest.approx(shares.requests_j, rel=1e-9, abs=1e-9)
    assert shares.idle_j + shares.requests_j + shares.residual_j == pytest.approx(joules, rel=1e-9)
    assert all(prefill >= 0 and decode >= 0 for _, prefill, decode in parts)
    absent = [one for one in ran if one.from_s >= 10.0 or (one.end_s and one.end_s < 4.0 and one.first_s < 4.0)]
    assert not any(one is who and decode for one, _, decode in parts for who in absent)


def test_prefill_tokens_are_billed_once_however_the_windows_fall() -> None:
    one = stint(0.4, first_s=3.7, end_s=6.0, tokens=4000)
    for at in range(8):
        began = stint(0.4, first_s=3.7 if at >= 3 else 0.0, end_s=6.0 if at >= 6 else 0.0, tokens=4000)
        began.prefilled = one.prefilled
        work = work_of(SITE, [began], float(at), at + 1.0)
        one.prefilled += sum(done for _, done in work.tokens)
    assert one.prefilled == pytest.approx(4000)


def test_an_empty_window_is_idle_at_the_models_watts() -> None:
    shares = shared_out(work_of(SITE, [], 0.0, 10.0), NEUTRAL, None)
    assert shares.idle_j == pytest.approx(10 * MODEL.idle_w) and shares.requests_j == 0


def test_what_no_scale_explains_is_the_residual() -> None:
    work = work_of(SITE, [], 0.0, 1.0)
    shares = shared_out(work, NEUTRAL, 10 * MODEL.idle_w)
    assert shares.idle_j == pytest.approx(2 * MODEL.idle_w)
    assert shares.residual_j == pytest.approx(8 * MODEL.idle_w)


def test_longer_contexts_and_more_sequences_pay_more() -> None:
    short, long, twice = stint(0, 0.5, tokens=100), stint(0, 0.5, tokens=8000), stint(0, 0.5, tokens=100, sequences=2)
    ran = [short, long, twice]
    work = work_of(SITE, ran, 1.0, 2.0)
    paid = {id(one): decode for one, _, decode in billed(work, shared_out(work, NEUTRAL, 300.0)) if decode}
    assert paid[id(short)] < paid[id(long)] and paid[id(twice)] == pytest.approx(2 * paid[id(short)])


def test_a_counter_that_falls_has_restarted_and_counts_from_zero() -> None:
    odometers = Odometers()
    assert odometers.passed({"a": 100.0}, from_zero=False) == 0
    assert odometers.passed({"a": 150.0, "b": 7.0}, from_zero=False) == 50
    assert odometers.passed({"a": 20.0, "b": 9.0}, from_zero=False) == 22
    assert odometers.resets == 1
    assert odometers.passed({"engine": 30.0}, from_zero=True) == 30


def test_factors_find_a_meter_that_differs_and_ignore_one_that_measures_something_else() -> None:
    factors = Factors()
    for n in range(400):
        parts = (10.0 + n % 7, 5.0 * (n % 3), 50.0 * ((n * 7) % 5))
        factors.learn(parts, 1.1 * parts[0] + 0.9 * parts[1] + 1.08 * parts[2])
    assert factors.now() == pytest.approx((1.1, 0.9, 1.08), rel=0.01)
    before = factors.now()
    factors.learn((10.0, 0.0, 0.0), 1000.0)
    assert factors.now() == before
