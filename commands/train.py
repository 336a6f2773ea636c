"""`joulegate train`: a new length model from answers of known lengths, and its report. Owns options and printing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.output import AsJson, fail, say

if TYPE_CHECKING:
    from predictor.evaluate import Report
    from predictor.model import LengthModel
    from predictor.records import Record


def train(
    files: Annotated[
        list[Path], typer.Argument(help="A run log, JSONL as `predict eval` reads, or a folder of an open set.")
    ],
    out: Annotated[Path, typer.Option(help="Where the model goes.")] = Path("model.json"),
    plot: Annotated[
        Path | None, typer.Option(help="Where the picture of the report goes (SVG). Default: beside the model.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a length model. A quarter of the prompts and three models in ten are held out, and what is said of it is
    measured on those."""
    from msgspec.structs import replace

    from core.clock import SystemClock
    from core.service import Edges
    from predictor.evaluate import evaluate
    from predictor.model import LengthModel, shipped_model
    from predictor.model_file import write_model
    from predictor.plots import report_svg
    from predictor.records import RecordError, read_records
    from predictor.train import TrainError, held_out, split
    from predictor.train import train as fit

    def progress(text: str) -> None:
        print(text, file=sys.stderr)  # noqa: T201

    try:
        records = [record for file in files for record in read_records(file)]
        parts = split(records)
        body = fit(parts.training, progress, {"sources": ", ".join(file.name for file in files)})
        held = held_out(parts)
        if held:
            at_edges = evaluate(held, LengthModel(body), SystemClock().now_s, Edges().output)
            body = replace(body, confusion=at_edges.confusion)
        write_model(out, body)
    except RecordError as error:
        fail(str(error), 2)
    except TrainError as error:
        fail(str(error), 1)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", 2)
    report: dict[str, object] = {"out": str(out), "card": body.card, "held_out": None}
    if held:
        from commands.predict import flat, table

        found = {"at_edges": ("classes by the default edges", at_edges), **_judged(held, LengthModel(body))}
        picture = plot or out.with_suffix(".svg")
        try:
            picture.write_text(report_svg({title: one for title, one in found.values()}))
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}", 2)
        found["shipped"] = (
            "the shipped model, which may have been trained on some of them, by terciles of each model",
            evaluate(held, shipped_model(), SystemClock().now_s),
        )
        report |= {"plot": str(picture)}
        report |= {name: {k: v for k, v in flat(one).items() if k != "edges"} for name, (_, one) in found.items()}
        if not as_json:
            say("\n\n".join(f"held-out prompts and models, {title}:\n{table(one)}" for title, one in found.values()))
    say(json.dumps(report) if as_json else f"wrote {out}")


def _judged(held: list[Record], model: LengthModel) -> dict[str, tuple[str, Report]]:
    from core.clock import SystemClock
    from predictor.evaluate import evaluate
    from predictor.train import as_templates

    now_s = SystemClock().now_s
    return {
        "held_out": ("classes by terciles of each model", evaluate(held, model, now_s)),
        "as_templates": (
            "all models taken for templates of one service, by its terciles",
            evaluate(as_templates(held), model, now_s),
        ),
    }
