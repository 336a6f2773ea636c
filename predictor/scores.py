"""How good predictions of length were: accuracy by class, what was under-predicted, quantiles. Owns the formulas only.

An answer is under-predicted when its true class is larger than the predicted one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.metrics import f1_score, mean_pinball_loss

Classes = Sequence[int]


class Scores(Struct, frozen=True):
    """`pinball90_tokens` = mean pinball loss of q90; None where a predictor names no quantiles or no order."""

    accuracy: float
    macro_f1: float
    under_rate: float
    over_rate: float
    q90_coverage: float | None = None
    pinball50_tokens: float | None = None
    pinball90_tokens: float | None = None
    spearman: float | None = None


class Covered(Struct, frozen=True):
    """The q90 coverage of each service with enough answers: how many there are, least, median, most, and the share of
    services between 0.88 and 0.92."""

    services: int
    least: float
    median: float
    most: float
    within_two_points: float


class BelowLimit(Struct, frozen=True):
    """Of answers whose q90 lies below their own limit: how many stayed within. (Where it is the limit, all do.)"""

    n: int
    q90_coverage: float


class Reliable(Struct, frozen=True):
    """Of all probabilities of a size that were said within a tenth: their mean, and how often they came true."""

    said: float
    came_true: float
    n: int


def scored(
    truth: Classes, said: Classes, tokens: Sequence[int] = (), q50: Sequence[float] = (), q90: Sequence[float] = ()
) -> Scores:
    true, guess = np.asarray(truth), np.asarray(said)
    base = Scores(
        accuracy=_share(true == guess),
        macro_f1=macro_f1(truth, said),
        under_rate=_share(guess < true),
        over_rate=_share(guess > true),
    )
    if not len(q90):
        return base
    actual = np.asarray(tokens, dtype=float)
    return Scores(
        accuracy=base.accuracy, macro_f1=base.macro_f1, under_rate=base.under_rate, over_rate=base.over_rate,
        q90_coverage=_share(actual <= np.asarray(q90)),
        pinball50_tokens=_pinball(actual, np.asarray(q50), 0.5),
        pinball90_tokens=_pinball(actual, np.asarray(q90), 0.9),
        spearman=_spearman(actual, np.asarray(q50, dtype=float)),
    )  # fmt: skip


def macro_f1(truth: Classes, said: Classes) -> float:
    """Over the classes that occur in either."""
    return round(float(f1_score(truth, said, average="macro")), 4)


def _share(hits: NDArray[np.bool_]) -> float:
    return round(float(hits.mean()), 4)


def _pinball(actual: NDArray[np.float64], said: NDArray[np.float64], q: float) -> float:
    return round(float(mean_pinball_loss(actual, said, alpha=q)), 2)


def _spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """Rank correlation; None where one of the two never varies."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return round(float(spearmanr(a, b).statistic), 4)


def covered_by(names: Sequence[str], tokens: Sequence[int], q90: Sequence[int], least: int) -> Covered | None:
    held: dict[str, list[bool]] = {}
    for name, actual, bound in zip(names, tokens, q90, strict=True):
        held.setdefault(name, []).append(actual <= bound)
    shares = [float(np.mean(own)) for own in held.values() if len(own) >= least]
    if not shares:
        return None
    near = sum(0.88 <= share <= 0.92 for share in shares) / len(shares)
    low, middle, high = (round(float(value), 4) for value in np.quantile(shares, (0.0, 0.5, 1.0)))
    return Covered(len(shares), low, middle, high, round(near, 4))


def below_limit(tokens: Sequence[int], q90: Sequence[int], limits: Sequence[int | None]) -> BelowLimit | None:
    held = [a <= b for a, b, limit in zip(tokens, q90, limits, strict=True) if limit is None or b < limit]
    return BelowLimit(len(held), round(sum(held) / len(held), 4)) if held else None


def reliability(truth: Classes, said: Sequence[tuple[float, float, float]]) -> list[Reliable]:
    chances = np.asarray(said)
    came = np.asarray(truth)[:, None] == np.arange(3)
    tenth = np.minimum(9, (chances * 10).astype(int))
    found = []
    for at in range(10):
        inside = tenth == at
        if inside.any():
            mean, share = float(chances[inside].mean()), float(came[inside].mean())
            found.append(Reliable(round(mean, 4), round(share, 4), int(inside.sum())))
    return found
