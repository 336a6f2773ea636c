"""How long plans take and how good they are: the table of docs/optimiser.md.

Real columns of shipped engine models under the conversation mix. Per size: the first plan (its time, and its cost over
the bound), the solver within its limit (time, cost over the bound of a long solve), medians of `--runs` loads near the
stated one. `python -m bench.plan_times`. Times are CPU seconds of this process, which a busy machine moves least; the
solver's limit is in wall seconds, so on a busy machine it has less than that to work with.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from commands.plan import _mixes, _problem
from controller.dynamic import first_plan
from controller.plan_books import violations
from controller.problem import Plan, Problem
from controller.solver import Limits, solve
from profiles.engine_model import load_engine_model

SIZES = ((16, 5.0, 1.0, ("llama-2-70b",)), (64, 22.0, 1.0, ("llama-2-70b",)), (256, 100.0, 1.0, ("llama-2-70b",)),
         (256, 40.0, 1.0, ("llama-2-70b", "llama-3.1-70b", "qwen3-32b")),
         (1024, 400.0, 1.0, ("llama-2-70b",)), (1024, 160.0, 1.0, ("llama-2-70b", "llama-3.1-70b", "qwen3-32b")),
         (10_000, 4000.0, 5.0, ("llama-2-70b",)))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    first_s: float
    first_over: float
    solve_s: float
    over: float
    told: float


def problem_of(services: tuple[str, ...], gpus: int, rps: float) -> Problem:
    parts = [_problem(s, load_engine_model(s), _mixes(None, rps, 0.0), gpus, 8) for s in services]
    return replace(
        parts[0],
        columns=tuple(c for part in parts for c in part.columns),
        demands=tuple(d for part in parts for d in part.demands),
    )


def timed(ask: Callable[[], Plan]) -> tuple[Plan, float]:
    started_s = time.process_time()
    plan = ask()
    return plan, time.process_time() - started_s


def measure(task: Problem, limit_s: float, long_s: float) -> Row:
    first, first_s = timed(lambda: first_plan(task))
    plan, solve_s = timed(lambda: solve(task, Limits(time_s=limit_s)))
    best = solve(task, Limits(time_s=long_s, gap=1e-4))
    assert not violations(task, plan) and not violations(task, first)
    bound_w = max(best.bound_w, plan.bound_w)
    return Row(first_s, first.cost_w / bound_w - 1, solve_s, plan.cost_w / bound_w - 1, plan.gap)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--long", type=float, default=20.0, help="seconds of the solve that the others are held to")
    parser.add_argument("--most", type=int, default=10_000, help="GPUs of the largest case")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("GPUs   services columns  limit | first plan ms  over bound | solver s  over bound (worst)  gap it tells")
    for gpus, rps, limit_s, services in SIZES:
        if gpus > options.most:
            continue
        rows = []
        for run in range(options.runs):
            task = problem_of(services, gpus, rps * (1 + 0.07 * run))
            rows.append(measure(task, limit_s, options.long))
        over = [row.over for row in rows]
        told = [
            f"{gpus:6} {len(services):8} {len(task.columns):7} {limit_s:6.0f} |",
            f"{median(row.first_s for row in rows) * 1e3:13.0f} {median(row.first_over for row in rows):11.2%} |",
            f"{median(row.solve_s for row in rows):8.2f} {median(over):10.2%} ({max(over):.2%})",
            f"{median(row.told for row in rows):12.2%}",
        ]
        print(*told, flush=True)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
