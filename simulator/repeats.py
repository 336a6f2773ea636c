"""Several seeds as one row: means, and 95 % confidence intervals of them.

The interval is Student's t over the seeds' values: mean +- t(0.975, n - 1) s / sqrt(n). It speaks of the seeds, which
move arrivals of copies, predictor errors and ties, and says nothing of another day's trace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

CONFIDENCE = 0.95


def together(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row itself of one seed; else each figure's mean over the seeds that have it, `ci95` of the plain figures, and
    all() of what is true or false."""
    if len(rows) == 1:
        return dict(rows[0])
    whole: dict[str, Any] = _mean(rows)
    intervals = {}
    for key, value in whole.items():
        values = [row[key] for row in rows if _is_number(row.get(key))]
        if _is_number(value) and len(values) == len(rows):
            half = half_width(values)
            intervals[key] = [value - half, value + half]
    return {**whole, "repeats": len(rows), "ci95": intervals}


def half_width(values: Sequence[float]) -> float:
    """Of the t-interval of the mean of two values or more."""
    from scipy.stats import t

    spread = stdev(values)
    return float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * spread / math.sqrt(len(values)) if spread else 0.0


def _mean(values: Sequence[Any]) -> Any:
    present = [value for value in values if value is not None]
    if not present:
        return None
    if isinstance(present[0], dict):
        names = list(dict.fromkeys(name for one in present for name in one))
        return {name: _mean([one[name] for one in present if name in one]) for name in names}
    if isinstance(present[0], bool):
        return all(present)
    if _is_number(present[0]):
        return mean(present)
    return present[0]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
