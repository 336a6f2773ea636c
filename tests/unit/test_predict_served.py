"""What serves, in Python and by parts, against what a model file says, in NumPy and by the book; twice the same."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from core.service import Edges
from predictor.blend import Blend
from predictor.features import NAMES, Asked
from predictor.model import LengthModel, shipped_model
from predictor.model_file import WIDEST, Body

SHIPPED = shipped_model().body
RANDOM = np.random.default_rng(7)
# Of the shipped model what a request declares weighs nothing; here everything does.
WEIGHTY = replace(
    SHIPPED,
    mid=RANDOM.normal(0, 0.3, len(SHIPPED.mid)).tolist(),
    width=RANDOM.normal(0, 0.1, len(SHIPPED.width)).tolist(),
    scales=RANDOM.uniform(0.5, 2, len(NAMES)).tolist(),
)
MODELS = [(body, LengthModel(body)) for body in (SHIPPED, WEIGHTY)]
SAID = (
    *SHIPPED.words,
    "in",
    "50",
    "words",
    "three",
    "sentences",
    "?",
    ":",
    "```",
    "\n",
    "字",
    "100字",
    "brief",
    "WRITE",
)
REQUESTS = st.builds(
    Asked,
    prompt=st.lists(st.sampled_from(SAID), max_size=60).map(" ".join).map(str.encode) | st.binary(max_size=1500),
    prompt_bytes=st.integers(0, 10_000),
    turns=st.integers(1, 9),
    last_answer_tokens=st.none() | st.integers(0, 3000),
    max_tokens=st.none() | st.integers(1, 8000),
    stop=st.booleans(),
    tools=st.booleans(),
    n=st.integers(1, 4),
    temperature=st.none() | st.floats(0, 2),
    reasoning_tokens=st.none() | st.integers(0, 30_000),
)


def by_the_book(body: Body, numbers: tuple[float, ...], words: frozenset[bytes]) -> tuple[float, float]:
    """Place and width as `Body` describes them."""
    standard = (np.array(numbers) - np.array(body.means)) / np.array(body.scales)
    has = np.array([word.encode() in words for word in body.words], dtype=float)
    mid = body.mid_bias + float(np.concatenate([standard, has]) @ np.array(body.mid))
    width = body.width_bias + float(standard @ np.array(body.width))
    return mid, float(np.exp(np.clip(width, -WIDEST, WIDEST)))


@settings(deadline=None)
@given(REQUESTS, st.floats(3, 12), st.floats(0.2, 3))
def test_what_serves_is_what_the_file_says(asked: Asked, level: float, spread: float) -> None:
    for body, model in MODELS:
        features = model.features(asked)
        shape = model.shape(features)
        mid, width = by_the_book(body, features.numbers, features.words)
        assert (shape.mid, shape.width) == pytest.approx((mid, width), rel=1e-6, abs=1e-6)
        at = np.array(body.grid) * spread * width + level + spread * mid
        for place, share in zip(at, body.cumulative, strict=True):
            if 0 <= place <= 20:
                assert shape.at(level, spread).below(2.0**place) == pytest.approx(share, abs=1e-5)


HOSTILE = {
    "empty": "b''",
    "megabytes": "b'essay ' * 700_000",
    "control": "bytes(range(32)) * 500",
    "broken utf-8": "b'\\xff\\xfe\\xc3\\x28\\xf0\\x9f' * 400",
    "scripts": "'Schreib 写 اكتب लिखो напиши 50字 ✍️ כתוב'.encode() * 90",
    "one word": "b'a' * 300_000",
    "numbers": "b'9' * 5000 + b' words in 99999999999999999999 words'",
    "vocabulary": "b' '.join(sorted(model.vocabulary.known))",
    "escapes": "b'\\\\n\\\\t\\\\u0000' * 3000",
}
SPOKEN = f"""
from core.service import Edges
from predictor.blend import Blend
from predictor.features import Asked
from predictor.model import shipped_model
model = shipped_model()
blend = Blend(model)
for turn in range(3):
    for prompt in ({", ".join(HOSTILE.values())},):
        told = blend.foretell(b"t", 4000, Edges(), Asked(prompt, len(prompt)))
        print(told.prediction, told.level, told.spread)
        blend.learn(told, 1 + len(prompt) % 4000)
"""


def test_hostile_prompts_are_foretold_the_same_in_every_process() -> None:
    """Sets have another order in every process; sums over them have not."""
    root = Path(__file__).parents[2]
    said = [
        subprocess.run(
            [sys.executable, "-c", SPOKEN],
            env={**os.environ, "PYTHONHASHSEED": seed}, cwd=root, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert said[0] == said[1] and said[0].count("Prediction") == 3 * len(HOSTILE)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_prompt_is_foretold_within_bounds(name: str) -> None:
    model = shipped_model()
    prompt = eval(HOSTILE[name], {"model": model})
    told = Blend(model).foretell(b"t", 4000, Edges(), Asked(prompt, len(prompt))).prediction
    assert sum(told.p) == pytest.approx(1) and min(told.p) >= 0
    assert 1 <= told.q50_tokens <= told.q90_tokens <= told.q99_tokens <= 4000
