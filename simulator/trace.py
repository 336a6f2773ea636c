"""Request traces: when requests arrived and how long they were. Reads the Azure CSV; holds no text."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceError(ValueError):
    """The file is not a trace; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """`at_s` counts from the first request of the trace."""

    at_s: float
    input_tokens: int
    output_tokens: int


def read_azure(path: Path) -> Iterator[Arrival]:
    """Rows of an Azure LLM inference trace (2023 and 2024 layouts), in the file's order."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if tuple(rows.fieldnames or ()) != AZURE_COLUMNS:
            raise TraceError(f"{path}:1: expected the columns {', '.join(AZURE_COLUMNS)}")
        first: datetime | None = None
        for number, row in enumerate(rows, start=2):
            try:
                at = datetime.fromisoformat(row["TIMESTAMP"][:26])
                tokens = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            except (ValueError, TypeError) as error:
                raise TraceError(f"{path}:{number}: {error}") from None
            first = first or at
            yield Arrival((at - first).total_seconds(), *tokens)


def window(arrivals: Iterable[Arrival], start_s: float, length_s: float) -> list[Arrival]:
    """Those that arrive in [start, start + length), counted from its start."""
    return [
        Arrival(a.at_s - start_s, a.input_tokens, a.output_tokens)
        for a in arrivals
        if start_s <= a.at_s < start_s + length_s
    ]
