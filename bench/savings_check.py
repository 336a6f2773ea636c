"""Is the truth inside the interval of the savings report? Windows of a trace, served twice by simulated clusters whose
physics is off by a tenth from the engine model, each constant by its own draw: by the controller, and by SinglePool.

    python -m bench.savings_check TRACE [SEEDS] [MINUTES] [SHARE]

The report sees the first run's requests and its meter; what it says was saved is compared with the second run's meter.
Prints each seed, how many truths lay inside, and the half-width beside the middle."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from controller.knowledge import Knowledge, ServiceKnowledge, Settings
from core.request import Prediction
from core.service import SIZES
from gateway.config import to_services
from gateway.config_file import load_config
from profiles.engine_model import load_engine_model
from simulator.case import make_case
from simulator.lengths import Lengths
from simulator.run import simulate
from simulator.savings import Logged, Served, Traffic, savings
from simulator.trace import Arrival, read_azure, window
from tests.ledger_rig import perturbed

TICK_S = 1.0
GPUS = 64
CONTEXT_TOKENS = 8192  # of configs/dev.yaml
COPIES = 5  # of the trace, each from another place of it


class Written:
    """Keeps what was foretold, as the run log does."""

    def __init__(self, lengths: Lengths) -> None:
        self.foretold: list[Prediction] = []
        self._lengths = lengths

    def predict(self, arrival: Arrival, room_tokens: int) -> Prediction:
        self.foretold.append(self._lengths.predict(arrival, room_tokens))
        return self.foretold[-1]

    def learn(self, arrival: Arrival) -> None:
        self._lengths.learn(arrival)


def check(arrivals: list[Arrival], seed: int, share: float) -> dict[str, Any]:
    (spec,) = to_services(load_config(Path("configs/dev.yaml"), {}, []))
    model = load_engine_model(spec.profile)
    case = make_case(spec, model, lambda: iter(arrivals), predictor="0.81", seed=1000 + seed)
    case = replace(case, costs=replace(case.costs, start_s=20.0))
    physics = perturbed(model, share, random.Random(seed))
    knowledge = Knowledge({spec.name: ServiceKnowledge(spec, model, case.costs.step_tokens)}, Settings(), GPUS)
    written = Written(case.lengths())
    served = replace(
        case.setup(spec.pools, GPUS), knowledge=knowledge, tick_s=TICK_S, weighs=True, model=physics,
        lengths=lambda: written,
    )  # fmt: skip
    on = simulate(served, case.open_trace())
    logged = tuple(
        Logged(one.at_s, one.input_tokens, one.output_tokens, foretold)
        for one, foretold in zip(arrivals, written.foretold, strict=True)
    )
    traffic = Traffic(logged, 0.0, on.duration_s, 20.0)
    how = Served(GPUS, True, Settings(), TICK_S)
    said = savings(spec, traffic, how, "singlepool", on.meter.per_bin_j, 1.0, on.by_cause(), range(2))
    instances = said.instances or 1
    static = case.setup((case.pool("all", SIZES, instances),), instances * case.tp)
    off = simulate(replace(static, model=physics), case.open_trace())
    truth = off.joules - on.joules
    half = (said.saved.high - said.saved.low) / 2
    return {
        "seed": seed, "on_kwh": on.joules / 3.6e6, "truth_kwh": truth / 3.6e6, **said.saved.kwh(),
        "inside": said.saved.low <= truth <= said.saved.high, "attained": on.tally.attainment_all,
        "half_width_of_middle": half / abs(said.saved.mid), "meter_to_simulated": said.ratio, "instances": instances,
    }  # fmt: skip


def main() -> None:
    trace = Path(sys.argv[1])
    seeds, minutes, share = (*(float(word) for word in sys.argv[2:5]), *(10.0, 15.0, 0.1)[len(sys.argv[2:5]) :])
    rows, whole = [], [one for one in read_azure(trace) if one.input_tokens + one.output_tokens <= CONTEXT_TOKENS]
    for seed in range(int(seeds)):
        begins_s = [(seed * 130.0 + copy * 311.0) % (3500 - minutes * 60) for copy in range(COPIES)]
        copies = [one for at_s in begins_s for one in window(whole, at_s, minutes * 60)]
        arrivals = sorted(copies, key=lambda one: one.at_s)
        rows.append(check(arrivals, seed, share))
        print(json.dumps(rows[-1]), flush=True)
    print(json.dumps({"inside": sum(row["inside"] for row in rows), "of": len(rows)}))


if __name__ == "__main__":
    main()
