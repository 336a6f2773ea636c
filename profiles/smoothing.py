"""Isotonic smoothing of a surface over (clock, load). Pure numpy; knows nothing of what the numbers mean.

A cell that is NaN has no support: it is left so and constrains nobody.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

Array = NDArray[np.float64]
ROUNDS = 200
TOLERANCE = 1e-9  # of the largest value


def smooth(values: Array, weights: Array, clock_rises: bool) -> Array:
    """The surface made to rise along each row (load), and along each column (clock) to rise or to fall.

    Least squares along rows and columns in turn (pool adjacent violators) until neither changes anything. Where the
    values are monotone already they are returned as they are.
    """
    known = ~np.isnan(values)
    surface = values.copy()
    scale = float(np.max(np.abs(values[known]), initial=0.0))
    for _ in range(ROUNDS):
        before = surface.copy()
        for row in range(surface.shape[0]):
            _along(surface[row], weights[row], known[row], True)
        for column in range(surface.shape[1]):
            _along(surface[:, column], weights[:, column], known[:, column], clock_rises)
        if not np.any(np.abs(surface - before)[known] > TOLERANCE * scale):
            break
    return _exact(surface, known, clock_rises)


def _along(line: Array, weights: Array, known: NDArray[np.bool_], rises: bool) -> None:
    """One line, in place."""
    at = np.flatnonzero(known)
    if len(at) < 2:
        return
    steps = np.diff(line[at])
    if np.all(steps >= 0) if rises else np.all(steps <= 0):
        return
    line[at] = isotonic_regression(line[at], weights=weights[at], increasing=rises).x


def _exact(surface: Array, known: NDArray[np.bool_], clock_rises: bool) -> Array:
    """Lifts the crumbs that the rounds leave, so that the order holds to the last bit."""
    if not known.any():
        return surface
    filled = np.where(known, surface, -np.inf)
    if not clock_rises:
        filled = filled[::-1]
    filled = np.maximum.accumulate(np.maximum.accumulate(filled, axis=1), axis=0)
    if not clock_rises:
        filled = filled[::-1]
    return np.where(known, filled, np.nan)
