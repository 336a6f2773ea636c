"""Fits place and width of answers to what prompts have: z = mid + width x e, with one distribution of e for all.

Owns the numeric fit, by maximum likelihood of the shares of each prompt's answers within each point of a grid. Refuses
to know what a prompt is. The logits of e's distribution are broken lines; they and the weights are fitted in turns."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from predictor.model_file import WIDEST

Array = NDArray[np.float64]
KNOTS = np.array([-4, -3, -2.25, -1.75, -1.25, -1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.75, 2.5])
OUTSIDE = 2 * log(2)  # slope of the logits beyond the knots: the tails of predictor/distribution.py
LOGISTIC = 1.7  # and what they start with: a logistic as wide as a normal distribution
ROUNDS = 2
STEPS = (-8.0, 2.0)  # of the logarithm of what logits rise from one knot to the next
FARTHEST = 30.0  # logits; beyond that a chance is 0 or 1
STOP: Any = {"maxiter": 150, "ftol": 1e-6}  # of the loss; the data settle the second digit of it at best


@dataclass(frozen=True, slots=True)
class Fitted:
    """`mid` has a weight for each column, `width` for each of the first; `logits` at KNOTS."""

    mid: Array
    mid_bias: float
    width: Array
    width_bias: float
    logits: Array

    def below(self, inputs: Array, grid: Array) -> Array:
        """Probability of at most each point of `grid`, a row for each row of `inputs`."""
        return _chance(_Lines(_standard(self, inputs, grid)).logits(self.logits))


def fit(inputs: Array, numbers: int, grid: Array, targets: Array, weights: Array, strength: float) -> Fitted:
    """`targets`: shares within each point of `grid`, a row for each row of `inputs`. The first `numbers` columns have a
    say in the width. `strength`: the variance that is expected of a weight of `mid`; a third of it for `width`."""
    columns = inputs.shape[1]
    found = Fitted(np.zeros(columns), 0.0, np.zeros(numbers), 0.0, LOGISTIC * KNOTS)
    with threadpool_limits(1):  # on matrices of this size the threads of a BLAS only wait for each other
        for _ in range(ROUNDS):
            found = _weights(found, inputs, grid, targets, weights, strength)
            found = _distribution(found, inputs, grid, targets, weights)
    return found


class _Lines:
    """Points on the broken lines: which knot is to the left, how far they are from it, how far beyond all."""

    def __init__(self, points: Array) -> None:
        inside = np.clip(points, KNOTS[0], KNOTS[-1])
        self.left = np.clip(np.searchsorted(KNOTS, inside, side="right") - 1, 0, len(KNOTS) - 2)
        self._step = KNOTS[self.left + 1] - KNOTS[self.left]
        self.part = (inside - KNOTS[self.left]) / self._step
        self._beyond = points - inside

    def logits(self, at_knots: Array) -> Array:
        lines: Array = at_knots[self.left] * (1 - self.part) + at_knots[self.left + 1] * self.part
        return lines + OUTSIDE * self._beyond

    def slopes(self, at_knots: Array) -> Array:
        inside: Array = (at_knots[self.left + 1] - at_knots[self.left]) / self._step
        return np.where(self._beyond == 0, inside, OUTSIDE)


def _standard(found: Fitted, inputs: Array, grid: Array) -> Array:
    mid = inputs @ found.mid + found.mid_bias
    width = np.exp(_log_width(found, inputs))
    standard: Array = (grid[None, :] - mid[:, None]) / width[:, None]
    return standard


def _log_width(found: Fitted, inputs: Array) -> Array:
    logs: Array = np.clip(inputs[:, : len(found.width)] @ found.width + found.width_bias, -WIDEST, WIDEST)
    return logs


def _chance(logits: Array) -> Array:
    chance: Array = 1 / (1 + np.exp(-np.clip(logits, -FARTHEST, FARTHEST)))
    return chance


def _loss(logits: Array, chance: Array, targets: Array) -> Array:
    """Cross-entropy, -log(1 - chance) - targets x logits: within FARTHEST the logarithm is exact enough."""
    loss: Array = -np.log1p(-chance) - targets * np.clip(logits, -FARTHEST, FARTHEST)
    return loss


def _weights(
    before: Fitted, inputs: Array, grid: Array, targets: Array, weights: Array, strength: float
) -> Fitted:  # fmt: skip
    columns, numbers = len(before.mid), len(before.width)

    def made(flat: Array) -> Fitted:
        mid, width = flat[1 : 1 + columns], flat[2 + columns :]
        return Fitted(mid, float(flat[0]), width, float(flat[1 + columns]), before.logits)

    def cost(flat: Array) -> tuple[float, Array]:
        now = made(flat)
        points = _standard(now, inputs, grid)
        lines = _Lines(points)
        logits = lines.logits(now.logits)
        kept = (now.mid @ now.mid + 3 * now.width @ now.width) / (2 * strength)
        chance = _chance(logits)
        by_point = weights[:, None] * (chance - targets) * lines.slopes(now.logits)
        by_mid = -by_point.sum(axis=1) * np.exp(-_log_width(now, inputs))
        by_width = -(by_point * points).sum(axis=1)
        gradient = [[by_mid.sum()], inputs.T @ by_mid + now.mid / strength]
        gradient += [[by_width.sum()], inputs[:, :numbers].T @ by_width + 3 * now.width / strength]
        return float((weights[:, None] * _loss(logits, chance, targets)).sum() + kept), np.concatenate(gradient)

    start = np.concatenate([[before.mid_bias], before.mid, [before.width_bias], before.width])
    return made(minimize(cost, start, jac=True, method="L-BFGS-B", options=STOP).x)


def _distribution(before: Fitted, inputs: Array, grid: Array, targets: Array, weights: Array) -> Fitted:
    """The logits at the knots: the first, and logarithms of the steps from there, so that they rise."""
    lines = _Lines(_standard(before, inputs, grid))
    shares = np.broadcast_to((weights / weights.sum())[:, None], targets.shape)

    def made(flat: Array) -> Array:
        return np.concatenate([[flat[0]], flat[0] + np.cumsum(np.exp(flat[1:]))])

    def cost(flat: Array) -> tuple[float, Array]:
        logits = lines.logits(made(flat))
        chance = _chance(logits)
        by_point = shares * (chance - targets)
        at_knots = np.bincount(lines.left.ravel(), (by_point * (1 - lines.part)).ravel(), len(KNOTS))
        at_knots += np.bincount(lines.left.ravel() + 1, (by_point * lines.part).ravel(), len(KNOTS))
        later = np.cumsum(at_knots[::-1])[::-1]
        gradient = np.concatenate([[later[0]], later[1:] * np.exp(flat[1:])])
        return float((shares * _loss(logits, chance, targets)).sum()), gradient

    start = np.concatenate([before.logits[:1], np.log(np.maximum(1e-3, np.diff(before.logits)))])
    within = [(-FARTHEST, FARTHEST), *[STEPS] * (len(KNOTS) - 1)]
    found = made(minimize(cost, start, jac=True, method="L-BFGS-B", bounds=within, options=STOP).x)
    return Fitted(before.mid, before.mid_bias, before.width, before.width_bias, found)
