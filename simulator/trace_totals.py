"""Hourly totals as a load: what a publisher tells where the trace itself is too large. Reads the totals of the Azure
2024 week and spreads them over ticks of 5 s. Refuses to make arrivals: no request of it has a length of its own."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core.service import CLASSES, Edges
from simulator.trace import TraceError

COLUMNS = ("requests", "context_tokens", "generated_tokens")
HOUR_S, TICK_S = 3600.0, 5.0


@dataclass(frozen=True, slots=True)
class Totals:
    """`hours` (n, 3): requests, input tokens, output tokens of each hour. `start_s` in the time zone of the file."""

    start_s: float
    hours: NDArray[np.float64]


def is_totals(path: Path) -> bool:
    """Whether the first line names the columns of hourly totals."""
    with path.open("rb") as file:
        line = file.readline(4096).decode("utf-8-sig", errors="replace")
    columns = [name.strip() for name in line.split(",")]
    return columns[0].startswith("time") and all(name in columns for name in COLUMNS)


def read_totals(path: Path) -> Totals:
    """The first column is the hour's beginning; rows must follow each other hour by hour."""
    start_s: float | None = None
    hours: list[list[float]] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        when = (rows.fieldnames or ("",))[0]
        for number, row in enumerate(rows, start=2):
            try:
                at_s = datetime.fromisoformat(row[when]).replace(tzinfo=UTC).timestamp()
                values = [float(row[name]) for name in COLUMNS]
            except (ValueError, TypeError) as error:
                raise TraceError(f"{path}:{number}: {error}") from None
            start_s = at_s if start_s is None else start_s
            if at_s != start_s + len(hours) * HOUR_S or not all(0 <= value < float("inf") for value in values):
                raise TraceError(f"{path}:{number}: expected the hour after the last one, and totals of at least 0")
            hours.append(values)
    if start_s is None or len(hours) < 2:
        raise TraceError(f"{path}: fewer than two hours")
    return Totals(start_s, np.array(hours))


def spread(totals: Totals, scale: float, seed: int) -> NDArray[np.float64]:
    """Counts of every 5 s, (ticks, 9, 3): the rate runs straight between the middles of hours, arrivals are Poisson,
    every request has the hour's mean lengths, and the class of those. Bursts within an hour are not in such data."""
    hours = totals.hours
    middles = (np.arange(len(hours)) + 0.5) * HOUR_S
    at_s = np.arange(0, len(hours) * HOUR_S, TICK_S)
    rates, inputs, outputs = (np.interp(at_s, middles, hours[:, place] / HOUR_S) for place in range(3))
    requests = np.random.default_rng(seed).poisson(rates * scale * TICK_S).astype(float)
    each = np.divide(1.0, rates, out=np.zeros_like(rates), where=rates > 0)
    mean_input, mean_output = (int(total / max(1.0, hours[:, 0].sum())) for total in hours[:, 1:].sum(axis=0))
    edges = Edges()
    row = CLASSES.index(edges.input_size(mean_input) + edges.output_size(mean_output))
    counts = np.zeros((len(at_s), len(CLASSES), 3))
    counts[:, row] = np.stack((requests, requests * inputs * each, requests * outputs * each), axis=1)
    return counts
