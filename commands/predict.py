"""`joulegate predict`: how good the length predictor is. Owns the options and what is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.output import AsJson, fail, say

if TYPE_CHECKING:
    from predictor.drift import Drift
    from predictor.evaluate import Report
    from predictor.model import LengthModel
    from predictor.records import Record
    from predictor.scores import Scores

app = typer.Typer(no_args_is_help=True, help="The length predictor.")


@app.callback()
def group() -> None:
    """The length predictor."""


@app.command(name="eval")
def evaluate_file(
    file: Annotated[Path, typer.Argument(help="JSONL: prompt or messages, output_tokens; in time order.")],
    model: Annotated[Path | None, typer.Option(help="Model file. Default: the shipped one.")] = None,
    edges: Annotated[str, typer.Option(help="Output edges as S,M in tokens, or terciles of the file.")] = "terciles",
    confidence: Annotated[
        float | None, typer.Option(help="The smallest class that holds the answer so surely. Default: the likeliest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how good the length predictor is on a file: it predicts each answer, then learns of it."""
    from core.clock import SystemClock
    from predictor.evaluate import evaluate

    fixed = _edges(edges)
    if confidence is not None and not 0 < confidence < 1:
        fail("--confidence must lie between 0 and 1", 2)
    arrays, records = _read([file], model)
    if not records:
        fail(f"{file}: no answers in it", 2)
    report = evaluate(records, arrays, SystemClock().now_s, fixed, confidence)
    say(json.dumps(flat(report)) if as_json else table(report))


