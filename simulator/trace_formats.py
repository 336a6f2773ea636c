"""Traces on disk, told by content: Azure 2023 and 2024 CSV, BurstGPT CSV, Mooncake JSONL, the gateway's own run log.

Yields arrivals in order of time, counted from the first; keeps no more in memory than a few minutes of disorder, but
for the run log, whose rows come in order of their ends. What cannot be replayed is left out and counted.
"""

from __future__ import annotations

import csv
import heapq
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.trace import AZURE_COLUMNS, Arrival, TraceError, read_azure

BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length")
DISORDER_S = 120.0


@dataclass(slots=True)
class Excluded:
    """Requests of the trace that are not simulated, by reason."""

    empty: int = 0  # no prompt or no answer: failures, mostly
    too_long: int = 0  # prompt and answer exceed the context

    @property
    def total(self) -> int:
        return self.empty + self.too_long


def open_trace(path: Path, excluded: Excluded | None = None, context_tokens: int = 1 << 60) -> Iterator[Arrival]:
    """The arrivals of `path` that can be simulated. TraceError names file and line."""
    excluded = excluded or Excluded()
    first: float | None = None
    for arrival in in_order(format_of(path)(path), str(path)):
        if arrival.input_tokens < 1 or arrival.output_tokens < 1:
            excluded.empty += 1
        elif arrival.input_tokens + arrival.output_tokens > context_tokens:
            excluded.too_long += 1
        else:
            first = arrival.at_s if first is None else first
            yield arrival if first == 0 else Arrival(arrival.at_s - first, arrival.input_tokens, arrival.output_tokens)


def format_of(path: Path) -> Callable[[Path], Iterator[Arrival]]:
    """Which reader understands the file, by its first line."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            line = file.readline().strip()
    except UnicodeDecodeError:
        raise TraceError(f"{path}:1: not a text file") from None
    if line.startswith("{"):
        row = _row(path, 1, line)
        if all(key in row for key in MOONCAKE_KEYS):
            return read_mooncake
        if "kind" in row:
            return read_run_log
        raise TraceError(f"{path}:1: neither a Mooncake row ({', '.join(MOONCAKE_KEYS)}) nor a run log's (kind)")
    columns = [name.strip() for name in line.split(",")]
    if tuple(columns) == AZURE_COLUMNS:
        return read_azure
    if all(name in columns for name in BURSTGPT_COLUMNS):
        return read_burstgpt
    raise TraceError(
        f"{path}:1: expected the columns {','.join(AZURE_COLUMNS)} (Azure) or {','.join(BURSTGPT_COLUMNS)} (BurstGPT), "
        "or JSON lines of Mooncake or of a run log"
    )


def read_burstgpt(path: Path) -> Iterator[Arrival]:
    """Seconds from the start, whole ones in the published files."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                at_s, asked, answered = (float(row[name]) for name in BURSTGPT_COLUMNS)
            except (ValueError, TypeError) as error:
                raise TraceError(f"{path}:{number}: {error}") from None
            yield Arrival(at_s, int(asked), int(answered))


def read_mooncake(path: Path) -> Iterator[Arrival]:
    """Milliseconds from the start."""
    for number, row in rows_of(path):
        try:
            yield Arrival(float(row["timestamp"]) / 1000, int(row["input_length"]), int(row["output_length"]))
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(f"{path}:{number}: {type(error).__name__}: {error}") from None


def read_run_log(path: Path) -> Iterator[Arrival]:
    """Completed requests, at the moment they arrived. Other rows say nothing of a length."""
    found = []
    for number, row in rows_of(path):
        if row.get("kind") != "request" or row.get("outcome") != "completed" or row.get("output_tokens") is None:
            continue
        try:
            found.append(Arrival(row["t"] - row["e2e_s"], int(row["input_tokens"]), int(row["output_tokens"])))
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(f"{path}:{number}: {type(error).__name__}: {error}") from None
    yield from sorted(found, key=lambda arrival: arrival.at_s)


def in_order(arrivals: Iterable[Arrival], name: str) -> Iterator[Arrival]:
    """Puts rows right that are out of place by up to two minutes."""
    held: list[tuple[float, int, Arrival]] = []
    given_s = float("-inf")
    for number, arrival in enumerate(arrivals):
        if arrival.at_s < given_s:
            raise TraceError(f"{name}: row {number + 1} is more than {DISORDER_S:g} s out of order")
        heapq.heappush(held, (arrival.at_s, number, arrival))
        while held[0][0] <= arrival.at_s - DISORDER_S:
            given_s, _, ready = heapq.heappop(held)
            yield ready
    while held:
        yield heapq.heappop(held)[2]


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of a JSONL file with the numbers of their lines."""
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, _row(path, number, line)


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{path}:{number}: {error}") from None
    if not isinstance(row, dict):
        raise TraceError(f"{path}:{number}: expected an object")
    return row
