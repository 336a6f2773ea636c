"""Loads: where the arrivals of a simulation come from, as values that can be sent to another process and hashed.

Owns reading a trace once: its rows are kept packed, 16 bytes each, up to `MOST_PACKED`; a longer trace is read again
for every run, so that memory does not grow with it.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from simulator.case import OpenTrace
from simulator.trace import Arrival
from simulator.trace_formats import Excluded, open_trace
from simulator.trace_scale import scaled, sliced
from simulator.trace_synthetic import fit, generate, read_week

MOST_PACKED = 2_000_000


@dataclass(slots=True)
class TraceRows:
    """The arrivals of a file that can be simulated, each time from its start."""

    path: Path
    context_tokens: int
    excluded: Excluded = field(default_factory=Excluded)
    packed: bool = True
    _at_s: array[float] = field(default_factory=lambda: array("d"))
    _input: array[int] = field(default_factory=lambda: array("I"))
    _output: array[int] = field(default_factory=lambda: array("I"))

    def __iter__(self) -> Iterator[Arrival]:
        if self.packed:
            return map(Arrival, self._at_s, self._input, self._output)
        return open_trace(self.path, Excluded(), self.context_tokens)

    def too_long(self, context_tokens: int) -> int:
        """Requests that exceed this context, which is not above that of the reading."""
        return self.excluded.too_long + sum(one.input_tokens + one.output_tokens > context_tokens for one in self)

    def keep(self, arrival: Arrival) -> None:
        self._at_s.append(arrival.at_s)
        self._input.append(arrival.input_tokens)
        self._output.append(arrival.output_tokens)
        if len(self._at_s) > MOST_PACKED:
            self.packed = False
            for column in (self._at_s, self._input, self._output):
                del column[:]


def read_rows(path: Path, context_tokens: int) -> TraceRows:
    """One reading. TraceError names file and line."""
    rows = TraceRows(path, context_tokens)
    for arrival in open_trace(path, rows.excluded, context_tokens):
        if rows.packed:
            rows.keep(arrival)
    return rows


@dataclass(frozen=True, slots=True)
class TraceLoad:
    """The minutes of a trace from `start_s` on, `scale` times."""

    path: Path
    start_s: float = 0.0
    length_s: float = math.inf
    scale: float = 1.0

    def open(self, rows: TraceRows, seed: int) -> OpenTrace:
        return lambda: scaled(lambda: sliced(rows, self.start_s, self.length_s), self.scale, seed)


@dataclass(frozen=True, slots=True)
class PoissonLoad:
    """Independent arrivals at one rate; each takes the lengths of a request of the trace, drawn with replacement."""

    path: Path
    rate_rps: float
    length_s: float

    def open(self, rows: TraceRows, seed: int) -> OpenTrace:
        return lambda: poisson(list(rows), self.rate_rps, self.length_s, seed)


@dataclass(frozen=True, slots=True)
class WeekLoad:
    """Made-up arrivals with the trace's lengths and burstiness and the rate of the hours of `week` (a CSV of hourly
    totals), `scale` times the trace's mean rate, from `start_hour` of the week on."""

    path: Path
    week: Path
    length_s: float
    scale: float = 1.0
    start_hour: int = 0

    def open(self, rows: TraceRows, seed: int) -> OpenTrace:
        shape = fit(rows, read_week(self.week)).scaled(self.scale)
        return lambda: generate(shape, self.length_s, seed, self.start_hour)


Load = TraceLoad | PoissonLoad | WeekLoad


def poisson(lengths: list[Arrival], rate_rps: float, length_s: float, seed: int) -> Iterator[Arrival]:
    rng = random.Random(f"poisson {seed}")
    at_s = 0.0
    while at_s < length_s:
        one = rng.choice(lengths)
        yield Arrival(at_s, one.input_tokens, one.output_tokens)
        at_s += rng.expovariate(rate_rps)


def in_context(arrivals: Iterable[Arrival], context_tokens: int) -> Iterator[Arrival]:
    """Made-up lengths may exceed the context; those are left out."""
    return (one for one in arrivals if one.input_tokens + one.output_tokens <= context_tokens)
