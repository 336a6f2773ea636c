"""`joulegate forecast`: how good the load forecasts are on a trace. Owns the options and what is printed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.output import AsJson, fail, say

if TYPE_CHECKING:
    from predictor.load_evaluate import HorizonReport, Score
    from predictor.load_windows import Array
    from simulator.trace import Arrival

MONDAY = "2024-05-13T00:00"  # where a trace that names no day begins
app = typer.Typer(no_args_is_help=True, help="The load forecast.")


@app.callback()
def group() -> None:
    """The load forecast."""


@app.command(name="eval")
def evaluate_trace(
    trace: Annotated[
        Path,
        typer.Argument(
            help="Azure CSV, BurstGPT CSV, Mooncake JSONL, a run log, or hourly totals of a week (CSV).",
            show_default=False,
        ),
    ],
    scale: Annotated[float, typer.Option(help="Copies of the trace; a fraction thins it.")] = 1.0,
    start: Annotated[str, typer.Option(help="Local time at which the trace begins; hourly totals say it.")] = MONDAY,
    week: Annotated[
        Path | None, typer.Option(help="Hourly totals: make up a trace of that shape and of the lengths of TRACE.")
    ] = None,
    column: Annotated[str, typer.Option(help="The column of --week.")] = "requests",
    days: Annotated[float, typer.Option(help="How long the made-up trace is.")] = 14.0,
    warm_up: Annotated[float, typer.Option(help="Hours at the start that are learnt of and not scored.")] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same figures.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Forecast a trace as it comes, 5 s, 5 min and 30 min ahead; say how far off that was, and how often peaks passed
    the upper bound."""
    from predictor.load_evaluate import evaluate
    from simulator.trace import TraceError
    from simulator.trace_totals import is_totals, read_totals, spread

    if not scale > 0 or not math.isfinite(scale) or not days > 0 or not warm_up >= 0:
        fail("--scale and --days must be positive, --warm-up not negative", 2)
    try:
        if is_totals(trace):
            totals = read_totals(trace)
            start_s, counts = totals.start_s, spread(totals, scale, seed)
        else:
            start_s, counts = _local(start), _ticks(_arrivals(trace, scale, seed, week, column, days))
    except (TraceError, OSError, ValueError) as error:
        fail(str(error), 2)
    reports = evaluate(counts, start_s, warm_up * 3600)
    if not any(report.methods["joulegate"].windows for report in reports.values()):
        fail(f"{trace}: too short for a forecast to be judged", 2)
    said = {"ticks": len(counts), "requests": int(counts[:, :, 0].sum()), "horizons": _flat(reports)}
    say(json.dumps(said) if as_json else _table(reports))


def _local(text: str) -> float:
    try:
        at = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        fail(f"--start {text}: must be a date and time such as {MONDAY}", 2)
    return at.replace(second=0, microsecond=0).timestamp()


def _arrivals(trace: Path, scale: float, seed: int, week: Path | None, column: str, days: float) -> Iterable[Arrival]:
    from simulator.trace_formats import open_trace
    from simulator.trace_scale import scaled
    from simulator.trace_synthetic import fit, generate, read_week

    real: Iterator[Arrival] = scaled(lambda: open_trace(trace), scale, seed)
    return real if week is None else generate(fit(real, read_week(week, column)), days * 86_400, seed)


def _ticks(arrivals: Iterable[Arrival]) -> Array:
    """Counts of every 5 s, (ticks, 9, 3). The last tick, which the trace may end within, is left out."""
    import numpy as np

    from core.service import CLASSES, Edges
    from predictor.load_evaluate import TICK_S

    edges, places = Edges(), {name: place for place, name in enumerate(CLASSES)}
    rows: list[list[list[float]]] = []
    for arrival in arrivals:
        while len(rows) <= arrival.at_s / TICK_S:
            rows.append([[0.0] * 3 for _ in CLASSES])
        asked, answered = edges.input_size(arrival.input_tokens), edges.output_size(arrival.output_tokens)
        cell = rows[int(arrival.at_s / TICK_S)][places[asked + answered]]
        cell[0] += 1
        cell[1] += arrival.input_tokens
        cell[2] += arrival.output_tokens
    return np.array(rows[:-1]).reshape(-1, len(CLASSES), 3)


def _flat(reports: dict[float, HorizonReport]) -> dict[str, object]:
    """The keys of the command's JSON: joulegate's own figures at the top of each horizon."""
    import msgspec

    from core.service import CLASSES

    return {
        f"{horizon_s:g}": {
            **msgspec.to_builtins(report.methods["joulegate"]),
            "quantities": msgspec.to_builtins(report.quantities),
            "class_peak_coverage": dict(zip(CLASSES, report.classes, strict=True)),
            "baselines": {m: msgspec.to_builtins(s) for m, s in report.methods.items() if m != "joulegate"},
        }
        for horizon_s, report in reports.items()
    }


def _table(reports: dict[float, HorizonReport]) -> str:
    head = (
        f"{'horizon':>8} {'forecast':12}{'windows':>9}{'MAPE':>8}{'WAPE':>8}"
        f"{'peaks 95':>10}{'x':>7}{'peaks 99':>10}{'x':>7}"
    )
    rows = [
        _row(f"{horizon_s:g} s", name, score)
        for horizon_s, report in reports.items()
        for name, score in (
            *report.methods.items(),
            *((name.replace("_", " "), s) for name, s in report.quantities.items() if name != "requests"),
        )
    ]
    note = "requests of all classes; peaks: windows whose busiest minute stayed within the bound; x: bound over load"
    return "\n".join([head, *rows, note, "input tokens, output tokens: joulegate's forecasts of these"])


def _row(horizon: str, name: str, score: Score) -> str:
    def cell(value: float | None, width: int, form: str) -> str:
        return f"{'-' if value is None else format(value, form):>{width}}"

    return (
        f"{horizon:>8} {name:12}{score.windows:>9}{cell(score.mape, 8, '.1%')}{cell(score.wape, 8, '.1%')}"
        f"{cell(score.peak_coverage, 10, '.1%')}{cell(score.head_room, 7, '.2f')}"
        f"{cell(score.peak_coverage_99, 10, '.1%')}{cell(score.head_room_99, 7, '.2f')}"
    )
