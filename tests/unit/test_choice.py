"""Which size a request is taken for: expected joules, and the likely size where they do not tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.request import Prediction
from core.service import Edges
from pools.choice import Price, choose_size, price_of
from profiles.engine_model import load_engine_model

EDGES = Edges()
MODEL = load_engine_model("llama-3.1-70b")
CHEAP, DEAR = Price(0.2, 1.0), Price(0.2, 1.6)


def told(s: float, m: float, q50: int = 100, q90: int = 400) -> Prediction:
    return Prediction((s, m, 1 - s - m), q50, q90, max(q90, 900))


@given(st.floats(0, 1), st.floats(0, 1))
def test_equal_pools_take_the_likely_size(a: float, b: float) -> None:
    s, m = min(a, b), abs(a - b)
    usual = "S" if s >= 0.5 else "M" if s + m >= 0.5 else "L"
    assert choose_size(told(s, m), 500, EDGES, (CHEAP, CHEAP, CHEAP)) == usual
    assert choose_size(told(s, m), 500, EDGES, (CHEAP, None, CHEAP)) == usual
    assert choose_size(told(s, m), 500, EDGES, ()) == usual


def test_a_pool_that_is_dear_for_all_is_left_to_those_who_need_it() -> None:
    no_room = Price(0.2, 1.0, room_tokens=700)
    prices = (no_room, no_room, DEAR)
    assert choose_size(told(0.3, 0.15), 400, EDGES, prices) != "L", (
        "an L answer is likelier, but mostly short ones come"
    )
    assert choose_size(told(0.0, 0.1, 800, 1500), 4000, EDGES, prices) == "L", "its KV finds no room elsewhere"


def test_the_surer_a_long_answer_the_sooner_it_goes_where_long_ones_belong() -> None:
    prices = (Price(0.2, 1.0, 600), Price(0.2, 1.2, 1200), Price(0.2, 1.4, 4000))
    chosen = [choose_size(told(1 - p, 0.0, 100, 3000), 300, EDGES, prices) for p in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    order = ["SML".index(size) for size in chosen]
    assert order == sorted(order) and order[0] == 0 and order[-1] == 2


def test_a_difference_below_what_models_can_tell_decides_nothing() -> None:
    assert choose_size(told(0.0, 0.2), 100, EDGES, (Price(0.2, 1.0), Price(0.2, 1.0), Price(0.2, 1.02))) == "L"
    assert choose_size(told(0.0, 0.2), 100, EDGES, (Price(0.2, 1.0), Price(0.2, 1.0), Price(0.2, 1.5))) == "S"


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_prices_are_those_of_a_half_full_instance(tp: int) -> None:
    price = price_of(MODEL, tp, MODEL.clocks_mhz[-1], 128, MODEL.kv_tokens(tp))
    assert 0 < price.prompt_j < price.token_j < 50
    assert price.room_tokens >= 2 * MODEL.context_tokens * 0.99
    assert price_of(MODEL, tp, MODEL.clocks_mhz[-1], 128, 0).room_tokens == 0
