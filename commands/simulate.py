"""`joulegate simulate`: what each policy would spend on a trace. Owns the options and what is printed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.output import AsJson, fail, say

if TYPE_CHECKING:
    from core.service import ServiceSpec
    from simulator.compare import Plan
    from simulator.experiment import Experiment
    from simulator.load import TraceLoad, TraceRows


def simulate(
    trace: Annotated[
        Path, typer.Argument(help="Azure CSV, BurstGPT CSV, Mooncake JSONL or a run log.", show_default=False)
    ],
    service: Annotated[str, typer.Option(help="A shipped service, or one of --config.", show_default=False)],
    gpus: Annotated[int | None, typer.Option(help="GPUs of the cluster. Default: what singlepool needs.")] = None,
    scale: Annotated[float, typer.Option(help="Copies of the trace; a fraction thins it.")] = 1.0,
    policies: Annotated[str, typer.Option(help="Which, separated by commas, or all.")] = "all",
    config: Annotated[Path | None, typer.Option(help="YAML configuration whose pools joulegate holds.")] = None,
    predictor: Annotated[str, typer.Option(help="oracle, live, model, none, long, or an accuracy.")] = "0.81",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another promise, cost or size.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="KEY=V1,V2,...", help="One comparison per value of a key of --set.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.")] = 0,
    seeds: Annotated[int, typer.Option(help="Repeats, with this many seeds from --seed on: means and intervals.")] = 1,
    start: Annotated[float, typer.Option(help="Minutes of the trace to skip.")] = 0.0,
    minutes: Annotated[float | None, typer.Option(help="Minutes of the trace to take. Default: all.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes. Default: one per core.")] = None,
    bound: Annotated[bool, typer.Option(help="Compute what nobody can spend less than.")] = True,
    usd_per_gpu_hour: Annotated[float, typer.Option(help="Default: from DynamoLLM's saving.")] = 11.06,
    usd_per_kwh: Annotated[float, typer.Option(help="Default: CAISO's mean price of 2024.")] = 0.0407,
    gco2_per_kwh: Annotated[float, typer.Option(help="Default: CAISO's mean intensity of 2022.")] = 240.9,
    out: Annotated[Path | None, typer.Option(help="Folder for report.json, report.html and pictures.")] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a trace on emulated engines with the router, queue and controller that serve. Energy is modelled."""
    from simulator.compare import Plan
    from simulator.document import summary
    from simulator.load import TraceLoad, read_rows
    from simulator.report import Rates
    from simulator.report_files import write
    from simulator.trace import TraceError
    from simulator.whatif import apply_all

    if seeds < 1 or (jobs is not None and jobs < 1):
        fail("--seeds and --jobs must be positive", 2)
    if start < 0 or (minutes is not None and not minutes > 0):
        fail("--minutes must be positive, --start not negative", 2)
    plan = Plan(
        _chosen(policies), tuple(range(seed, seed + seeds)), Rates(usd_per_gpu_hour, usd_per_kwh, gco2_per_kwh),
        jobs or os.cpu_count() or 1, sampled=out is not None, bound=bound,
    )  # fmt: skip
    flags = [f"scale={scale:g}", f"predictor={predictor}", *([] if gpus is None else [f"gpus={gpus}"])]
    load = TraceLoad(trace, start * 60, float("inf") if minutes is None else minutes * 60)
    try:
        base = apply_all(_experiment(service, config, load), [*flags, *(settings or ())])
        labels, experiments = _swept(base, sweep)
        rows = read_rows(trace, max(one.spec.context_tokens for one in experiments))
        reports, timelines, sim = _run(experiments, rows, plan)
    except (TraceError, OSError, ValueError) as error:
        fail(str(error), 2)
    found: dict[str, Any]
    if labels is None:
        found, titles = {**reports[0], "sim": sim}, [""]
    else:
        key = (sweep or "").partition("=")[0].strip()
        found = {"sweep": key, "values": dict(zip(labels, reports, strict=True)), "sim": sim}
        titles = [f"{key} = {label}" for label in labels]
    titled = dict(zip(titles, reports, strict=True))
    if out is not None:
        write(out, found, titled, dict(zip(titles, timelines, strict=True)))
    say(json.dumps(found) if as_json else "\n\n".join(summary(title, one) for title, one in titled.items()))


def _run(
    experiments: list[Experiment], rows: TraceRows, plan: Plan
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Reports, timelines by policy, and what it took."""
    from commands.progress import Bar
    from simulator.compare import compare
    from simulator.document import document, sim

    with Bar() as bar:
        compared = compare(experiments, rows, plan, bar.note, bar.done)
    reports = [document(one, plan, rows) for one in compared]
    return reports, [one.timelines for one in compared], {**sim(compared), "jobs": plan.jobs}


def _chosen(policies: str) -> tuple[str, ...]:
    from simulator.registry import POLICIES

    names = tuple(policy.name for policy in POLICIES)
    chosen = names if policies == "all" else tuple(dict.fromkeys(name.strip() for name in policies.split(",")))
    if unknown := [name for name in chosen if name not in names]:
        fail(f"unknown policy {', '.join(unknown)}; known: {', '.join(names)}", 2)
    return chosen


def _swept(base: Experiment, sweep: str | None) -> tuple[list[str] | None, list[Experiment]]:
    from simulator.whatif import change, swept

    if sweep is None:
        return None, [base]
    key, values = swept(sweep)
    return values, [change(base, key, value) for value in values]


def _experiment(service: str, config: Path | None, load: TraceLoad) -> Experiment:
    from simulator.case import shipped_service
    from simulator.experiment import Experiment

    spec = shipped_service(service) if config is None else _configured(config, service)
    return Experiment(spec, load)


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
