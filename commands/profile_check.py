"""`joulegate profile check`: how far the engine models are from published measurements. Owns the printing and the exit
status; the comparison is profiles/check.py's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.output import AsJson, fail, say

if TYPE_CHECKING:
    from profiles.check import Report

FIT_RULE = (
    "Fit set: ML.ENERGY v3 rows of the model's own name and base task with a power-of-two batch cap; aiconfigurator's "
    "vLLM rows on H100 in the model's precision at the shape with most prompt per answer; splitwise-sim rows of one "
    "sequence, 128 output tokens and a prompt of 2^odd tokens; ML.ENERGY v2 rows of Llama-3.1-8B with a power-of-two "
    "cap; classes SL, MM and L* of the H100 grid; Fig. 3 at 512, 2,048 and 8,192 tokens; the A800's TP1 rows. Every "
    "other row is in the check set, and no check row takes part in a fit."
)


def check(
    data: Annotated[
        Path, typer.Option("--data", help="Folder with the published data files: mlenergy/, aiconfigurator/, ...")
    ] = Path("../shared/data"),
    out: Annotated[Path | None, typer.Option("--out", help="Also write plots and check.json into this folder.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit status 1 when an aim is missed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare every engine model with the published points it was not fitted on.

    Prints the relative error by quantity with its aim, hit or missed. A miss is a result: the exit status stays 0
    unless --strict is given. A quantity whose data file is missing is named and left out.
    """
    if not data.is_dir():
        fail(f"{data} is not a folder: name the folder of the published data with --data", 2)
    from profiles.check import check_models

    try:
        report = check_models(data)
    except UnicodeDecodeError as error:
        # Its repr holds the whole file.
        fail(f"a file under {data} is no text in UTF-8 (byte {error.start})", 2)
    except OSError as error:
        fail(f"a file under {data} cannot be read: {error}", 2)
    except (KeyError, ValueError) as error:
        fail(f"a file under {data} is not as published: {error!r}", 2)
    answer = as_object(report)
    if out is not None:
        from profiles.check_plots import draw_all

        try:
            answer["files"] = [str(path) for path in draw_all(report.comparisons, data, out)]
            (out / "check.json").write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            fail(f"--out {out}: {error.strerror or error}", 2)
    say(json.dumps(answer) if as_json else as_text(report, answer))
    if strict and report.missed:
        fail(f"{len(report.missed)} of {len(report.errors)} quantities miss their aim", 1)


def as_object(report: Report) -> dict[str, Any]:
    return {
        "quantities": {
            error.quantity.name: {
                "n": error.n,
                "median_error": round(error.median_error, 5),
                "p90_error": round(error.p90_error, 5),
                "aim": error.quantity.aim,
                "within_aim": error.within_aim,
                "note": error.quantity.note,
            }
            for error in report.errors
        },
        "left_out": dict(report.left_out),
        "constants": {
            "rederived": len(report.constants),
            "drifted": {c.name: {"typed": c.typed, "refit": round(c.refit, 5)} for c in report.drifted},
        },
        "fit_rule": FIT_RULE,
    }


def as_text(report: Report, answer: dict[str, Any]) -> str:
    width = max((len(error.quantity.name) for error in report.errors), default=8)
    lines = [f"{'relative error of':<{width}}    n  median     p90    aim"]
    for error in report.errors:
        verdict = "hit" if error.within_aim else f"MISS  {error.quantity.note}".rstrip()
        figures = f"{error.n:4d}  {error.median_error:6.1%}  {error.p90_error:6.1%}  {error.quantity.aim:5.0%}"
        lines.append(f"{error.quantity.name:<{width}} {figures}  {verdict}")
    lines += [f"left out: {name}: {why}" for name, why in report.left_out]
    lines.append(f"{len(report.missed)} of {len(report.errors)} quantities miss their aim.")
    drifted = "".join(f"\n  {c.name}: typed {c.typed:g}, re-derived {c.refit:.5g}" for c in report.drifted)
    lines.append(
        f"{len(report.constants)} constants re-derived from the fit set, {len(report.drifted)} differ.{drifted}"
    )
    lines.append(FIT_RULE)
    lines += [f"wrote {path}" for path in answer.get("files", ())]
    return "\n".join(lines)
