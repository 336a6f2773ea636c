"""What is learnt online: the calibration of q90, templates, services."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from core.service import Edges
from predictor.blend import Blend
from predictor.conformal import STEP, Calibration
from predictor.features import Asked
from predictor.length import RunningLengths
from predictor.model import shipped_model

MODEL = shipped_model()
EDGES = Edges()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 2.0), st.floats(-3, 3), st.floats(-2, 2))
def test_nine_in_ten_stay_within_q90_whatever_the_error_and_after_a_drift(
    seed: int, sigma: float, error: float, drift: float
) -> None:
    rng = random.Random(seed)
    state, held = Calibration(), 0
    for step in range(3000):
        q90 = state.apply(200 * 2**error)
        tokens = round(200 * rng.lognormvariate(0, sigma) * 2 ** (drift if step > 1500 else 0)) + 1
        held += tokens <= q90
        state = state.learn(q90, tokens)
    # The bound of Gibbs and Candes: how far the offset had to go, in doublings, over STEP x answers. A log-normal's 90 %
    # quantile lies 1.85 doublings above its median per unit of sigma, and the offset sways by about one around its goal.
    needed = abs(error) + abs(drift) + 1.85 * sigma + 1
    assert abs(held / 3000 - 0.9) <= needed / (STEP * 3000)
    assert needed > 6 or 0.88 <= held / 3000 <= 0.92
    assert state.judged == 3000 and state.missed == 3000 - held


def test_an_answer_cut_within_its_quantile_proves_nothing() -> None:
    assert Calibration().learn(100.0, 50, cut=True) == Calibration()
    assert Calibration().learn(100.0, 150, cut=True).missed == 1


def chat(
    blend: Blend, template: bytes, prompt: bytes, tokens: int, cut: bool = False, limit: int | None = None
) -> None:
    told = blend.foretell(template, limit, EDGES, blend.features(Asked(prompt)))
    blend.learn_from(template, told, tokens, cut)


def test_templates_come_to_their_own_lengths() -> None:
    blend, rng = Blend(MODEL), random.Random(1)
    for _ in range(80):
        prompt = rng.choice([b"What is a tree?", b"Write a story about a dog", b"List ten ideas for a party"])
        chat(blend, b"terse", prompt, rng.randint(8, 20))
        chat(blend, b"wordy", prompt, rng.randint(700, 900))
    features = blend.features(Asked(b"How do I bake bread?"))
    terse, wordy = (blend.foretell(name, None, EDGES, features).prediction for name in (b"terse", b"wordy"))
    assert terse.p[0] > 0.9 and terse.q50_tokens < 40
    assert wordy.p[2] > 0.9 and 500 < wordy.q50_tokens < 1200


def test_without_features_or_model_it_says_what_running_lengths_say() -> None:
    blend, running = Blend(None), RunningLengths()
    for tokens in (20, 40, 500):
        blend.learn(b"t", tokens)
        running.learn(b"t", tokens)
    assert blend.predict(b"t", 300, EDGES) == running.predict(b"t", 300, EDGES)
    assert blend.features(Asked(b"x")) is None
    assert blend.foretell(b"t", 300, EDGES, None).prediction == running.predict(b"t", 300, EDGES)


def test_many_templates_do_not_grow_it_and_the_limit_always_holds() -> None:
    blend = Blend(MODEL, templates=16)
    for index in range(200):
        chat(blend, b"%d" % index, b"Tell me a story", 64, cut=True, limit=64)
        told = blend.foretell(b"%d" % index, 64, EDGES, blend.features(Asked(b"Tell me a story")))
        assert told.prediction.p == (1.0, 0.0, 0.0) and told.prediction.q90_tokens <= 64 and told.q99_tokens <= 64
    assert len(blend._templates) == 16


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40), st.integers(0, 2**20), st.booleans()), max_size=60)
)
def test_any_history_leaves_a_prediction_that_holds_together(history: list[tuple[int, bytes, int, bool]]) -> None:
    blend = Blend(MODEL)
    for template, prompt, tokens, cut in history:
        chat(blend, b"%d" % template, prompt, tokens, cut)
    told = blend.foretell(b"0", None, EDGES, blend.features(Asked(b"hello")))
    assert abs(sum(told.prediction.p) - 1) < 1e-9 and min(told.prediction.p) >= 0
    assert 1 <= told.prediction.q50_tokens <= told.prediction.q90_tokens <= told.q99_tokens
