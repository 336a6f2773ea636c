"""What a simulation's predictors say: each as often right as it is told to be, and honest about it where it says so."""

from collections import Counter

import pytest

from core.service import Edges
from predictor.model_file import SHIPPED, read_model
from profiles.engine_model import load_engine_model
from simulator.case import Case, make_case, shipped_service
from simulator.lengths import Calibrated, mixed_quantile
from simulator.trace import Arrival

EDGES = Edges()
ARRIVALS = [Arrival(0.1 * at, 300, (40, 60, 200, 900)[at % 4]) for at in range(4000)]


def case(predictor: str) -> Case:
    model = load_engine_model("llama-2-70b")
    return make_case(shipped_service("llama-2-70b"), model, lambda: iter(ARRIVALS), predictor=predictor)


def test_a_calibrated_one_is_right_as_often_as_it_says() -> None:
    confusion = ((8, 1, 1), (3, 6, 1), (1, 2, 7))
    lengths = Calibrated(confusion, (0.5, 0.25, 0.25), ((50, 60), (200, 210), (900, 950)), EDGES, 0)
    came: dict[tuple[float, ...], Counter[str]] = {}
    for arrival in ARRIVALS:
        said = lengths.predict(arrival, 10_000)
        assert said.q50_tokens <= said.q90_tokens <= said.q99_tokens
        came.setdefault(said.p, Counter())[EDGES.output_size(arrival.output_tokens)] += 1
    assert len(came) == 3
    for p, sizes in came.items():
        for size, chance in zip("SML", p, strict=True):
            assert sizes[size] / sizes.total() == pytest.approx(chance, abs=0.04)


def test_none_says_the_shares_of_the_trace_and_long_says_long() -> None:
    none, long = case("none").lengths(), case("long").lengths()
    for arrival in ARRIVALS[:8]:
        assert none.predict(arrival, 9999).p == pytest.approx((0.5, 0.25, 0.25))
        assert long.predict(arrival, 9999).p == (0.0, 0.0, 1.0)


def test_the_shipped_models_confusion_is_what_model_draws_by() -> None:
    confusion = read_model(SHIPPED).confusion
    assert confusion is not None
    lengths, drawn = case("model").lengths(), Counter[tuple[float, ...]]()
    for arrival in ARRIVALS:
        if arrival.output_tokens > 350:
            drawn[lengths.predict(arrival, 9999).p] += 1
    assert sorted(count / drawn.total() for count in drawn.values()) == pytest.approx(
        sorted(count / sum(confusion[2]) for count in confusion[2]), abs=0.05
    )


def test_unknown_predictors_are_refused() -> None:
    with pytest.raises(ValueError, match="oracle"):
        case("guess")


@pytest.mark.parametrize(("p", "q", "least", "most"), [((1, 0, 0), 0.5, 50, 50), ((0, 0, 1), 0.9, 900, 900),
                                                       ((0.5, 0.5, 0), 0.75, 200, 200), ((0, 0, 1), 0.99, 901, 1800)])  # fmt: skip
def test_quantiles_of_a_mixture(p: tuple[float, ...], q: float, least: int, most: int) -> None:
    assert least <= mixed_quantile(p, ((50, 90), (200, 300), (500, 900)), EDGES, q) <= most
