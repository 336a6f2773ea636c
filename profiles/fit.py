"""Re-derives the constants of models_<gpu>.yaml from the fit sets of the published data.

Owns the arithmetic from published rows to constants, so that anybody can repeat it; writes nothing. A row of a check
set never gets here: every function filters by `is_fit` first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log2
from pathlib import Path
from statistics import median
from typing import Any

from profiles import published
from profiles.engine_model import EngineModel, load_engine_model, read_models
from profiles.published import MlEnergyRun, SiliconRow, SplitwiseRow, V2Run
from profiles.published_facts import ClockRow, Facts, GridRow, read_facts

ROUNDING = 0.01  # a typed constant keeps three digits
POWER_FIT_END = 256  # beyond this batch the cards run into their limit and the line bends


@dataclass(frozen=True, slots=True)
class Constant:
    name: str
    typed: float
    refit: float

    @property
    def agrees(self) -> bool:
        return abs(self.typed - self.refit) <= ROUNDING * abs(self.refit)


def compare(data: Path) -> list[Constant]:
    """Every constant that the data at hand can re-derive, beside what models_<gpu>.yaml says."""
    facts = read_facts()
    found = _from_facts(facts)
    for file, derive in _SOURCES:
        if (data / file).exists():
            found.update(derive(data))
    documents = {gpu: read_models(gpu) for gpu in ("h100", "a100")}
    return [Constant(name, _typed(documents, name), value) for name, value in sorted(found.items())]


def line(points: Sequence[tuple[float, float]], weights: Sequence[float] | None = None) -> tuple[float, float]:
    """(intercept, slope) of the least-squares line."""
    w = weights or [1.0] * len(points)
    total = sum(w)
    mean_x = sum(k * x for k, (x, _) in zip(w, points, strict=True)) / total
    mean_y = sum(k * y for k, (_, y) in zip(w, points, strict=True)) / total
    spread = sum(k * (x - mean_x) ** 2 for k, (x, _) in zip(w, points, strict=True))
    slope = sum(k * (x - mean_x) * (y - mean_y) for k, (x, y) in zip(w, points, strict=True)) / spread
    return mean_y - slope * mean_x, slope


def ml_energy_constants(runs: Iterable[MlEnergyRun]) -> dict[str, float]:
    """Decode knots are the published medians themselves; watts are a line over log2 of the batch."""
    found: dict[str, float] = {}
    groups: dict[tuple[str, int], list[MlEnergyRun]] = {}
    for run in runs:
        if run.is_fit:
            groups.setdefault((run.model, run.tp), []).append(run)
    for (model, tp), group in groups.items():
        group.sort(key=lambda run: run.cap)
        for index, run in enumerate(group):
            found[f"h100 {model} TP{tp} decode_ms {index} 0"] = run.running
            found[f"h100 {model} TP{tp} decode_ms {index} 1"] = run.itl_s * 1e3
        base_w, slope_w = line([(log2(run.running), run.watts / tp) for run in group if run.cap <= POWER_FIT_END])
        found[f"h100 {model} TP{tp} watts 0"] = base_w
        found[f"h100 {model} TP{tp} watts 1"] = slope_w
        found[f"h100 {model} TP{tp} watts 2"] = max(run.watts / tp for run in group)
    return found


def grid_constants(rows: Iterable[GridRow], model: EngineModel) -> dict[str, float]:
    """Llama-2-70B on H100 from jovan-vllm: two ends of a decode line, a prefill line, a watts line, for each TP."""
    found: dict[str, float] = {}
    fit = [row for row in rows if row.is_fit]
    for tp in sorted({row.tp for row in fit}):
        mine = [row for row in fit if row.tp == tp]
        weights = [1 / row.tbt_s**2 for row in mine]
        per_context_s = model.point(tp).decode_per_context_token_s
        base_s, slope_s = line([(row.running, row.tbt_s - per_context_s * row.context_tokens) for row in mine], weights)
        for index, (running, _) in enumerate(read_models("h100")["models"]["llama-2-70b"]["tp"][tp]["decode_ms"]):
            mean_context_s = per_context_s * model.context_tokens * running
            found[f"h100 llama-2-70b TP{tp} decode_ms {index} 1"] = 1e3 * (base_s + slope_s * running + mean_context_s)
        # A request that arrives waits for half of a step in progress, if there is one. The waits do not grow with the
        # batch in this source, so the shortest step stands for all.
        wait_s = min(row.tbt_s for row in mine) / 2
        alone = [(row.input_tokens, row.alone_s - busy(row.running) * wait_s) for row in mine]
        base_s, slope_s = line(alone, [1 / seconds**2 for _, seconds in alone])
        found[f"h100 llama-2-70b TP{tp} prefill_ms 0"] = 1e3 * base_s
        found[f"h100 llama-2-70b TP{tp} prefill_ms 1"] = 1e3 * slope_s
        # Answers to long inputs decode for a fifth of the time: their watts say nothing about decode.
        shown = [row for row in mine if row.load_class[0] != "L"]
        decoding = [(log2(max(row.running, 1)), _decode_w(row, model)) for row in shown]
        weights = [((1 - row.rps * row.alone_s) * busy(row.running) / row.watts) ** 2 for row in shown]
        base_w, slope_w = line(decoding, weights)
        if slope_w < 0:  # more sequences never draw less
            total = sum(weights)
            base_w, slope_w = sum(k * watts for k, (_, watts) in zip(weights, decoding, strict=True)) / total, 0.0
        found[f"h100 llama-2-70b TP{tp} watts 0"] = base_w
        found[f"h100 llama-2-70b TP{tp} watts 1"] = slope_w
        found[f"h100 llama-2-70b TP{tp} watts 2"] = base_w + slope_w * max(doublings for doublings, _ in decoding)
    return found


def busy(running: float) -> float:
    """Share of time with at least one running sequence, if they come and go independently (M/G/inf)."""
    return 1 - exp(-running)


def silicon_constants(runs: Iterable[SiliconRow]) -> dict[str, float]:
    """Prefill per token: how what a token takes beyond its decode step grows with the prompt tokens in that step.

    A slope, not a mean: an engine whose decode steps differ from the decode constants' source shifts the line only.
    """
    models = {name: load_engine_model(name) for name in {name for name, _ in published.PREFILL_SHAPES}}
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for row in runs:
        model = models.get(row.model)
        if not row.is_fit or model is None or row.tp not in model.points:
            continue
        if row.concurrency * (row.prompt + row.output) > model.kv_tokens(row.tp):
            continue  # the engine queues: not all of the loop runs
        context = round(row.concurrency * (row.prompt + row.output / 2))
        beyond_s = row.tpot_s - model.decode_step_s(row.tp, 1980, row.concurrency, context)
        prompt_tokens = (row.concurrency - 1) * row.prompt / row.output
        found.setdefault((row.model, row.tp), []).append((prompt_tokens, beyond_s, 1 / row.tpot_s**2))
    return {
        f"h100 {name} TP{tp} prefill_ms 1": 1e3 * line([(x, y) for x, y, _ in rows], [w for _, _, w in rows])[1]
        for (name, tp), rows in found.items()
        if len(rows) > 1
    }


def splitwise_constants(rows: Iterable[SplitwiseRow]) -> dict[str, float]:
    fit = {(row.gpu, row.tp, row.prompt): row for row in rows if row.is_fit}
    ratios = [
        row.prompt_s / fit["h100", tp, prompt].prompt_s
        for (gpu, tp, prompt), row in fit.items()
        if gpu == "a100" and ("h100", tp, prompt) in fit
    ]
    return {"a100 ratios prefill": median(ratios)} if ratios else {}


def v2_constants(runs: Iterable[V2Run]) -> dict[str, float]:
    fit = {(run.gpu, run.cap): run for run in runs if run.is_fit}
    both = [cap for gpu, cap in fit if gpu == "a100" and ("h100", cap) in fit]
    if len(both) < 2:
        return {}
    slopes = {gpu: line([(cap, fit[gpu, cap].tpot_s) for cap in both])[1] for gpu in ("a100", "h100")}
    return {
        "a100 ratios per_running": slopes["a100"] / slopes["h100"],
        "a100 ratios watts": median(fit["a100", cap].watts / fit["h100", cap].watts for cap in both),
    }


def clock_constants(rows: Iterable[ClockRow]) -> dict[str, float]:
    """A100's multipliers: means of the A800's TP1 rows."""
    fit = [row for row in rows if row.is_fit]
    found: dict[str, float] = {}
    grid = read_models("a100")["clocks_mhz"]
    for name, phase in (("tbt", "decode"), ("ttft", "prefill"), ("watts", "")):
        mine = [row for row in fit if row.phase == phase or not phase]
        for index, mhz in enumerate(grid):
            at = [(row.time if phase else row.watts)[row.clocks_mhz.index(mhz)] for row in mine]
            found[f"a100 multipliers {name} {index}"] = sum(at) / len(at)
    return found


def _from_facts(facts: Facts) -> dict[str, float]:
    found = grid_constants(facts.grid, load_engine_model("llama-2-70b"))
    base_w, slope_w = line([(log2(tokens), watts / 8) for tokens, watts, is_fit in facts.fig_3 if is_fit])
    found["h100 gpu prefill_watts 0"] = base_w
    found["h100 gpu prefill_watts 1"] = slope_w
    found.update(clock_constants(facts.a800))
    return found


def _decode_w(row: GridRow, model: EngineModel) -> float:
    """One GPU's watts while it decodes, from the mean of a run: prefill's and idle's shares are taken out."""
    prefill_share, decode_share = row.rps * row.alone_s, busy(row.running)
    prefill_w = row.tp * (
        model.prefill_watts_base_w + model.prefill_watts_per_doubling_w * log2(row.input_tokens + row.running)
    )
    rest_w = row.watts - prefill_share * prefill_w
    rest_w -= (1 - prefill_share) * (1 - decode_share) * model.idle_w * row.tp
    return rest_w / ((1 - prefill_share) * decode_share) / row.tp


def _typed(documents: dict[str, Any], name: str) -> float:
    gpu, *path = name.split()
    node = documents[gpu]
    if path[0] in node.get("models", {}):
        node, tp = node["models"][path[0]]["tp"], int(path[1].removeprefix("TP"))
        node, path = node[tp], path[2:]
    elif path[0] == "multipliers":
        node, path = node["multipliers"]["any"], path[1:]
    for part in path:
        node = node[int(part)] if isinstance(node, list) else node[part]
    return float(node)


_SOURCES: tuple[tuple[str, Callable[[Path], dict[str, float]]], ...] = (
    (published.ML_ENERGY, lambda data: ml_energy_constants(published.read_ml_energy(data))),
    (published.ML_ENERGY_V2, lambda data: v2_constants(published.read_v2(data))),
    (published.SPLITWISE, lambda data: splitwise_constants(published.read_splitwise(data))),
    (published.SILICON, lambda data: silicon_constants(published.read_silicon(data))),
)
