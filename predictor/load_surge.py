"""How far above its forecast a load rises before instances that are started for it are there. Pure.

Owns the busiest ten seconds of each minute and what they were above the mean that was known when they began. A minute's
mean hides them (Azure's code trace: ten seconds of twice to three times their minute), and the first tokens of such
seconds are due in two."""

from __future__ import annotations

from collections.abc import Sequence

SURGE_S = 10.0
LEAD_MINUTES = 3  # to notice and to start an instance: a minute and 90 s
LEVEL_MINUTES = 5  # what the forecast of the next five minutes is a mean of
UNKNOWN_MINUTES = 3  # a mean of fewer says too little for its surges to be remembered


def excess(minutes: Sequence[float], surges: Sequence[float]) -> float:
    """Of prompt tokens/s: the most by which the busiest ten seconds of LEAD_MINUTES exceeded the mean before them or
    stayed under it, not negative: a load that went at once may come back at once, and what was given back for it takes
    longer. `minutes`: means, oldest first; `surges`: their busiest ten seconds."""
    known = len(minutes)
    most = 0.0
    for at in range(min(UNKNOWN_MINUTES, max(1, known - 1)), known):
        before = minutes[max(0, at - LEVEL_MINUTES) : at]
        after = surges[at : at + LEAD_MINUTES]
        swing = max(after) - sum(before) / len(before)
        most = max(most, abs(swing) if len(after) == LEAD_MINUTES else swing)
    return most
