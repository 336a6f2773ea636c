"""Step time and watts of one engine as functions of (TP, clock, prefill tokens, running sequences, context).

Owns the formulas and the reading of models_<gpu>.yaml, which holds the constants and their sources. Everything it
answers is modelled: it reads no profile, measures nothing and refuses a TP that no source covers.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

MODELS_DIR = Path(__file__).parent
GPUS = ("h100", "h200", "a100")
DEFAULT_GPU = "h100"
MODEL_SUFFIX = ".model.yaml"


@dataclass(frozen=True, slots=True)
class TpPoint:
    """Constants of one tensor parallelism at the highest clock, and the clock's multipliers on the model's grid."""

    running_knots: tuple[float, ...]  # sequences in a step, rising
    decode_knots_s: tuple[float, ...]  # decode step at those knots with no context
    decode_per_context_token_s: float
    prefill_base_s: float
    prefill_per_token_s: float
    watts_base_w: float
    watts_per_doubling_w: float
    watts_cap_w: float
    kv_tokens: int
    tbt: tuple[float, ...]
    ttft: tuple[float, ...]
    watts: tuple[float, ...]

    def decode_without_context_s(self, running: float) -> float:
        """Linear between knots and beyond them."""
        knots = self.running_knots
        right = bisect_left(knots, running, 1, len(knots) - 1)
        low, high = knots[right - 1], knots[right]
        low_s, high_s = self.decode_knots_s[right - 1], self.decode_knots_s[right]
        return low_s + (running - low) / (high - low) * (high_s - low_s)


@dataclass(frozen=True, slots=True)
class SwitchCosts:
    """Seconds that a change takes. models_<gpu>.yaml names the source of each."""

    clock_s: float
    park_s: float
    unpark_s: float
    return_s: float  # a GPU that was given back serves again
    reshard_unit_s: float  # moving one eighth of the weights over NVLink
    reshard_sync_s: float  # the new group finds itself; it takes no load meanwhile
    reshard_units: Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One model on one kind of GPU. Answers are monotone in running sequences and in tokens.

    `idle_w`: ready with nothing running (context and weights loaded); `bare_idle_w`: no process; `parked_w`: asleep,
    the context kept. All three are watts of one GPU. `front_s` passes outside of steps before a request's first token
    is out: HTTP, tokenizing, hand-over to the engine; 0 in the shipped models, whose sources have it in their prefill.
    """

    gpu: str
    model: str
    clocks_mhz: tuple[int, ...]
    points: Mapping[int, TpPoint]
    idle_w: float
    bare_idle_w: float
    parked_w: float
    clip_w: float
    prefill_watts_base_w: float
    prefill_watts_per_doubling_w: float
    start_s: float
    switch: SwitchCosts
    context_tokens: int  # mean KV tokens of a running sequence in the runs behind the decode constants
    front_s: float = 0.0

    def point(self, tp: int) -> TpPoint:
        try:
            return self.points[tp]
        except KeyError:
            raise ValueError(f"{self.model} on {self.gpu} has no TP{tp}; known: {sorted(self.points)}") from None

    def decode_step_s(self, tp: int, clock_mhz: float, running: int, context_tokens: int) -> float:
        """One token for each of `running` sequences that hold `context_tokens` of KV cache together."""
        if running <= 0:
            return 0.0
        point = self.point(tp)
        step_s = point.decode_without_context_s(running) + point.decode_per_context_token_s * context_tokens
        return step_s * self._on_grid(point.tbt, clock_mhz)

    def decode_steps_s(self, tp: int, clock_mhz: float, running: int, context_tokens: int, steps: int) -> float:
        """`steps` decode steps in a row, in which every running sequence grows by one token a step."""
        if running <= 0 or steps <= 0:
            return 0.0
        point = self.point(tp)
        grown = running * (steps * (steps - 1) // 2)
        context_s = point.decode_per_context_token_s * (steps * context_tokens + grown)
        return (steps * point.decode_without_context_s(running) + context_s) * self._on_grid(point.tbt, clock_mhz)

    def prefill_s(self, tp: int, clock_mhz: float, tokens: int) -> float:
        """A step that only prefills `tokens`."""
        if tokens <= 0:
            return 0.0
        point = self.point(tp)
        prefill_s = point.prefill_base_s + point.prefill_per_token_s * tokens
        # No step is shorter than one pass over the weights, which is what a decode step of one sequence costs.
        return max(prefill_s * self._on_grid(point.ttft, clock_mhz), self.decode_step_s(tp, clock_mhz, 1, 0))

    def step_s(self, tp: int, clock_mhz: float, prefill_tokens: int, running: int, context_tokens: int) -> float:
        """A mixed step of chunked prefill: the decode part plus the prefill part, the weights read once."""
        if running <= 0:
            return self.prefill_s(tp, clock_mhz, prefill_tokens)
        decode_s = self.decode_step_s(tp, clock_mhz, running, context_tokens)
        if prefill_tokens <= 0:
            return decode_s
        point = self.point(tp)
        times, tokens_s = self._on_grid(point.ttft, clock_mhz), point.prefill_per_token_s * prefill_tokens
        # What the tokens would take alone; that no step is shorter than a decode step holds here by itself.
        return max(decode_s + tokens_s * times, (point.prefill_base_s + tokens_s) * times)

    def watts(self, tp: int, clock_mhz: float, running: int, prefill_tokens: int = 0) -> float:
        """Power of the whole instance in a step: what its decode part draws, or its tokens if prefill draws more."""
        if running <= 0 and prefill_tokens <= 0:
            return self.idle_w * tp
        point = self.point(tp)
        doublings = math.log2(running) if running > 1 else 0.0
        gpu_w = min(point.watts_base_w + point.watts_per_doubling_w * doublings, point.watts_cap_w)
        if prefill_tokens > 0:
            doublings = math.log2(running + prefill_tokens)
            gpu_w = max(gpu_w, self.prefill_watts_base_w + self.prefill_watts_per_doubling_w * doublings)
        loaded_w = min(gpu_w, self.clip_w) * self._on_grid(point.watts, clock_mhz)
        return max(loaded_w, self.idle_w) * tp

    def kv_tokens(self, tp: int) -> int:
        return self.point(tp).kv_tokens

    def reshard_s(self, from_tp: int, to_tp: int) -> float:
        """Turning one instance of `from_tp` GPUs into one of `to_tp` in place; 0 when nothing changes."""
        if from_tp == to_tp:
            return 0.0
        units = self.switch.reshard_units.get((from_tp, to_tp))
        if units is None:
            raise ValueError(f"no source gives a re-shard from TP{from_tp} to TP{to_tp}")
        return units * self.switch.reshard_unit_s + self.switch.reshard_sync_s

    def _on_grid(self, multipliers: tuple[float, ...], clock_mhz: float) -> float:
        """Linear between grid clocks; outside the grid the nearest grid clock answers."""
        grid = self.clocks_mhz
        if clock_mhz <= grid[0]:
            return multipliers[0]
        if clock_mhz >= grid[-1]:
            return multipliers[-1]
        right = bisect_right(grid, clock_mhz)
        low, high = grid[right - 1], grid[right]
        share = (clock_mhz - low) / (high - low)
        return multipliers[right - 1] + share * (multipliers[right] - multipliers[right - 1])


def engine_model_names(gpu: str = DEFAULT_GPU) -> tuple[str, ...]:
    document = read_models(gpu)
    return tuple(document.get("models") or read_models(document["like"])["models"])


def gpu_of(card: str) -> str:
    """The name under which the models of a card are kept: h100 for an EngineModel whose `gpu` is h100-sxm-80g."""
    for gpu in GPUS:
        if read_models(gpu)["gpu"]["name"] == card:
            return gpu
    raise ValueError(f"no engine models for {card!r}")


def load_engine_model(name: str, gpu: str = DEFAULT_GPU) -> EngineModel:
    """The engine model called `name` on `gpu`, or of the file NAME.model.yaml; ValueError lists the known names."""
    if name.endswith(MODEL_SUFFIX):
        from profiles.model_file import load_model  # it builds on the classes above

        return load_model(Path(name))
    document = read_models(gpu)
    base = read_models(document["like"]) if "like" in document else document
    models = base["models"]
    if name not in models:
        raise ValueError(f"no engine model {name!r}; known: {', '.join(models)}")
    card, model = base["gpu"], models[name]
    points = {tp: _point(card, model, tp, base["multipliers"]) for tp in model["tp"]}
    if base is not document:
        points = {tp: _moved(point, tp, card, document, model) for tp, point in points.items()}
        points = {tp: point for tp, point in points.items() if point.kv_tokens >= document["least_kv_tokens"]}
        card = document["gpu"]
    prefill_base_w, prefill_per_doubling_w = card["prefill_watts"]
    return EngineModel(
        gpu=card["name"],
        model=name,
        clocks_mhz=tuple(document["clocks_mhz"]),
        points=points,
        idle_w=float(card["idle_w"]),
        bare_idle_w=float(card["bare_idle_w"]),
        parked_w=float(card["parked_w"]),
        clip_w=float(card["clip_w"]),
        prefill_watts_base_w=float(prefill_base_w),
        prefill_watts_per_doubling_w=float(prefill_per_doubling_w),
        start_s=float(model["start_s"]),
        switch=_switch_costs(document["switch"], model),
        context_tokens=int(model["context_tokens"]),
    )


def read_models(gpu: str) -> Any:
    """models_<gpu>.yaml as it stands."""
    if gpu not in GPUS:
        raise ValueError(f"no engine models for gpu {gpu!r}; known: {', '.join(GPUS)}")
    # The C loader reads the file in a few ms, the Python one in five times that; an engine's start pays for it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((MODELS_DIR / f"models_{gpu}.yaml").read_text(encoding="utf-8"), Loader=loader)


def _point(card: Any, model: Any, tp: int, multipliers: Any) -> TpPoint:
    raw = model["tp"][tp]
    decode, times = raw["decode_ms"], 1.0
    if isinstance(decode, dict):
        decode, times = model["tp"][decode["like"]]["decode_ms"], float(decode["times"])
    read_bytes = model.get("kv_read_bytes_per_token", model["kv_bytes_per_token"])
    per_context_token_s = read_bytes / (tp * card["bandwidth_bytes_s"])
    # The published steps hold the reading of the runs' mean context, so that part is taken out again.
    without_s = [step * times / 1e3 - per_context_token_s * model["context_tokens"] * at for at, step in decode]
    prefill_base_ms, prefill_per_token_ms = raw["prefill_ms"]
    base_w, per_doubling_w, cap_w = raw["watts"]
    return TpPoint(
        running_knots=tuple(float(at) for at, _ in decode),
        decode_knots_s=tuple(accumulate(without_s, max)),
        decode_per_context_token_s=per_context_token_s,
        prefill_base_s=prefill_base_ms / 1e3,
        prefill_per_token_s=prefill_per_token_ms / 1e3,
        watts_base_w=float(base_w),
        watts_per_doubling_w=float(per_doubling_w),
        watts_cap_w=float(cap_w),
        kv_tokens=_kv_tokens(card, model, tp),
        tbt=tuple(multipliers[tp]["tbt"]),
        ttft=tuple(multipliers[tp]["ttft"]),
        watts=tuple(multipliers[tp]["watts"]),
    )


def _moved(point: TpPoint, tp: int, card: Any, document: Any, model: Any) -> TpPoint:
    """A point of the reference card on another card: bytes by bandwidth, prefill and watts by their ratios.

    A decode step reads the weights once, at the card's bandwidth; what grows with the batch scales by its own ratio.
    """
    other, ratio = document["gpu"], document["ratios"]
    bandwidth = card["bandwidth_bytes_s"] / other["bandwidth_bytes_s"]
    weights_s = model["weights_read_bytes"] / (tp * card["bandwidth_bytes_s"])
    first_s = point.decode_without_context_s(1)
    base_s = first_s + weights_s * (bandwidth - 1)
    multipliers = document["multipliers"]
    row = multipliers.get(tp, multipliers["any"])
    return replace(
        point,
        decode_knots_s=tuple(base_s + (at_s - first_s) * ratio["per_running"] for at_s in point.decode_knots_s),
        decode_per_context_token_s=point.decode_per_context_token_s * bandwidth,
        prefill_base_s=point.prefill_base_s * ratio["prefill"],
        prefill_per_token_s=point.prefill_per_token_s * ratio["prefill"],
        watts_base_w=point.watts_base_w * ratio["watts"],
        watts_per_doubling_w=point.watts_per_doubling_w * ratio["watts"],
        watts_cap_w=min(point.watts_cap_w * ratio["watts"], other["clip_w"]),
        kv_tokens=_kv_tokens(other, model, tp),
        tbt=tuple(row["tbt"]),
        ttft=tuple(row["ttft"]),
        watts=tuple(row["watts"]),
    )


def _kv_tokens(card: Any, model: Any, tp: int) -> int:
    room = card["memory_bytes"] * tp * card["memory_share"] - model["weight_bytes"]
    return max(0, int(room / model["kv_bytes_per_token"]))


def _switch_costs(raw: Any, model: Any) -> SwitchCosts:
    moved = model["weight_bytes"] / raw["reshard_weight_bytes"]
    return SwitchCosts(
        clock_s=float(raw["clock_s"]),
        park_s=float(raw["park_s"]),
        unpark_s=float(raw["unpark_s"]),
        return_s=float(raw["return_s"]),
        reshard_unit_s=float(raw["reshard_unit_s"]) * moved,
        reshard_sync_s=float(raw["reshard_sync_s"]),
        reshard_units={(int(a), int(b)): int(n) for a, b, n in raw["reshard_units"]},
    )
