"""`joulegate plan`: the least-energy instances for a load, and what holds them back. Owns the options and the print."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.output import AsJson, fail, say
from core.service import Edges, Slo

if TYPE_CHECKING:
    from controller.loads import Mix
    from controller.problem import Plan, Problem
    from profiles.engine_model import EngineModel

POOLS = {"short": ("S",), "medium": ("M",), "long": ("L",)}
# Class, share of requests, mean prompt and answer tokens: Azure LLM inference trace 2023, conversation (Microsoft,
# CC-BY 4.0), by the default edges.
CONVERSATION = (
    ("SS", 0.0365, 181, 56), ("MS", 0.1957, 447, 79), ("LS", 0.1520, 2982, 62),
    ("SM", 0.0973, 168, 171), ("MM", 0.0985, 455, 123), ("LM", 0.0865, 2150, 153),
    ("SL", 0.0005, 181, 766), ("ML", 0.0795, 986, 421), ("LL", 0.2535, 1112, 428),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan and the seconds it took."""

    plan: Plan
    seconds: float


def plan(
    service: Annotated[str, typer.Option(help="A shipped service, for example llama-2-70b.", show_default=False)],
    gpus: Annotated[int, typer.Option(help="GPUs there are.", show_default=False)],
    load: Annotated[Path | None, typer.Option(help="Trace whose mean rate and lengths are the load.")] = None,
    rps: Annotated[float | None, typer.Option(help="Requests/s; without --load of the conversation mix.")] = None,
    head_room: Annotated[float, typer.Option(help="Share added to every demand.")] = 0.0,
    time_limit: Annotated[float, typer.Option(help="Seconds for the solver.")] = 1.0,
    gap: Annotated[float, typer.Option(help="Ends the search this near to the best: a share of the cost.")] = 0.001,
    gpu: Annotated[str, typer.Option(help="h100, h200 or a100.")] = "h100",
    node_gpus: Annotated[int, typer.Option(help="GPUs of one machine; TP groups stay inside.")] = 8,
    horizon: Annotated[float, typer.Option(help="Seconds that the plan is for.")] = 1800.0,
    eta: Annotated[float, typer.Option(help="1 counts joules alone, 0 latency alone.")] = 1.0,
    floor: Annotated[int, typer.Option(help="Instances ready whatever the load.")] = 0,
    spare: Annotated[bool, typer.Option("--spare", help="The load must fit without the largest instance.")] = False,
    power_cap: Annotated[float | None, typer.Option(help="Watts that all instances may draw at most.")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan counts, tensor parallelism and clocks for a load. Watts are modelled. Exit status 1: not all of it fits."""
    from profiles.engine_model import load_engine_model
    from simulator.trace import TraceError

    if load is None and rps is None:
        fail("say what to plan for: --load FILE, --rps X, or both", 2)
    for name, value in (("--gpus", gpus), ("--node-gpus", node_gpus), ("--time-limit", time_limit), ("--rps", rps)):
        if value is not None and not 0 < value < math.inf:
            fail(f"{name} must be more than 0", 2)
    if head_room < 0 or floor < 0 or not 0 <= gap < 1:
        fail("--head-room and --floor must not be negative, --gap from 0 to below 1", 2)
    try:
        mixes = _mixes(load, rps, head_room)
        problem = replace(
            _problem(service, load_engine_model(service, gpu), mixes, gpus, node_gpus),
            horizon_s=horizon, eta=eta, power_cap_w=math.inf if power_cap is None else power_cap,
            floors=((service, floor),) if floor else (), spare=frozenset({service} if spare else ()),
        )  # fmt: skip
    except (TraceError, OSError, ValueError) as error:
        fail(str(error), 2)
    report = _report(problem, time_limit, gap)
    say(json.dumps(report) if as_json else _table(report))
    if report["shed"]:
        fail("not all of the load fits", 1)


def _mixes(load: Path | None, rps: float | None, head_room: float) -> dict[str, Mix]:
    from controller.loads import Load, mixes, rate, scaled
    from simulator.trace_formats import open_trace

    slo, edges = Slo(), Edges()
    if load is not None:
        arrivals = list(open_trace(load))
        if not arrivals:
            fail(f"{load} has no request", 2)
        lengths = [(one.input_tokens, one.output_tokens) for one in arrivals]
        found = mixes(lengths, max(1.0, arrivals[-1].at_s), edges, slo, POOLS)
    else:
        found = {
            pool: tuple(
                Load(name, share, prompt, answer, slo.ttft_s[name[0]])
                for name, share, prompt, answer in CONVERSATION
                if name[1] in sizes
            )
            for pool, sizes in POOLS.items()
        }
    whole = sum(rate(mix) for mix in found.values())
    times = (rps / whole if rps is not None else 1.0) * (1 + head_room)
    return {pool: scaled(mix, times) for pool, mix in found.items()}


def _problem(service: str, model: EngineModel, mixes: dict[str, Mix], gpus: int, node_gpus: int) -> Problem:
    from controller.loads import rate
    from controller.pricing import columns_of, sequence_w
    from controller.problem import Demand, NodeShape, Problem
    from simulator.cluster import costs_of

    slo = Slo()
    nodes, rest = divmod(gpus, node_gpus)
    shapes = (NodeShape(model.gpu, node_gpus, nodes), NodeShape(model.gpu, rest))
    return Problem(
        columns=columns_of(service, list(mixes.items()), model, slo.tbt_s, costs_of(model, slo.tbt_s).step_tokens),
        demands=tuple(Demand(service, pool, rate(mix)) for pool, mix in mixes.items()),
        nodes=tuple(shape for shape in shapes if shape.count and shape.gpus),
        latency_w=sequence_w(model),
    )


def _report(problem: Problem, time_limit: float, gap: float) -> dict[str, Any]:
    """Solves in a worker process, as the gateway does: HiGHS prints to stdout what it likes."""
    import asyncio

    from controller.dynamic import first_plan
    from controller.problem import Problem
    from controller.solve_worker import SolveLost, SolveWorker

    with asyncio.Runner() as runner:
        worker = SolveWorker()

        def solve(asked: Problem, start: Plan | None = None) -> Plan:
            try:
                return runner.run(worker.solve(asked, time_s=time_limit, gap=gap, start=start))
            except SolveLost as error:
                return replace(start or first_plan(asked), status=str(error))

        try:
            solve(Problem((), (), ()))  # the child's imports are not the plan's time
            return _answer(problem, solve)
        finally:
            runner.run(worker.close())


def _answer(problem: Problem, solve: Callable[..., Plan]) -> dict[str, Any]:
    from controller.binding import binding, more_load
    from controller.dynamic import first_plan

    first = _timed(partial(first_plan, problem))
    best = _timed(partial(solve, problem, first.plan))
    found = best.plan
    more = more_load(problem, solve)
    bound = replace(first.plan, bound_w=found.bound_w)
    return {
        "status": found.status,
        "source": found.source,
        "expected_w": found.expected_w,
        "energy_quality": "modelled",
        "gpus": sum(group.gpus for group in found.groups),
        "groups": [
            {
                "service": g.column.kind.service, "pool": g.column.kind.pool, "gpu": g.column.kind.gpu,
                "tp": g.column.kind.tp, "clock_mhz": g.column.clock_mhz, "instances": g.count, "gpus": g.gpus,
                "level": g.column.level, "slots": g.column.slots, "rps_each": g.column.rps,
                "watts_each": g.column.watts,
            }
            for g in found.groups
        ],
        "merges": [
            {"pool": flow.pool, "to": flow.to.kind.pool, "rps": flow.rps}
            for flow in found.flows
            if flow.pool != flow.to.kind.pool
        ],
        "demand": {demand.pool: demand.rps for demand in problem.demands},
        "shed": {pool: rps for _, pool, rps in found.shed},
        "gap": _known(found.gap),
        "solve_s": best.seconds,
        "fallback_s": first.seconds,
        "fallback_gap": _known(bound.gap),
        "fallback_w": first.plan.expected_w,
        "binding": [
            {"limit": one.limit, "text": one.text, "saves_w": one.saves_w, "serves_rps": one.serves_rps}
            for one in binding(problem, found, solve)
        ],
        "with_10_percent_more_load": {
            "expected_w": more.expected_w, "gpus": sum(g.gpus for g in more.groups),
            "shed": {pool: rps for _, pool, rps in more.shed},
        },
    }  # fmt: skip


def _timed(answer: Callable[[], Plan]) -> Timed:
    from core.clock import SystemClock

    clock = SystemClock()
    started_s = clock.now_s()
    found = answer()
    return Timed(found, clock.now_s() - started_s)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _table(report: dict[str, Any]) -> str:
    lines = [f"{'pool':8} {'instances':>9} {'TP':>3} {'MHz':>5} {'GPUs':>5} {'rps each':>9} {'W each':>7} {'level':>6}"]
    for g in report["groups"]:
        lines.append(
            f"{g['pool']:8} {g['instances']:9} {g['tp']:3} {g['clock_mhz']:5} {g['gpus']:5} {g['rps_each']:9.3g}"
            f" {g['watts_each']:7.0f} {g['level']:6.3g}"
        )
    gap = "not known" if report["gap"] is None else f"{report['gap']:.2%}"
    lines.append(f"{report['expected_w']:.0f} W (modelled) on {report['gpus']} GPUs; {report['status']}, gap {gap}")
    lines += [f"{m['rps']:.3g} requests/s of {m['pool']} go to {m['to']}" for m in report["merges"]]
    lines += [f"no room for {rps:.3g} requests/s of {pool}" for pool, rps in report["shed"].items()]
    for one in report["binding"]:
        more = f", {one['serves_rps']:.3g} requests/s more" if one["serves_rps"] > 0 else ""
        lines.append(f"binds: {one['limit']}; {one['text']} {one['saves_w']:.0f} W less{more}")
    heavier = report["with_10_percent_more_load"]
    unserved = f", {sum(heavier['shed'].values()):.3g} requests/s shed" if heavier["shed"] else ""
    lines.append(f"10 % more load: {heavier['expected_w']:.0f} W on {heavier['gpus']} GPUs{unserved}")
    lines.append(f"solved in {report['solve_s'] * 1e3:.0f} ms; without the solver {report['fallback_w']:.0f} W in "
                 f"{report['fallback_s'] * 1e3:.0f} ms")  # fmt: skip
    return "\n".join(lines)
