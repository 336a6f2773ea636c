"""The first predictor: declared limits, running histograms, classes."""

from hypothesis import given
from hypothesis import strategies as st

from core.service import Edges
from predictor.length import RunningLengths, choose_size
from predictor.tokens import TokenEstimate

EDGES = Edges()


def test_a_declared_limit_bounds_everything() -> None:
    prediction = RunningLengths().predict(b"t", 50, EDGES)
    assert prediction.p == (1.0, 0.0, 0.0)
    assert prediction.q50_tokens <= 50 and prediction.q90_tokens <= 50
    assert choose_size(prediction) == "S"


def test_a_template_learns_its_own_lengths_and_leaves_others_alone() -> None:
    predictor = RunningLengths()
    before = predictor.predict(b"other", None, EDGES)
    for _ in range(60):
        predictor.learn(b"chatty", 900)
    chatty = predictor.predict(b"chatty", None, EDGES)
    assert choose_size(chatty) == "L"
    assert 700 <= chatty.q50_tokens <= 1200
    assert predictor.predict(b"other", None, EDGES).q50_tokens >= before.q50_tokens


def test_a_new_template_starts_from_the_services_distribution() -> None:
    predictor = RunningLengths()
    for _ in range(400):
        predictor.learn(b"a", 20)
    assert choose_size(predictor.predict(b"new", None, EDGES)) == "S"


def test_memory_is_bounded() -> None:
    predictor = RunningLengths(templates=10)
    for number in range(100):
        predictor.learn(str(number).encode(), 10)
    assert len(predictor._by_template) == 10


@given(st.lists(st.integers(1, 100_000), max_size=60), st.one_of(st.none(), st.integers(1, 200_000)))
def test_predictions_are_distributions(lengths: list[int], limit: int | None) -> None:
    predictor = RunningLengths()
    for length in lengths:
        predictor.learn(b"t", length)
    prediction = predictor.predict(b"t", limit, EDGES)
    assert abs(sum(prediction.p) - 1) < 1e-9 and all(-1e-12 <= p <= 1 for p in prediction.p)
    assert 1 <= prediction.q50_tokens <= prediction.q90_tokens <= (limit or 1 << 17)


def test_the_estimate_learns_the_ratio_and_ignores_short_prompts() -> None:
    estimate = TokenEstimate()
    for _ in range(300):
        estimate.learn(3000, 1000)
        estimate.learn(10, 31)
    assert abs(estimate.bytes_per_token - 3.0) < 0.01
    assert estimate.tokens(300) == 100


def test_near_means_within_15_percent() -> None:
    estimate = TokenEstimate()
    assert estimate.near(1000, (1024,)) and not estimate.near(800, (1024,))
