"""Loads made to provoke thrash, beside a smooth one of the same mean: starts, joules and attainment.

`python -m bench.thrash` prints the table of docs/controller.md. Every load has the same mean rate and the trace's
lengths; periods are those that could meet one of the controller's own: its settling time (2 min), its plans (5 min),
its memory of the busiest minute and its horizon (15 min). Energy is modelled.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.knowledge import Settings
from profiles.engine_model import load_engine_model
from simulator.case import make_case, shipped_service
from simulator.joulegate_policy import joulegate_setup
from simulator.report import Rates, figures
from simulator.run import simulate
from simulator.trace import Arrival
from simulator.trace_formats import Excluded, open_trace
from simulator.waves import Wave, arrivals, sawtooth, smooth, square

CONVERSATION = Path("../shared/data/azure_llm_2023/AzureLLMInferenceTrace_conv.csv")


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    wave: Wave
    most: float


def loads(swing: float) -> Iterator[Load]:
    yield Load("smooth", smooth(), 1.0)
    for minutes in (4, 10, 20):
        yield Load(f"square wave, {minutes} min", square(60.0 * minutes, swing), 1 + swing)
    for minutes in (10, 30):
        yield Load(f"sawtooth, {minutes} min", sawtooth(60.0 * minutes, swing), 1 + swing)


def measured(options: argparse.Namespace, load: Load, lengths: list[Arrival]) -> dict[str, Any]:
    made = list(arrivals(load.wave, options.rps, load.most, lengths, 60.0 * options.minutes, options.seed))
    case = make_case(
        shipped_service(options.service), load_engine_model(options.service), lambda: iter(made), predictor="0.81",
        seed=options.seed,
    )  # fmt: skip
    ran = simulate(joulegate_setup(case, options.gpus, Settings(park=options.park)), made)
    row = figures(ran, Rates())
    worst = [one for one in ran.tally.classes if one.arrived >= 100 and one.attainment is not None]
    return {
        "load": load.name, "requests": row["requests"], "starts": ran.switches.starts,
        "starts_per_hour_per_100_gpus": row["switches_per_hour_per_100_gpus"], "kwh": row["energy_kwh"],
        "attainment": row["attainment_all"], "worst_class": min(one.attainment or 0.0 for one in worst),
        "shed": row["shed"], "parks": row["parks"], "switching_kwh": row["energy_by_cause"]["switching"],
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| load | requests | starts | an hour per 100 GPUs | kWh | of smooth | attained | worst class | shed |"
    yield "| --- " * 9 + "|"
    for row in rows:
        yield (
            f"| {row['load']} | {row['requests']} | {row['starts']} | {row['starts_per_hour_per_100_gpus']:.1f} | "
            f"{row['kwh']:.2f} | {row['kwh'] / rows[0]['kwh']:.2f} | {row['attainment']:.2%} | "
            f"{row['worst_class']:.2%} | {row['shed']} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=CONVERSATION, help="whose lengths the requests have")
    parser.add_argument("--service", default="llama-2-70b")
    parser.add_argument("--gpus", type=int, default=48)
    parser.add_argument("--rps", type=float, default=6.0, help="mean of every load")
    parser.add_argument(
        "--swing", type=float, default=0.8, help="the rate goes from 1 - this to 1 + this times the mean"
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--park", action="store_true", help="what is not needed sleeps before it ends")
    parser.add_argument("--only", default="", help="loads whose name holds this")
    parser.add_argument("--out", type=Path, default=Path("build/thrash.json"))
    options = parser.parse_args()
    spec = shipped_service(options.service)
    lengths = list(open_trace(options.trace, Excluded(), spec.context_tokens))
    rows = []
    for load in (load for load in loads(options.swing) if options.only in load.name):
        rows.append(measured(options, load, lengths))
        print(rows[-1], file=sys.stderr, flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(
        json.dumps({"options": {k: str(v) for k, v in vars(options).items()}, "rows": rows}, indent=1)
    )
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
