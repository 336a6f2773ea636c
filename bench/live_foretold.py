"""What the simulator foretells of a live run: the same arrivals, pools, controller and start-up, the same engine model.

Where it attains and the live run does not, the machine was short of processor; where neither does, the controller was
short of instances. The first plan is made from what arrives, as live; router, queue and predictor are those that serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from controller.knowledge import Knowledge, ServiceKnowledge
from gateway.config import to_services
from gateway.config_file import load_config
from gateway.wiring import settings_of
from profiles.engine_model import load_engine_model
from simulator.case import make_case
from simulator.run import simulate
from simulator.trace import Arrival


def foretold(config: Path, arrivals: list[Arrival], start_s: float) -> dict[str, Any]:
    """`config`: of the gateway. `start_s`: what a start takes; a GPU that was given back is back at once, as live."""
    loaded = load_config(config, {})
    (spec,) = to_services(loaded)
    assert spec.profile is not None
    model, gpus = load_engine_model(spec.profile), loaded.controller.gpus or 0
    fit = [one for one in arrivals if one.input_tokens + one.output_tokens <= spec.context_tokens]

    def opened() -> Iterator[Arrival]:
        return iter(fit)

    case = make_case(spec, model, opened, predictor="live")
    known = ServiceKnowledge(spec, model, case.costs.step_tokens)
    planned = loaded.controller.plan == "energy"
    setup = replace(
        case.setup(spec.pools, gpus),
        costs=replace(case.costs, start_s=start_s, back_after_s=0.0),
        knowledge=Knowledge({spec.name: known}, settings_of(loaded), gpus) if planned else None,
        tick_s=loaded.controller.interval_s, weighs=True,
    )  # fmt: skip
    ran = simulate(setup, opened())
    ttft = ran.tally.ttft()
    return {
        "requests": len(fit), "joules": ran.joules, "attainment": ran.tally.attainment_all,
        "ttft_p50_s": ttft.quantile(0.5), "ttft_p99_s": ttft.quantile(0.99),
        "tbt_p99_s": ran.tally.gaps.pooled().quantile(0.99), "starts": ran.switches.starts,
        "clock_writes": ran.switches.clock_writes,
    }  # fmt: skip
