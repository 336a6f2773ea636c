"""How far the engine model's joules are from a counter's, learnt while it serves: one factor each for idle, prefill and
decode joules of every (service, TP, clock).

Recursive least squares with forgetting (Ljung, System Identification, 11.2) on windows scaled to the model's own
joules, so that every window weighs the same. The factors foretell the next window before its counter is read: that
error is what /admin/energy calls model_error, and it can fail."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FORGET = 0.998  # a window of a second weighs half after six minutes
UNSURE = 0.04  # variance of a factor before anything is known: 20 %, as published models err
BOUNDS = (0.5, 2.0)


class Factors:
    """Of one kind of instance."""

    def __init__(self) -> None:
        self._factors: NDArray[np.float64] = np.ones(3)
        self._unsure: NDArray[np.float64] = np.eye(3) * UNSURE / 0.01
        self.windows = 0

    def now(self) -> tuple[float, float, float]:
        idle, prefill, decode = (float(one) for one in np.clip(self._factors, *BOUNDS))
        return idle, prefill, decode

    def learn(self, parts: tuple[float, float, float], joules: float) -> None:
        """`parts` are the model's joules of a window, `joules` the counter's. What no factor within BOUNDS explains is
        no window of the model's."""
        total = sum(parts)
        if total <= 0 or not BOUNDS[0] <= joules / total <= BOUNDS[1]:
            return
        shares = np.array(parts) / total
        gain = self._unsure @ shares / (FORGET + shares @ self._unsure @ shares)
        self._factors = self._factors + gain * (joules / total - shares @ self._factors)
        unsure = (self._unsure - np.outer(gain, shares @ self._unsure)) / FORGET
        # What is never seen, idling in a full cluster, must not grow without a limit.
        self._unsure = (
            unsure if np.trace(unsure) < 3 * UNSURE / 0.01 else self._unsure - np.outer(gain, shares @ self._unsure)
        )
        self.windows += 1
