"""A new model serves only after it was better on what came lately."""

import random

from core.service import Edges
from predictor.blend import Blend
from predictor.challenger import WINDOW, Challenger
from predictor.features import Asked
from predictor.model import LengthModel, shipped_model

MODEL = shipped_model()
EDGES = Edges()
SHORT, LONG = b"Answer yes or no: is 7 prime?", b"Write a detailed essay about the history of Rome."


def contest(champion: Blend, challenger: Challenger, answers: int, seed: int = 0, cut: bool = False) -> int | None:
    """After how many answers it has won. Prompts are of two kinds with lengths of their own, as the model knows."""
    rng = random.Random(seed)
    for number in range(1, answers + 1):
        prompt, level = rng.choice(((SHORT, 4.0), (LONG, 10.0)))
        asked, tokens = Asked(prompt), round(2 ** rng.gauss(level, 0.5))
        told = champion.foretell(b"t", None, EDGES, asked)
        won = challenger.learn(champion, told, asked, b"", tokens, cut)
        champion.learn(told, tokens, cut)
        if won:
            return number
    return None


def test_a_better_one_wins_at_the_end_of_a_window() -> None:
    assert contest(Blend(None), Challenger(Blend(MODEL), "m"), 2 * WINDOW) in (WINDOW, 2 * WINDOW)


def test_a_worse_one_and_the_same_one_do_not() -> None:
    worse = Challenger(Blend(None), "none")
    assert contest(Blend(MODEL), worse, 2 * WINDOW) is None and worse.windows == 2
    assert contest(Blend(MODEL), Challenger(Blend(LengthModel(MODEL.body)), "same"), WINDOW) is None


def test_cut_answers_are_no_judge() -> None:
    challenger = Challenger(Blend(MODEL), "m")
    contest(Blend(None), challenger, 50, cut=True)
    assert challenger.score.answers == 0 and challenger.blend.templates == 1
