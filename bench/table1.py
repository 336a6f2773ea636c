"""DynamoLLM's Table I beside a profile: which (TP, clock) costs least for each class at the paper's medium load.

    .venv/bin/python -m bench.table1 profiles/data/h100-llama-2-70b.profile.csv

The paper loads one server of 8 GPUs with 2,000 tokens/s; what those are is not said, and as input tokens (as in its
Table II) they are more than most of its own cells hold for long prompts. So each class is asked at that load and at
what each cell itself holds: the cheapest joules per request within the SLO, which needs no reading of the paper.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from core.service import Slo
from profiles.profile_file import load_profile
from profiles.query import NotFeasible, ProfileIndex, build_index

FACTS = Path(__file__).resolve().parent.parent / "profiles" / "published_facts.yaml"
PAPER_MHZ = (800, 1200, 1600, 1980)
GPUS = 8
TOKENS_PER_S = 2000.0


@dataclass(frozen=True, slots=True)
class Row:
    """(TP, MHz) of the least energy: the paper's, ours at its load, ours at each cell's best load; J per request."""

    load: str
    paper: tuple[int, int]
    at_load: tuple[int, int] | None
    at_load_j: float | None
    full: tuple[int, int] | None
    full_j: float | None
    max_performance_j: float | None  # TP8 at 1980 MHz, at its own best load


def cheapest(index: ProfileIndex, load: str, rps: float | None) -> tuple[tuple[int, int], float] | None:
    """At `rps` on the server, shared by all instances that fit on it; None = each cell at its largest load."""
    found: list[tuple[float, tuple[int, int]]] = []
    for tp in index.tps:
        for mhz in PAPER_MHZ:
            joules = _joules(index, load, tp, mhz, None if rps is None else rps * tp / GPUS)
            if joules is not None:
                found.append((joules, (tp, mhz)))
    if not found:
        return None
    joules, cell = min(found)
    return cell, joules


def _joules(index: ProfileIndex, load: str, tp: int, mhz: int, each_rps: float | None) -> float | None:
    most = index.capacity(load, tp, mhz, Slo())
    if isinstance(most, NotFeasible) or (each_rps is not None and each_rps > most):
        return None
    operating = index.at(load, tp, mhz, most if each_rps is None else each_rps)
    return None if isinstance(operating, NotFeasible) else operating.j_per_request


def compare(index: ProfileIndex, table: dict[str, dict[int, list[float | None]]]) -> list[Row]:
    rows = []
    for load, by_tp in table.items():
        cells = [(wh, (tp, mhz)) for tp, row in by_tp.items() for wh, mhz in zip(row, PAPER_MHZ, strict=True) if wh]
        tokens = next(point.input_tokens for point in index.profile.points if point.load == load)
        at_load, full = cheapest(index, load, TOKENS_PER_S / tokens), cheapest(index, load, None)
        rows.append(
            Row(
                load, min(cells)[1],
                at_load[0] if at_load else None, at_load[1] if at_load else None,
                full[0] if full else None, full[1] if full else None,
                _joules(index, load, 8, 1980, None),
            )
        )  # fmt: skip
    return rows


def agreement(rows: list[Row], column: str) -> dict[str, int]:
    """How many classes have the paper's TP, and how many its clock within one of its steps."""
    pairs = [(row.paper, getattr(row, column)) for row in rows if getattr(row, column) is not None]
    near = [abs(PAPER_MHZ.index(a[1]) - PAPER_MHZ.index(b[1])) <= 1 for a, b in pairs]
    return {"classes": len(pairs), "same_tp": sum(a[0] == b[0] for a, b in pairs), "clock_within_a_step": sum(near)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", type=Path)
    index = build_index(load_profile(parser.parse_args().profile))
    facts = yaml.safe_load(FACTS.read_text())
    rows = compare(index, facts["table_1"]["cells"])
    for row in rows:
        print(json.dumps(asdict(row)))
    print(json.dumps({column: agreement(rows, column) for column in ("at_load", "full")}))


if __name__ == "__main__":
    main()
