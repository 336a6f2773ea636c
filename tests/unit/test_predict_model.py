"""The shipped model, its file, and distributions."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.service import Edges
from predictor.distribution import Distribution
from predictor.features import Asked
from predictor.model import LengthModel, prediction_of, shipped_model
from predictor.model_file import SHIPPED, ModelFileError, dump, load, read_model, write_model
from predictor.said import said_of

MODEL = shipped_model()


def test_a_long_task_is_foretold_longer_than_a_short_one() -> None:
    def median(prompt: bytes) -> float:
        return MODEL.distribution(MODEL.features(Asked(prompt))).quantile(0.5)

    assert median(b"Write a detailed essay about the history of Rome.") > 2 * median(b"Answer yes or no: is 7 prime?")


@given(st.binary(max_size=300), st.none() | st.integers(-5, 5000), st.integers(1, 500), st.integers(1, 500))
def test_a_prediction_is_a_distribution_within_the_limit(prompt: bytes, limit: int | None, s: int, m: int) -> None:
    told = prediction_of(MODEL.distribution(MODEL.features(Asked(prompt))), limit, Edges(output=(s, s + m)))
    assert sum(told.p) == pytest.approx(1) and min(told.p) >= 0
    assert 1 <= told.q50_tokens <= told.q90_tokens
    if limit is not None and limit > 0:
        assert told.q90_tokens <= limit


@given(st.floats(0.001, 0.999), st.floats(0.001, 0.999), st.integers(0, 5000))
def test_quantiles_rise_and_invert_shares(a: float, b: float, out: int) -> None:
    shape = Distribution((-1.0, 0.0, 1.0), (0.2, 0.5, 0.9), 7.0, 1.0)
    low, high = sorted((a, b))
    assert shape.quantile(low) <= shape.quantile(high)
    if shape.quantile(a) > 1.01:
        assert shape.below(shape.quantile(a)) == pytest.approx(a, abs=1e-3)
    assert shape.quantile_after(out, a) >= out
    assert 0 <= shape.share_after(out, 200) <= 1


def test_a_flat_stretch_has_quantiles_too() -> None:
    flat = Distribution((-1.0, 0.0, 1.0), (0.5, 0.5, 0.5), 7.0, 1.0)
    assert flat.quantile(0.5) <= flat.quantile(0.9)


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    write_model(tmp_path / "m.json", MODEL.body)
    assert read_model(tmp_path / "m.json") == MODEL.body
    assert not list(tmp_path.glob("*.part"))


def test_a_damaged_or_foreign_file_is_refused() -> None:
    good = SHIPPED.read_bytes()
    outer = json.loads(good)
    for bad, why in (
        (good.replace(b'"level":', b'"level": '), "checksum"),
        (good[:-100], "not a length model"),
        (b"", "not a length model"),
        (b"\xff\xfe", "not a length model"),
        (json.dumps({**outer, "schema": 99}).encode(), "schema 99"),
    ):
        with pytest.raises(ModelFileError, match=why):
            load(bad, "x.json")


def test_a_body_that_does_not_fit_together_is_refused() -> None:
    from msgspec.structs import replace

    body = MODEL.body
    for wrong in (
        replace(body, mid=body.mid[1:]),
        replace(body, width=body.width[1:]),
        replace(body, grid=body.grid[::-1]),
        replace(body, spread=0.0),
        replace(body, features=["a"]),
        replace(body, cumulative=body.cumulative[:-1]),
        replace(body, cumulative=body.cumulative[::-1]),
    ):
        with pytest.raises(ModelFileError):
            load(dump(wrong), "x.json")


@given(st.binary(max_size=200), st.floats(0, 14), st.floats(0.05, 4), st.integers(1, 5000), st.integers(1, 5000))
def test_the_short_way_to_what_is_said_says_the_same(
    prompt: bytes, level: float, spread: float, s: int, m: int
) -> None:
    edges, shape = Edges(output=(s, s + m)), MODEL.shape(MODEL.features(Asked(prompt)))
    short, long = shape.said(level, spread, edges), said_of(shape.at(level, spread), edges)
    assert short.p == pytest.approx(long.p, abs=1e-9)
    quantiles = (long.log50, long.log90, long.log99)
    assert (short.log50, short.log90, short.log99) == pytest.approx(quantiles, abs=1e-6)


def test_the_shipped_card_says_what_it_rests_on() -> None:
    card = LengthModel(read_model(SHIPPED)).body.card
    assert "alpaca_eval_outputs" in str(card["sources"]) and int(card["prompts"]) > 500
