"""The numeric fit finds what made the data, and its gradients are right."""

import numpy as np
import pytest

from predictor.fit import KNOTS, Fitted, _Lines, fit

GRID = np.linspace(-3, 3, 15)


def made(seed: int, prompts: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and shares of answers within the grid: normal about 0.8 x first, as wide as exp(0.5 x second)."""
    from scipy.stats import norm

    inputs = np.random.default_rng(seed).standard_normal((prompts, 4))
    mid, width = 0.8 * inputs[:, 0], np.exp(0.5 * inputs[:, 1] - 0.2)
    return inputs, norm.cdf((GRID[None, :] - mid[:, None]) / width[:, None])


def test_place_and_width_are_found() -> None:
    inputs, targets = made(1)
    found = fit(inputs, 3, GRID, targets, np.ones(len(inputs)), 10.0)
    scale = np.exp(found.width_bias + 0.2)  # the width of one is shared between bias and distribution
    assert found.mid == pytest.approx([0.8, 0, 0, 0], abs=0.03)
    assert found.width == pytest.approx([0, 0.5, 0], abs=0.03)
    other, true = made(2)
    assert np.abs(found.below(other, GRID) - true).max() < 0.03 and 0.2 < scale < 5
    assert (np.diff(found.logits) > 0).all()


def test_a_weak_strength_holds_weights_down_and_a_column_without_a_say_keeps_none() -> None:
    inputs, targets = made(1)
    held = fit(inputs, 1, GRID, targets, np.ones(len(inputs)), 1e-5)
    assert np.abs(held.mid).max() < 0.05 and held.width.shape == (1,)


def test_lines_go_on_beyond_the_knots() -> None:
    points = np.array([[KNOTS[0] - 1, KNOTS[0], 0.1, KNOTS[-1], KNOTS[-1] + 2]])
    logits = _Lines(points).logits(1.7 * KNOTS)[0]
    assert logits[1:4] == pytest.approx([1.7 * KNOTS[0], 0.17, 1.7 * KNOTS[-1]])
    assert logits[0] < logits[1] and logits[4] == pytest.approx(logits[3] + 4 * np.log(2))
    still = Fitted(np.zeros(1), 0.0, np.zeros(1), 0.0, 1.7 * KNOTS)
    assert still.below(np.zeros((1, 1)), np.array([0.0]))[0, 0] == pytest.approx(0.5)
