"""Results of `vllm bench serve --save-result` as a profile: one JSON object a run, several in a file or a directory.

A run tells no GPU, no TP, no clock and no energy: those are given. TBT is vLLM's ITL; TPOT is a mean per request and
says nothing of a p99 over gaps, so it is not put in its place. What a run does not tell stays UNKNOWN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
)
from profiles.profile import UNKNOWN, Point, Provenance

BEHIND = 1.15  # a run that takes this much longer than its arrivals and one answer fell behind: its queue grew


@dataclass(frozen=True, slots=True)
class Setup:
    """What the result does not say about the run."""

    gpu: str
    tp: int
    clock_mhz: int | None = None
    watts: float = UNKNOWN  # of the whole instance, mean over the run
    engine_version: str = "unknown"
    load: str = ""
    model: str = ""


def import_vllm_bench(path: Path, setup: Setup, today: date, command: str) -> Imported:
    """Raises ImportFailed and nothing else."""
    runs = [run for one in _files(path) for run in _runs(one)]
    if not runs:
        raise ImportFailed(f"{path}: holds no result of vllm bench serve")
    models = sorted({str(run.get("model_id") or "") for _, run in runs})
    if len(models) > 1 and not setup.model:
        raise ImportFailed(f"{path}: a profile is of one model, and these runs are of {', '.join(models)}; say --model")
    model = setup.model or models[0]
    if setup.model and any(models):
        runs = [(where, run) for where, run in runs if run.get("model_id") in (None, "", setup.model)]
    if not runs or not model:
        raise ImportFailed(f"{path}: no run of {model or 'a named model; say --model'}")
    clock_mhz = clock_of(setup.gpu, setup.clock_mhz, str(path))
    points = [_point(run, setup, clock_mhz, where) for where, run in runs]
    notes = _notes(points, runs, setup)
    provenance = Provenance(
        origin="measured",
        made_on=today.isoformat(),
        command=command,
        energy_counter="given" if setup.watts < UNKNOWN else "none",
        steady_state="none: the whole run, its ramp and its tail included (vllm bench serve)",
        engine="vllm",
        engine_version=setup.engine_version,
        source=f"vllm bench serve, {path.name}",
        notes="; ".join(notes),
    )
    return profile_of(setup.gpu, model, provenance, points, notes, str(path))


def _notes(points: Sequence[Point], runs: Sequence[tuple[str, Mapping[str, Any]]], setup: Setup) -> list[str]:
    notes = ["the window is the whole run: ramp and tail count, so watts and throughput are a little low"]
    if setup.watts == UNKNOWN:
        notes.append("watts are not in a bench result and were not given (--watts): energy is not known")
    if any(_rate(run) == math.inf for _, run in runs):
        notes.append("runs without a request rate are closed loops: their load is the completed one")
    missing = [n for n in ("ttft_p99_s", "tbt_p99_s") if any(getattr(p, n) == UNKNOWN for p in points)]
    if missing:
        told = " and ".join(missing)
        notes.append(
            f"{told} not in every run; ask for it with --percentile-metrics ttft,tpot,itl --metric-percentiles 99"
        )
    return notes


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(one for one in path.iterdir() if one.suffix in (".json", ".jsonl"))
    if not found:
        raise ImportFailed(f"{path}: holds no .json file")
    return found


def _runs(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """--append-result writes one object a line; otherwise the file is one object, or a list of them."""
    text = read_text(path).strip()
    try:
        whole = json.loads(text)
        runs = whole if isinstance(whole, list) else [whole]
        places = [str(path) if len(runs) == 1 else f"{path}: run {n}" for n in range(1, len(runs) + 1)]
    except (ValueError, RecursionError):
        lines = [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip()]
        places = [f"{path}:{n}" for n, _ in lines]
        runs = [read_json(line, f"{path}:{n}") for n, line in lines]
    for where, run in zip(places, runs, strict=True):
        if not isinstance(run, dict) or "request_throughput" not in run:
            raise ImportFailed(f"{where}: is no result of vllm bench serve (no request_throughput)")
    return list(zip(places, runs, strict=True))


def _rate(run: Mapping[str, Any]) -> float:
    """Offered requests/s; infinite if the run offered all at once or kept a number in flight."""
    try:
        rate = float(run.get("request_rate") or math.inf)
    except (TypeError, ValueError):
        return math.inf
    return rate if rate > 0 else math.inf


def _point(run: Mapping[str, Any], setup: Setup, clock_mhz: int, where: str) -> Point:
    completed = needed(run, ["completed"], where)
    duration_s = needed(run, ["duration"], where)
    throughput = needed(run, ["request_throughput"], where)
    inputs = needed(run, ["total_input_tokens", "total_input"], where) / completed
    outputs = needed(run, ["total_output_tokens", "total_output"], where) / completed
    output_tps = needed(run, ["output_throughput"], where)
    ttft, itl = _latency(run, "ttft", "ttfts", where), _latency(run, "itl", "itls", where)
    gap_s = number(run, ["mean_itl_ms", "mean_tpot_ms", "median_itl_ms", "median_tpot_ms"], where, 1e-3)
    # Little's law over the gaps between a sequence's tokens, as in a measured profile.
    running = throughput * max(0.0, outputs - 1) * gap_s if gap_s < UNKNOWN else UNKNOWN
    rate = _rate(run)
    return Point(
        tp=setup.tp,
        clock_mhz=clock_mhz,
        load=setup.load or load_name(f"in{inputs:.0f}-out{outputs:.0f}"),
        input_tokens=inputs,
        output_tokens=outputs,
        offered_rps=throughput if rate == math.inf else rate,
        prefill_tps=inputs * throughput,
        running=running,
        context_tokens=inputs + outputs / 2,
        ttft_p50_s=ttft[0],
        ttft_p99_s=ttft[1],
        tbt_p50_s=itl[0],
        tbt_p99_s=itl[1],
        watts=setup.watts,
        j_per_output_token=setup.watts / output_tps,
        output_tps=output_tps,
        kv_share=UNKNOWN,
        waiting=0.0,
        saturated=_fell_behind(run, rate, completed, duration_s, outputs, where),
        requests=int(completed),
        window_s=duration_s,
    )


def _latency(run: Mapping[str, Any], name: str, detail: str, where: str) -> tuple[float, float]:
    """p50 and p99 in seconds: as published, or by nearest rank from what --save-detailed wrote (already seconds)."""
    p50 = number(run, [f"median_{name}_ms", f"p50_{name}_ms"], where, 1e-3)
    p99 = number(run, [f"p99_{name}_ms"], where, 1e-3)
    values = run.get(detail)
    if isinstance(values, list) and values and UNKNOWN in (p50, p99):
        gaps = sorted(v for one in values for v in (one if isinstance(one, list) else [one]) if _is_time(v))
        if gaps:
            ranked = [gaps[max(0, math.ceil(q * len(gaps)) - 1)] for q in (0.5, 0.99)]
            p50, p99 = (own if told == UNKNOWN else told for told, own in zip((p50, p99), ranked, strict=True))
    return p50, p99


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _fell_behind(
    run: Mapping[str, Any], rate: float, completed: float, duration_s: float, outputs: float, where: str
) -> bool:
    """Open loop: it took clearly longer than the arrivals plus one answer. All at once: always. Closed loop: never."""
    if rate == math.inf:
        return not number(run, ["max_concurrency"], where) < UNKNOWN
    first_s = number(run, ["median_ttft_ms", "mean_ttft_ms"], where, 1e-3)
    gap_s = number(run, ["median_tpot_ms", "mean_tpot_ms", "mean_itl_ms"], where, 1e-3)
    answer_s = sum(part for part in (first_s, outputs * gap_s if gap_s < UNKNOWN else UNKNOWN) if part < UNKNOWN)
    sent = number(run, ["num_prompts"], where)
    return duration_s > BEHIND * ((sent if sent < UNKNOWN else completed) / rate + answer_s)
