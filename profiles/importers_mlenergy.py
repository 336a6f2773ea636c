"""ML.ENERGY leaderboard results as a profile: the leaderboard's JSON (one model and task a file) or its CSV of runs.

The runs are closed loops at the default clock: so many sequences are kept running, and the load is what got done. TTFT,
prompt lengths and the engine's KV use are not published. Watts are the whole instance. Fields: reference of ML.ENERGY's
leaderboard, v3 (vLLM 0.11.1).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from profiles.importers import (
    Imported,
    ImportFailed,
    clock_of,
    load_name,
    needed,
    number,
    profile_of,
    read_json,
    read_text,
    whole,
)
from profiles.profile import UNKNOWN, Point, Provenance

STARVED = 0.95  # of max_num_seqs: a mean batch below it was held down by KV room, so requests waited


@dataclass(frozen=True, slots=True)
class Filters:
    """Which runs of a file. Empty takes all; what is left must be one model on one GPU."""

    model: str = ""
    gpu: str = ""
    task: str = ""
    precision: str = ""
    gpus: int = 0
    tensor_parallel: int = 0
    expert_parallel: int = 0


def import_mlenergy(
    path: Path, filters: Filters, today: date, command: str, clock_mhz: int | None = None, load: str = ""
) -> Imported:
    """Raises ImportFailed and nothing else."""
    runs = _chosen(_runs(path), filters, str(path))
    model, gpu, precision = _one(runs, str(path))
    clock = clock_of(gpu, clock_mhz, str(path))
    points = _saturation([_point(run, clock, load, f"{path}: run {run['n']}") for run in runs])
    notes = [
        "clocks were not locked: the rows stand at the card's highest clock",
        "closed loop: the offered load is the completed one; TTFT, prompt lengths and KV use are not published",
    ]
    if any(point.saturated for point in points):
        notes.append(f"saturated: a mean batch under {STARVED:g} of max_num_seqs, or no more output than a smaller one")
    provenance = Provenance(
        origin="measured",
        made_on=today.isoformat(),
        command=command,
        energy_counter="published",
        steady_state="window between max_num_seqs first tokens and the last max_num_seqs + 1 requests (ML.ENERGY)",
        engine="vllm",
        engine_version="0.11.1",
        source=f"ML.ENERGY leaderboard v3, {path.name}",
        notes="; ".join([*notes, f"made_on is the day of the import; weights {precision or 'of unknown precision'}"]),
    )
    return profile_of(gpu, model, provenance, points, notes, str(path))


def _runs(path: Path) -> list[dict[str, Any]]:
    text = read_text(path)
    if text.lstrip().startswith(("{", "[")):
        return _json_runs(read_json(text, str(path)), str(path))
    try:
        rows = [dict(row) for row in csv.DictReader(io.StringIO(text))]
    except csv.Error as error:
        raise ImportFailed(f"{path}: is neither JSON nor CSV: {error}") from None
    if not rows or "energy_per_token_joules" not in rows[0]:
        raise ImportFailed(f"{path}: is no table of ML.ENERGY runs (no column energy_per_token_joules)")
    return [{**row, "n": n} for n, row in enumerate(rows, start=2)]


def _json_runs(document: Any, where: str) -> list[dict[str, Any]]:
    """One model and task per document: what holds for all runs stands at the top, the runs under `configurations`."""
    runs: list[dict[str, Any]] = []
    for part in document if isinstance(document, list) else [document]:
        configurations = part.get("configurations") if isinstance(part, dict) else None
        if not isinstance(configurations, list):
            raise ImportFailed(f"{where}: is no leaderboard file (no list 'configurations')")
        common = {key: value for key, value in part.items() if key != "configurations"}
        for configuration in configurations:
            if not isinstance(configuration, dict):
                raise ImportFailed(f"{where}: configurations must be objects")
            split = configuration.get("parallelization")
            split = split if isinstance(split, dict) else {}
            runs.append({**common, **split, **configuration, "n": len(runs) + 1})
    return runs


def _chosen(runs: Sequence[dict[str, Any]], filters: Filters, where: str) -> list[dict[str, Any]]:
    wanted = {
        "model_id": filters.model,
        "gpu_model": filters.gpu,
        "task": filters.task,
        "weight_precision": filters.precision,
    }
    counted = {
        "num_gpus": filters.gpus,
        "tensor_parallel": filters.tensor_parallel,
        "expert_parallel": filters.expert_parallel,
    }

    def fits(run: Mapping[str, Any]) -> bool:
        texts = all(_names(run, key, text) for key, text in wanted.items() if text)
        return texts and all(str(run.get(key)) == str(n) for key, n in counted.items() if n)

    chosen = [run for run in runs if fits(run)]
    if not chosen:
        models = sorted({str(run.get("model_id") or run.get("nickname")) for run in runs})
        raise ImportFailed(f"{where}: no run passes the filters; models in it: {', '.join(models[:60])}")
    return chosen


def _names(run: Mapping[str, Any], key: str, text: str) -> bool:
    told = [str(run.get(key, ""))] + ([str(run.get("nickname", ""))] if key == "model_id" else [])
    return any(text.casefold() in (one.casefold(), one.casefold().rpartition("/")[2]) for one in told)


def _one(runs: Sequence[Mapping[str, Any]], where: str) -> tuple[str, str, str]:
    kinds = sorted(
        {(str(r.get("model_id") or r.get("nickname") or ""), str(r.get("gpu_model", "")), _precision(r)) for r in runs}
    )
    if len(kinds) > 1:
        told = "; ".join(" ".join(filter(None, kind)) for kind in kinds[:12])
        more = f" and {len(kinds) - 12} more" if len(kinds) > 12 else ""
        raise ImportFailed(
            f"{where}: a profile is one model on one GPU, and these runs are of {told}{more}; "
            "choose with --model, --gpu and --precision"
        )
    model, gpu, precision = kinds[0]
    if not model or not gpu:
        raise ImportFailed(f"{where}: the runs name no model_id or no gpu_model")
    return model, gpu, precision


def _precision(run: Mapping[str, Any]) -> str:
    return str(run.get("weight_precision") or "")


def _point(run: Mapping[str, Any], clock_mhz: int, load: str, where: str) -> Point:
    output_tps = needed(run, ["output_throughput_tokens_per_sec"], where)
    output_tokens = needed(run, ["avg_output_len"], where)
    batch = number(run, ["avg_batch_size"], where)
    cap = number(run, ["max_num_seqs"], where)
    starved = cap < UNKNOWN and batch < STARVED * cap
    return Point(
        tp=whole(needed(run, ["num_gpus"], where), "num_gpus", where),
        clock_mhz=clock_mhz,
        load=load or load_name(str(run.get("task") or "imported")),
        input_tokens=UNKNOWN,
        output_tokens=output_tokens,
        offered_rps=output_tps / output_tokens,
        prefill_tps=UNKNOWN,
        running=batch,
        context_tokens=UNKNOWN,
        ttft_p50_s=UNKNOWN,
        ttft_p99_s=UNKNOWN,
        tbt_p50_s=number(run, ["median_itl_ms", "p50_itl_ms"], where, 1e-3),
        tbt_p99_s=number(run, ["p99_itl_ms"], where, 1e-3),
        watts=number(run, ["avg_power_watts"], where),
        j_per_output_token=needed(run, ["energy_per_token_joules"], where),
        output_tps=output_tps,
        kv_share=UNKNOWN,
        waiting=max(0.0, cap - batch) if starved else 0.0,
        saturated=starved,
        requests=0,
        window_s=0.0,
    )


def _saturation(points: Sequence[Point]) -> list[Point]:
    """Marks the rows that got no more done than a row with a smaller batch: they are past the peak."""
    marked: list[Point] = []
    for point in points:
        smaller = [p for p in points if p.cell == point.cell and p.running < point.running < UNKNOWN]
        past = any(p.offered_rps >= point.offered_rps for p in smaller)
        marked.append(replace(point, saturated=True) if past else point)
    return marked
