"""`joulegate simulate`: what each policy would spend on a trace. Owns the options and what is printed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.output import AsJson, fail, say

if TYPE_CHECKING:
    from core.service import ServiceSpec
    from simulator.case import Case
    from simulator.report import Rates
    from simulator.run import Ran
    from simulator.trace import Arrival


def simulate(
    trace: Annotated[
        Path, typer.Argument(help="Azure CSV, BurstGPT CSV, Mooncake JSONL or a run log.", show_default=False)
    ],
    service: Annotated[str, typer.Option(help="A shipped service, or one of --config.", show_default=False)],
    gpus: Annotated[int | None, typer.Option(help="GPUs of the cluster. Default: what singlepool needs.")] = None,
    scale: Annotated[float, typer.Option(help="Copies of the trace; a fraction thins it.")] = 1.0,
    policies: Annotated[str, typer.Option(help="Which, separated by commas, or all.")] = "all",
    config: Annotated[Path | None, typer.Option(help="YAML configuration whose pools joulegate holds.")] = None,
    predictor: Annotated[str, typer.Option(help="oracle, live, or the accuracy of a predictor.")] = "0.81",
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.")] = 0,
    start: Annotated[float, typer.Option(help="Minutes of the trace to skip.")] = 0.0,
    minutes: Annotated[float | None, typer.Option(help="Minutes of the trace to take. Default: all.")] = None,
    usd_per_gpu_hour: Annotated[float | None, typer.Option(help="Adds cost_usd.")] = None,
    gco2_per_kwh: Annotated[float | None, typer.Option(help="Adds gco2.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for report.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a trace on emulated engines with the router, queue and controller that serve. Energy is modelled."""
    from profiles.engine_model import load_engine_model
    from simulator.case import make_case, shipped_service
    from simulator.registry import POLICIES
    from simulator.report import Rates, table
    from simulator.trace import TraceError
    from simulator.trace_formats import Excluded, open_trace
    from simulator.trace_scale import scaled, sliced

    names = tuple(policy.name for policy in POLICIES)
    chosen = names if policies == "all" else tuple(name.strip() for name in policies.split(","))
    if unknown := [name for name in chosen if name not in names]:
        fail(f"unknown policy {', '.join(unknown)}; known: {', '.join(names)}", 2)
    if not scale > 0 or start < 0 or (minutes is not None and not minutes > 0) or (gpus is not None and gpus < 1):
        fail("--scale, --minutes and --gpus must be positive, --start not negative", 2)
    spec = shipped_service(service) if config is None else _configured(config, service)
    excluded = Excluded()
    simulated: list[int] = []  # requests of each run, tried ones included

    def read() -> Iterable[Arrival]:
        whole = open_trace(trace, Excluded(), spec.context_tokens)
        return sliced(whole, start * 60, float("inf") if minutes is None else minutes * 60)

    try:
        model = load_engine_model(spec.profile or spec.name)
        for _ in open_trace(trace, excluded, spec.context_tokens):
            pass
        case = make_case(spec, model, lambda: scaled(read, scale, seed), predictor=predictor, seed=seed)
        case = replace(case, on_ran=lambda ran: simulated.append(ran.tally.total_arrived))
        started = os.times()
        rows = _run(case, chosen, gpus, Rates(usd_per_gpu_hour, gco2_per_kwh))
        ended = os.times()
    except (TraceError, OSError, ValueError) as error:
        fail(str(error), 2)
    facts, cpu_s = case.facts, ended.user + ended.system - started.user - started.system
    sim = {"cpu_s": cpu_s, "runs": len(simulated), "requests_per_cpu_s": sum(simulated) / cpu_s if cpu_s else None}
    report: dict[str, object] = {
        "trace": {
            "requests": facts.requests, "duration_s": facts.duration_s, "scale": scale,
            "excluded_empty": excluded.empty, "excluded_too_long": excluded.too_long,
        },
        "service": spec.name, "predictor": predictor, "seed": seed, "sim": sim, "policies": rows,
    }  # fmt: skip
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    say(json.dumps(report) if as_json else table(rows))


def _run(case: Case, chosen: tuple[str, ...], gpus: int | None, rates: Rates) -> dict[str, dict[str, object]]:
    from simulator.policies import fewest
    from simulator.registry import policy_of
    from simulator.report import figures

    found: dict[str, Ran] = {}
    if "singlepool" in chosen or gpus is None:
        _note("singlepool: looking for the fewest static instances")
        sized = fewest(case, _note)
        if not sized.kept:
            _note(f"singlepool: not even {sized.instances} instances keep the promise of every class")
        case = replace(case, static_instances=sized.instances)
        found["singlepool"] = sized.ran
        gpus = sized.instances * case.tp if gpus is None else gpus
    assert gpus is not None
    for name in chosen:
        if name not in found:
            _note(f"{name}: running")
            found[name] = policy_of(name).run(case, gpus, _note)
    return {name: figures(found[name], rates) for name in chosen}


def _configured(config: Path, service: str) -> ServiceSpec:
    from gateway.config import to_services
    from gateway.config_file import ConfigError, load_config

    try:
        specs = {spec.name: spec for spec in to_services(load_config(config, dict(os.environ), []))}
    except ConfigError as error:
        fail("\n".join(str(problem) for problem in error.errors), 2)
    if service not in specs:
        fail(f"{config} has no service {service}; it has {', '.join(specs)}", 2)
    if not specs[service].profile:
        fail(f"{config}: service {service} names no profile, so there is nothing to simulate it with", 2)
    return specs[service]


def _note(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201
