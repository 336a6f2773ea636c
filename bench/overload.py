"""Offered load against goodput, up to three times what is carried: does the router and its queue collapse?

    .venv/bin/python -m bench.overload TRACE --gpus 32

Simulated time and modelled engines, but the router, queue, ladder and controller are those that serve. Arrivals are
Poisson, each with the lengths of a request of the trace. Capacity is the highest rate of a bisection at which 99 % of
all requests attain their objectives (docs/figures.md) on these GPUs; then multiples of it are offered. Who is admitted
is whoever was not shed; of those, served late is who was known to be late when an instance was free for it at last.
Writes JSON; exit status 1 when goodput falls more than 5 % below its peak at a lower load."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from controller.knowledge import Settings
from core.request import Outcome
from simulator.case import shipped_service
from simulator.experiment import Experiment, case_of
from simulator.joulegate_policy import joulegate_setup
from simulator.load import PoissonLoad, TraceRows, read_rows
from simulator.run import simulate

PROMISED = 0.99
KEPT = 0.95  # of the peak
TIMES = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0)
STEPS = 6  # of the bisection


class Bench:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.spec = shipped_service(asked.service)
        self.rows: TraceRows = read_rows(asked.trace, self.spec.context_tokens)

    def run(self, rate_rps: float, seed: int) -> dict[str, Any]:
        asked = self.asked
        load = PoissonLoad(asked.trace, rate_rps, asked.seconds)
        case = case_of(Experiment(self.spec, load, gpus=asked.gpus), self.rows, seed)
        tally = simulate(joulegate_setup(case, asked.gpus, Settings()), case.open_trace()).tally
        attained, shed = sum(one.attained for one in tally.classes), tally.outcomes[Outcome.SHED]
        admitted = tally.total_arrived - shed
        least = min((one.attained / one.arrived for one in tally.classes if one.arrived >= 100), default=1.0)
        return {
            "offered_rps": tally.total_arrived / asked.seconds,
            "goodput_rps": attained / asked.seconds,
            "good_tokens_per_s": tally.good_tokens / asked.seconds,
            "attained": attained / tally.total_arrived,
            "attained_of_admitted": attained / max(1, admitted),
            "shed": shed,
            "late_served": tally.late_served,
            "late_unforeseen": tally.late_unforeseen,
            "failed": sum(tally.outcomes[one] for one in (Outcome.FAILED, Outcome.CUT)),
            "least_class": least,
        }

    def capacity_rps(self) -> float:
        low, high = 0.0, 2.0 * self.asked.gpus
        for _ in range(STEPS):
            middle = (low + high) / 2
            kept = self.run(middle, self.asked.seed)["attained"] >= PROMISED
            low, high = (middle, high) if kept else (low, middle)
            print(f"{middle:.2f}/s {'kept' if kept else 'not kept'}", file=sys.stderr, flush=True)
        return low


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| load | offered /s | goodput /s | good tokens /s | attained of admitted | served late | else missed | shed "
        "| least class |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        rates = f"{row['offered_rps']:.1f} | {row['goodput_rps']:.1f} | {row['good_tokens_per_s']:.0f}"
        kept_by = f"{100 * row['attained_of_admitted']:.2f} % | {row['late_served']} | {row['late_unforeseen']}"
        kept_by += f" | {row['shed']} | {100 * row['least_class']:.1f} %"
        lines.append(f"| {row['times']:g}x | {rates} | {kept_by} |")
    return "\n".join(lines)


def kept(rows: list[dict[str, Any]], key: str) -> float:
    """The least share of the peak of all lower loads that a load reaches, from 1x on."""
    peak, least = 0.0, 1.0
    for row in rows:
        peak = max(peak, row[key])
        least = min(least, row[key] / peak) if row["times"] >= 1 else least
    return least


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--service", default="llama-2-70b")
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--capacity", type=float, default=0.0, help="requests per second; 0: found by bisection")
    parser.add_argument("--out", type=Path, default=Path("build/overload.json"))
    asked = parser.parse_args()
    bench = Bench(asked)
    capacity_rps = asked.capacity or bench.capacity_rps()
    rows = []
    for times in TIMES:
        rows.append({"times": times, **bench.run(times * capacity_rps, asked.seed)})
        print(f"{times:g}x done", file=sys.stderr, flush=True)
    least = {key: kept(rows, key) for key in ("goodput_rps", "good_tokens_per_s")}
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps({"capacity_rps": capacity_rps, "rows": rows, "least_of_peak": least}, indent=1))
    print(table(rows), f"\nleast share of the peak from 1x on: {least}", sep="\n")
    return int(least["goodput_rps"] < KEPT)


if __name__ == "__main__":
    sys.exit(main())
