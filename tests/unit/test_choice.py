"""Which size a request is taken for: the likely one, or a longer one where an overrun would cost more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.request import Prediction
from core.service import Edges
from pools.choice import USUAL, Price, choose_size, price_of
from profiles.engine_model import load_engine_model

EDGES = Edges()
MODEL = load_engine_model("llama-3.1-70b")
CHEAP = Price(0.2, 1.0)


def told(s: float, m: float, q50: int = 100, q90: int = 400) -> Prediction:
    return Prediction((s, m, 1 - s - m), q50, q90, max(q90, 900))


@given(st.floats(0, 1), st.floats(0, 1))
def test_equal_pools_take_the_likely_size(a: float, b: float) -> None:
    s, m = min(a, b), abs(a - b)
    usual = "S" if s >= USUAL else "M" if s + m >= USUAL else "L"
    assert choose_size(told(s, m), 500, EDGES, (CHEAP, CHEAP, CHEAP)) == usual
    assert choose_size(told(s, m), 500, EDGES, (CHEAP, None, CHEAP)) == usual
    assert choose_size(told(s, m), 500, EDGES, ()) == usual


@given(st.floats(0, 1), st.floats(0, 1), st.lists(st.floats(0.1, 3), min_size=3, max_size=3), st.integers(0, 8000))
def test_never_a_shorter_one_and_never_a_longer_one_for_its_cheapness(
    a: float, b: float, token_j: list[float], tokens: int
) -> None:
    s, m = min(a, b), abs(a - b)
    usual = choose_size(told(s, m), tokens, EDGES, ())
    assert choose_size(told(s, m), tokens, EDGES, [Price(0.2, j) for j in token_j]) == usual, "each has room for it"
    tight = [Price(0.2, j, room) for j, room in zip(token_j, (500, 1500, 8000), strict=True)]
    assert "SML".index(choose_size(told(s, m), tokens, EDGES, tight)) >= "SML".index(usual)


def test_an_answer_that_may_find_no_room_goes_where_there_is_some_if_that_is_not_too_dear() -> None:
    unsure, prompt = told(0.62, 0.03, 90, 2000), 3000
    tight = Price(0.2, 1.0, room_tokens=3050)
    assert choose_size(unsure, prompt, EDGES, (tight, tight, Price(0.2, 1.1, 8000))) == "L"
    assert choose_size(unsure, prompt, EDGES, (tight, tight, Price(0.6, 4.0, 8000))) == "S"
    assert choose_size(told(0.98, 0.01, 90, 95), prompt, EDGES, (tight, tight, Price(0.2, 1.1, 8000))) == "S"


def test_a_difference_below_what_models_can_tell_decides_nothing() -> None:
    tight = Price(0.2, 1.0, room_tokens=1060)
    assert choose_size(told(0.97, 0.0), 200, EDGES, (tight, tight, Price(0.2, 1.0, 4000))) == "S"


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_prices_are_those_of_a_half_full_instance(tp: int) -> None:
    price = price_of(MODEL, tp, MODEL.clocks_mhz[-1], 128, MODEL.kv_tokens(tp))
    assert 0 < price.prompt_j < price.token_j < 50
    assert price.room_tokens >= 2 * MODEL.context_tokens * 0.99
    assert price_of(MODEL, tp, MODEL.clocks_mhz[-1], 128, 0).room_tokens == 0
