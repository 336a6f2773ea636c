"""`joulegate profile import`: published runs as a profile. Owns the options; reading is profiles/importers_*.py's."""

from __future__ import annotations

import json
import math
import shlex
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.output import AsJson, fail, say
from commands.profile_shared import about

if TYPE_CHECKING:
    from profiles.importers import Imported


class Format(StrEnum):
    MLENERGY = "mlenergy"
    VLLM_BENCH = "vllm-bench"


def import_(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The results; for vllm-bench also a folder of them.")],
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="mlenergy: leaderboard JSON or its CSV of runs. vllm-bench: vllm bench serve --save-result.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The profile to write, NAME.profile.csv.")],
    model: Annotated[str, typer.Option(help="Only runs of this model (its id, or the id's last part).")] = "",
    gpu: Annotated[str, typer.Option(help="mlenergy: only runs on it. vllm-bench: the GPU it ran on (needed).")] = "",
    task: Annotated[str, typer.Option(help="mlenergy: only this task, e.g. lm-arena-chat.")] = "",
    precision: Annotated[str, typer.Option(help="mlenergy: only this weight precision, e.g. bfloat16.")] = "",
    gpus: Annotated[int, typer.Option(help="mlenergy: only runs on so many GPUs.")] = 0,
    tensor_parallel: Annotated[int, typer.Option(help="mlenergy: only this tensor parallelism.")] = 0,
    expert_parallel: Annotated[int, typer.Option(help="mlenergy: only this expert parallelism.")] = 0,
    tp: Annotated[int, typer.Option(help="vllm-bench: GPUs of the instance.")] = 1,
    clock_mhz: Annotated[
        int | None, typer.Option("--clock-mhz", help="GPU clock of the runs; default: the card's highest.")
    ] = None,
    watts: Annotated[
        float | None, typer.Option(help="vllm-bench: mean watts of the whole instance in the run, if you know them.")
    ] = None,
    load: Annotated[str, typer.Option(help="Name of the load, e.g. LL; default: the task, or the lengths.")] = "",
    engine_version: Annotated[str, typer.Option(help="vllm-bench: version of the engine.")] = "unknown",
    as_json: AsJson = False,
) -> None:
    """Turn published or benchmarked runs into a profile.

    What a source does not tell stays empty in the profile, and a query that needs it says so. Nothing is guessed.

    Examples:

    joulegate profile import v3_llm_runs.csv --format mlenergy --model Llama-3.1-70B-Instruct --gpu H100 --out
    l70b.profile.csv

    joulegate profile import results/ --format vllm-bench --gpu H100 --tp 4 --watts 1800 --load LL --out
    mine.profile.csv
    """
    from profiles.importers import ImportFailed
    from profiles.importers_mlenergy import Filters, import_mlenergy
    from profiles.importers_vllm import Setup, import_vllm_bench
    from profiles.profile import UNKNOWN
    from profiles.profile_checks import LOAD
    from profiles.profile_file import ProfileError, save_profile

    if load and not LOAD.fullmatch(load):
        fail(f"--load must be 1 to 64 letters, digits or _ . : / + = -, not {load!r}", 2)
    if (watts is not None and not (math.isfinite(watts) and watts > 0)) or (clock_mhz is not None and clock_mhz < 0):
        fail("--watts must be more than 0 and --clock-mhz at least 0", 2)
    if format_ is Format.VLLM_BENCH and (not gpu or tp < 1):
        fail("a result of vllm bench serve does not say where it ran: give --gpu and --tp", 2)
    today, command = datetime.now(UTC).date(), shlex.join(["joulegate", *sys.argv[1:]])
    try:
        if format_ is Format.MLENERGY:
            filters = Filters(model, gpu, task, precision, gpus, tensor_parallel, expert_parallel)
            made = import_mlenergy(path, filters, today, command, clock_mhz, load)
        else:
            setup = Setup(gpu, tp, clock_mhz, UNKNOWN if watts is None else watts, engine_version, load, model)
            made = import_vllm_bench(path, setup, today, command)
        save_profile(made.profile, out)
    except ImportFailed as error:
        fail(error.message, 2)
    except ProfileError as error:
        fail(str(error), 2)
    except OSError as error:
        fail(f"{out}: cannot be written: {error.strerror or error}", 2)
    _tell(made, out, as_json)


def _tell(made: Imported, out: Path, as_json: bool) -> None:
    points = made.profile.points
    if as_json:
        cells = len({point.cell for point in points})
        say(json.dumps({"profile": about(made.profile), "file": str(out), "cells": cells, "notes": list(made.notes)}))
        return
    loads = ", ".join(dict.fromkeys(point.load for point in points))
    say(f"{out}: {len(points)} points of {made.profile.model} on {made.profile.gpu} ({loads})")
    for note in made.notes:
        say(f"- {note}")