@app.command(name="drift")
def drift_of_files(
    files: Annotated[list[Path], typer.Argument(help="As `train` reads them, of two services or more.")],
    model: Annotated[Path | None, typer.Option(help="Model file. Default: the shipped one.")] = None,
    edges: Annotated[str, typer.Option(help="Output edges as S,M in tokens.")] = "100,350",
    pairs: Annotated[int, typer.Option(min=1, help="How many services change, each way.")] = 8,
    held_out: Annotated[bool, typer.Option("--held-out", help="Only what `joulegate train` holds out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say how far q90 keeps its promise when a service's answers become another's, short ones long and back."""
    import msgspec

    from core.service import Edges
    from predictor.drift import drifts

    fixed = _edges(edges)
    if fixed is None:
        fail("--edges: must be two numbers, for services change in the middle", 2)
    arrays, records = _read(files, model)
    if held_out:
        from predictor.train import held_out as kept
        from predictor.train import split

        records = kept(split(records))
    try:
        found = dict(zip(("to_long", "to_short"), drifts(records, arrays, Edges(output=fixed), pairs), strict=True))
    except ValueError as error:
        fail(str(error), 2)
    say(json.dumps(msgspec.to_builtins(found)) if as_json else "\n".join(map(_drift_lines, found, found.values())))


def _drift_lines(name: str, found: list[Drift]) -> str:
    lines = [f"{name.replace('_', ' ')}: {len(found)} services, {sum(one.answers for one in found)} answers"]
    parts = {
        "before": "before the change",
        "soon": "the first 50 after it",
        "later": "the next 150",
        "after": "all after it",
        "whole": "before and after",
    }
    for part, title in parts.items():
        shares = [share for one in found if (share := getattr(one.covered, part)) is not None]
        if shares:
            mean = sum(shares) / len(shares)
            lines.append(f"  {title:22} q90 covers {mean:.3f} ({min(shares):.3f} to {max(shares):.3f})")
    return "\n".join(lines)


def _read(files: list[Path], model: Path | None) -> tuple[LengthModel, list[Record]]:
    from predictor.model import LengthModel
    from predictor.model_file import SHIPPED, ModelFileError, read_model
    from predictor.records import RecordError, read_records

    try:
        return LengthModel(read_model(model or SHIPPED)), [record for file in files for record in read_records(file)]
    except (ModelFileError, RecordError) as error:
        fail(str(error), 2)
    except OSError as error:
        fail(f"cannot read {error.filename}: {error.strerror}", 2)


def _edges(text: str) -> tuple[int, int] | None:
    if text == "terciles":
        return None
    try:
        small, medium = (int(part) for part in text.split(","))
    except ValueError:
        fail(f"--edges {text}: must be two numbers such as 100,350, or terciles", 2)
    if not 0 < small < medium:
        fail(f"--edges {text}: must be positive and rise", 2)
    return small, medium


def flat(report: Report) -> dict[str, object]:
    """The keys of the command's JSON; those without history stand at the top."""
    import msgspec

    plain, history = msgspec.to_builtins(report.without_history), msgspec.to_builtins(report.with_history)
    baselines = msgspec.to_builtins(report.baselines)
    majority = baselines["majority"]["accuracy"]
    return {
        "n": report.n,
        **plain,
        "majority_accuracy": majority,
        "p50_ms": report.p50_ms,
        "p99_ms": report.p99_ms,
        "with_history": {
            "n": report.n,
            **history,
            "majority_accuracy": majority,
            "routing": msgspec.to_builtins(report.routing),
            "services": msgspec.to_builtins(report.services),
            "below_limit": msgspec.to_builtins(report.below_limit),
            "reliability": msgspec.to_builtins(report.reliability),
            "confusion": report.confusion,
            "while_generating": msgspec.to_builtins(report.while_generating),
            "p50_ms": report.history_p50_ms,
            "p99_ms": report.history_p99_ms,
            "baselines": msgspec.to_builtins(report.baselines_with_history),
        },
        "baselines": baselines,
        "edges": report.edges,
    }


def table(report: Report) -> str:
    rows = {
        "model": report.without_history,
        "model with history": report.with_history,
        **report.baselines,
        **report.baselines_with_history,
        **{f"routed at {level}": scores for level, scores in report.routing.items()},
    }
    head = f"{'':20}{'accuracy':>10}{'macro-F1':>10}{'under':>8}{'q90 covers':>12}{'pinball90':>11}{'Spearman':>10}"
    lines = [head, *(_row(name, scores) for name, scores in rows.items())]
    took = f"{report.p50_ms * 1000:.0f} us at p50, {report.p99_ms * 1000:.0f} us at p99"
    return "\n".join(
        [f"{report.n} answers", *lines, f"a prediction without history takes {took}", *_calibration(report)]
    )


def _calibration(report: Report) -> list[str]:
    """What else is said with history, and how far it holds."""
    lines = []
    if (by := report.services) is not None:
        lines.append(
            f"q90 covers, of {by.services} services: least {by.least:.3f}, median {by.median:.3f}, most {by.most:.3f}; "
            f"within 0.88 to 0.92: {by.within_two_points:.0%}"
        )
    if (free := report.below_limit) is not None and free.n < report.n:
        lines.append(f"of {free.n} answers whose q90 is below their limit it covers {free.q90_coverage:.3f}")
    for rest in report.while_generating:
        lines.append(
            f"of {rest.n} answers beyond {rest.at}: {rest.q50_held:.3f} within its q50 of then, "
            f"{rest.q90_held:.3f} within its q90"
        )
    came = "  ".join(f"{one.said:.2f}: {one.came_true:.2f}" for one in report.reliability)
    return [*lines, f"a size said to be so likely came so often: {came}"]


def _row(name: str, scores: Scores) -> str:
    def cell(value: float | None, width: int, digits: int = 3) -> str:
        return f"{'-' if value is None else format(value, f'.{digits}f'):>{width}}"

    return (
        f"{name.replace('_', ' '):20}{cell(scores.accuracy, 10)}{cell(scores.macro_f1, 10)}{cell(scores.under_rate, 8)}"
        f"{cell(scores.q90_coverage, 12)}{cell(scores.pinball90_tokens, 11, 1)}{cell(scores.spearman, 10)}"
    )
