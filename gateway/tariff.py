"""What a joule costs and emits: a constant, or a file of values over time. Owns the files' form: CSV rows of a moment
(Unix seconds or ISO 8601) and a value that holds from then on; a first row that is no moment is a header."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Steps:
    """Values over time, each from its moment on; before the first one the first holds."""

    at_s: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, wall_s: float) -> float:
        return self.values[max(0, bisect_right(self.at_s, wall_s) - 1)]


@dataclass(frozen=True, slots=True)
class Tariff:
    """gCO2 and money per kWh; None = nobody said."""

    gco2: Steps | None = None
    price: Steps | None = None
    currency: str = "USD"


def constant(value: float) -> Steps:
    return Steps((0.0,), (value,))


def total(steps: Steps, joules: Iterable[tuple[float, float]]) -> float:
    """Of (moment, joules)."""
    return sum(spent_j * steps.at(wall_s) for wall_s, spent_j in joules) / J_PER_KWH


def read_steps(path: Path) -> Steps:
    """ValueError names file and line."""
    rows: list[tuple[float, float]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        moment, _, value = line.partition(",")
        if not line.strip():
            continue
        try:
            rows.append((_moment(moment.strip()), float(value.partition(",")[0])))
        except ValueError:
            if number > 1:
                raise ValueError(f"{path}:{number}: expected a moment and a value, not {line!r}") from None
    if not rows:
        raise ValueError(f"{path}: no row with a moment and a value")
    rows.sort()
    return Steps(tuple(at for at, _ in rows), tuple(value for _, value in rows))


def _moment(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def make_tariff(
    gco2: float | None, price: float | None, gco2_file: str | None, price_file: str | None, currency: str
) -> Tariff:
    """A file wins over a constant. ValueError or OSError when one cannot be read."""
    by_file = [read_steps(Path(name)) if name else None for name in (gco2_file, price_file)]
    by_value = [None if value is None else constant(value) for value in (gco2, price)]
    intensity, money = (file or value for file, value in zip(by_file, by_value, strict=True))
    return Tariff(intensity, money, currency)
