"""`joulegate train`: a new length model from answers of known lengths, and its report. Owns options and printing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from commands.output import AsJson, fail, say


def train(
    files: Annotated[
        list[Path], typer.Argument(help="A run log, JSONL as `predict eval` reads, or a folder of an open set.")
    ],
    out: Annotated[Path, typer.Option(help="Where the model goes.")] = Path("model.json"),
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
    from predictor.records import RecordError, read_records
    from predictor.train import TrainError, held_out, split
    from predictor.train import train as fit

    try:
        import sklearn  # noqa: F401
    except ImportError:
        fail("training needs scikit-learn: pip install scikit-learn", 1)

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

        scores = evaluate(held, LengthModel(body), SystemClock().now_s)
        shipped = evaluate(held, shipped_model(), SystemClock().now_s)
        report["held_out"] = {key: value for key, value in flat(scores).items() if key != "edges"}
        report["shipped"] = {key: value for key, value in flat(shipped).items() if key != "edges"}
        if not as_json:
            say("on prompts and models held out, classes by terciles of each model:\n" + table(scores))
            say("the shipped model on the same answers (it may have been trained on some of them):\n" + table(shipped))
    say(json.dumps(report) if as_json else f"wrote {out}")
