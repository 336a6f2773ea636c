"""What is learnt online: the calibration of q90, templates, services."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.service import Edges
from predictor.blend import Blend
from predictor.conformal import STEP, Calibration
from predictor.distribution import Z90
from predictor.features import Asked
from predictor.hints import Hints
from predictor.length import RunningLengths
from predictor.model import shipped_model
from predictor.sizes import SizeFactors

MODEL = shipped_model()
EDGES = Edges()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 1.5), st.floats(-2, 2), st.floats(-2, 2))
def test_nine_in_ten_stay_within_q90_whatever_the_error_and_after_a_drift(
    seed: int, sigma: float, error: float, drift: float
) -> None:
    rng = random.Random(seed)
    state, held = Calibration(), 0
    for step in range(3000):
        q90 = 200 * 2 ** (error + state.offset)
        tokens = round(200 * rng.lognormvariate(0, sigma) * 2 ** (drift if step > 1500 else 0)) + 1
        held += tokens <= q90
        state = state.learn(q90, tokens)
    # Gibbs and Candes: every answer moves the offset by STEP x (0.9 - held), so the error is what the offset moved in all.
    # It has to get to where the error, the drift and a log-normal's 90 % quantile put it, in doublings, and sways there:
    # its standard deviation is below 0.3. (Goals beyond FURTHEST are out of its reach, and so of this test's.)
    goal = drift + Z90 * sigma / math.log(2) - error
    assert abs(abs(held / 3000 - 0.9) - abs(state.offset) / (STEP * 3000)) < 1e-9
    assert abs(state.offset - goal) < 3
    assert abs(goal) > 3 or 0.88 <= held / 3000 <= 0.92
    assert state.judged == 3000 and state.missed == 3000 - held


def test_an_answer_cut_within_its_quantile_proves_nothing() -> None:
    assert Calibration().learn(100.0, 50, cut=True) == Calibration()
    assert Calibration().learn(100.0, 150, cut=True).missed == 1


def chat(
    blend: Blend, template: bytes, prompt: bytes, tokens: int, cut: bool = False, limit: int | None = None
) -> None:
    blend.learn(blend.foretell(template, limit, EDGES, Asked(prompt)), tokens, cut)


def test_templates_come_to_their_own_lengths() -> None:
    blend, rng = Blend(MODEL), random.Random(1)
    for _ in range(80):
        prompt = rng.choice([b"What is a tree?", b"Write a story about a dog", b"List ten ideas for a party"])
        chat(blend, b"terse", prompt, rng.randint(8, 20))
        chat(blend, b"wordy", prompt, rng.randint(700, 900))
    bread = Asked(b"How do I bake bread?")
    terse, wordy = (blend.foretell(name, None, EDGES, bread).prediction for name in (b"terse", b"wordy"))
    assert terse.p[0] > 0.9 and terse.q50_tokens < 40
    assert wordy.p[2] > 0.9 and 500 < wordy.q50_tokens < 1200


def test_without_features_or_model_it_says_what_running_lengths_say() -> None:
    blend, running = Blend(None), RunningLengths()
    for tokens in (20, 40, 500):
        blend.learn(blend.foretell(b"t", 300, EDGES, Asked(b"x")), tokens)
        running.learn(b"t", tokens)
    blend.calibration = Calibration()
    for asked in (None, Asked(b"x")):
        assert blend.foretell(b"t", 300, EDGES, asked).prediction == running.predict(b"t", 300, EDGES)


def test_many_templates_do_not_grow_it_and_the_limit_always_holds() -> None:
    blend = Blend(MODEL, templates=16)
    for index in range(200):
        chat(blend, b"%d" % index, b"Tell me a story", 64, cut=True, limit=64)
        said = blend.foretell(b"%d" % index, 64, EDGES, Asked(b"Tell me a story")).prediction
        assert said.p == (1.0, 0.0, 0.0) and said.q90_tokens <= 64 and said.q99_tokens <= 64
    assert len(blend._templates) == 16


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40), st.integers(0, 2**20), st.booleans()), max_size=60)
)
def test_any_history_leaves_a_prediction_that_holds_together(history: list[tuple[int, bytes, int, bool]]) -> None:
    blend = Blend(MODEL)
    for template, prompt, tokens, cut in history:
        chat(blend, b"%d" % template, prompt, tokens, cut)
    told = blend.foretell(b"0", None, EDGES, Asked(b"hello", hint_tokens=50))
    said, whole = told.prediction, blend.length(told)
    assert abs(sum(said.p) - 1) < 1e-9 and min(said.p) >= 0
    assert 1 <= said.q50_tokens <= said.q90_tokens <= said.q99_tokens
    assert all(b > a for a, b in itertools.pairwise(whole.grid))
    assert whole.quantile_after(said.q50_tokens, 0.5) >= said.q50_tokens


def test_what_remains_rests_on_what_was_said() -> None:
    blend, rng = Blend(MODEL), random.Random(3)
    for _ in range(200):
        chat(blend, b"t", b"Tell me a story", round(300 * 2 ** rng.gauss(0, 0.5)))
    told = blend.foretell(b"t", None, EDGES, Asked(b"Tell me a story"))
    whole, said = blend.length(told), told.prediction
    assert abs(whole.quantile(0.5) / said.q50_tokens - 1) < 0.1 and abs(whole.quantile(0.9) / said.q90_tokens - 1) < 0.1
    rests = [whole.quantile_after(out, 0.5) - out for out in (0, 200, 400)]
    assert rests[0] > rests[1] > 0 and rests[2] > 0


SHARES = st.tuples(*[st.floats(0.001, 1)] * 3).map(lambda p: (p[0] / sum(p), p[1] / sum(p), p[2] / sum(p)))


@settings(deadline=None)
@given(st.lists(st.tuples(SHARES, st.integers(1, 2**20)), max_size=80), SHARES)
def test_size_factors_leave_probabilities_whatever_came(
    history: list[tuple[tuple[float, float, float], int]], p: tuple[float, float, float]
) -> None:
    sizes = SizeFactors()
    assert sizes.apply(p, EDGES) == p, "nothing came yet"
    for said, tokens in history:
        sizes.learn(said, EDGES, tokens)
    found = sizes.apply(p, EDGES)
    assert abs(sum(found) - 1) < 1e-9 and min(found) >= 0
    assert sizes.apply(p, Edges(output=(10, 20))) == p, "of other edges they know nothing"


def test_sizes_that_come_more_often_than_said_are_said_more_often() -> None:
    sizes, said = SizeFactors(), (0.3, 0.4, 0.3)
    for turn in range(600):
        sizes.learn(said, EDGES, 900 if turn % 4 == 0 else 20)  # a quarter are long, none is medium
    small, medium, long = sizes.apply(said, EDGES)
    assert 0.65 < small < 0.85 and medium < 0.1 and 0.15 < long < 0.35
    sizes.learn(said, Edges(output=(10, 20)), 15)
    assert sizes.apply(said, EDGES) == said and max(sizes.factors) < 1.1, "other edges, another beginning"


def test_probabilities_that_come_true_are_left_alone() -> None:
    sizes, rng = SizeFactors(), random.Random(6)
    for _ in range(2000):
        p = rng.choice(((0.6, 0.3, 0.1), (0.2, 0.3, 0.5)))
        sizes.learn(p, EDGES, rng.choices((20, 200, 900), p)[0])
    assert sizes.apply((0.2, 0.3, 0.5), EDGES) == pytest.approx((0.2, 0.3, 0.5), abs=0.1)


def test_a_client_is_believed_as_far_as_it_was_right() -> None:
    blend, rng = Blend(MODEL), random.Random(4)
    for _ in range(150):
        tokens = rng.choice((20, 200, 900))
        for client, hint in ((b"right", tokens), (b"half", tokens // 2), (b"random", rng.choice((20, 200, 900)))):
            told = blend.foretell(b"t", None, EDGES, Asked(b"Go on", hint_tokens=hint), client)
            blend.learn(told, tokens)
    hinted = Asked(b"Go on", hint_tokens=900)
    said = {name: blend.foretell(b"t", None, EDGES, hinted, name) for name in (b"right", b"half", b"random", b"new")}
    assert said[b"right"].prediction.p[2] > 0.8 and 700 < said[b"right"].prediction.q50_tokens < 1100
    assert said[b"half"].prediction.q50_tokens > 1000, "twice what it says, as always"
    assert said[b"new"].hint is not None and said[b"new"].hint.weight == 0
    assert said[b"random"].hint is not None and said[b"random"].hint.weight < 0.2


def test_hints_of_many_clients_do_not_grow_it() -> None:
    blend = Blend(None)
    blend.hints = Hints(clients=8)
    for index in range(50):
        told = blend.foretell(b"t", None, EDGES, Asked(b"", hint_tokens=10), b"%d" % index)
        blend.learn(told, 10)
    assert len(blend.hints._clients) == 8
