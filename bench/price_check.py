"""Prices against the simulator: the largest rate that a pool of n instances carries, and the watts it draws there.

One pool, Poisson arrivals, lengths of a trace, known to the router; the limits are the column's. `python -m
bench.price_check` prints a table: capacity foretold / found by bisection (99 % attained in every class of 100 requests
or more), and watts foretold / simulated at shares of the foretold capacity.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

from controller.loads import Mix, mixes
from controller.pricing import Cell
from core.service import SIZES, InstanceLimits, PoolSpec
from profiles.engine_model import EngineModel, load_engine_model
from simulator.case import shipped_service
from simulator.cluster import costs_of
from simulator.lengths import Oracle
from simulator.run import Ran, Setup, simulate
from simulator.tally import JUDGED_FROM
from simulator.trace_formats import open_trace
from simulator.trace_synthetic import Shape, fit, generate

CONVERSATION = Path("../shared/data/azure_llm_2023/AzureLLMInferenceTrace_conv.csv")
CELLS = ((2, 1980), (4, 1980), (4, 1200), (8, 1400))


def run(model: EngineModel, shape: Shape, cell: Cell, instances: int, rps: float, seconds: float, seed: int) -> Ran:
    limits = InstanceLimits(cell.slots, model.kv_tokens(cell.tp), cell.step_tokens)
    pool = PoolSpec("all", SIZES, instances, cell.tp, cell.clock_mhz, limits)
    spec = replace(shipped_service("check"), pools=(pool,))
    costs = costs_of(model, spec.slo.tbt_s)
    setup = Setup(spec, model, instances * cell.tp, costs, lambda: Oracle(spec.edges), seed=seed)
    return simulate(setup, generate(replace(shape, rate_rps=rps, dispersion=1.0), seconds, seed))


def watts(ran: Ran, instances: int) -> float:
    return ran.joules / ran.duration_s / instances


def found_rps(model: EngineModel, shape: Shape, cell: Cell, instances: int, guess: float, seconds: float) -> float:
    low, high = 0.0, 0.0
    rps = guess * instances
    while not high or high - low > 0.02 * high:
        kept = run(model, shape, cell, instances, rps, seconds, 1).tally.keeps_promise()
        low, high = (rps, high) if kept else (low, rps)
        rps = (low + high) / 2 if high else 1.25 * low
        if high < 0.05 * guess * instances and high:
            break
    return low / instances


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path, default=CONVERSATION)
    parser.add_argument("--model", default="llama-2-70b")
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--instances", type=int, nargs="*", default=[4, 8])
    options = parser.parse_args()
    model = load_engine_model(options.model)
    spec = shipped_service("check")
    arrivals = list(open_trace(options.trace))
    shape = fit(arrivals)
    pairs = [(a.input_tokens, a.output_tokens) for a in generate(replace(shape, dispersion=1.0), 3600, 7)]
    mix: Mix = mixes(pairs, 3600, spec.edges, spec.slo, {"all": SIZES})["all"]
    per_step = costs_of(model, spec.slo.tbt_s).step_tokens
    print("TP   MHz  n  slots  foretold  found rps  error  | watts at 50 %: foretold simulated error | at 95 %")
    for tp, clock_mhz in CELLS:
        for instances in options.instances:
            cell = Cell(model, tp, clock_mhz, mix, spec.slo.tbt_s, per_step[tp], 256)
            foretold = cell.capacity(instances)
            line = f"TP{tp} {clock_mhz:5} {instances:2} {cell.slots:6} {foretold:9.3f}"
            found = found_rps(model, shape, cell, instances, foretold or 0.5, options.seconds)
            line += f" {found:9.3f} {foretold / found - 1 if found else 0:+7.1%}"
            for share in (0.5, 0.95):
                if foretold:
                    ran = run(model, shape, cell, instances, share * foretold * instances, options.seconds, 2)
                    steady = cell.at(share * foretold)
                    drawn = watts(ran, instances)
                    said = steady.watts if steady else 0.0
                    classes = [c for c in ran.tally.classes if c.arrived >= JUDGED_FROM]
                    least = min((c.attained / c.arrived for c in classes), default=math.nan)
                    line += f" | {said:7.0f} {drawn:7.0f} {said / drawn - 1:+6.1%} least {least:.4f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
