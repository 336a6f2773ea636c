"""Step time and watts of one engine as functions of (TP, clock, prefill tokens, running sequences, context).

Owns the formulas; the constants and their sources are in models.yaml. Everything it answers is modelled: it reads no
profile, measures nothing and refuses a TP that no source covers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MODELS_FILE = Path(__file__).with_name("models.yaml")


@dataclass(frozen=True, slots=True)
class TpPoint:
    """Constants of one tensor parallelism at the highest clock, and the clock's multipliers on the model's grid."""

    decode_base_s: float
    decode_per_running_s: float
    decode_per_context_token_s: float
    prefill_base_s: float
    prefill_per_token_s: float
    watts_base_w: float
    watts_per_doubling_w: float
    kv_tokens: int
    tbt: tuple[float, ...]
    ttft: tuple[float, ...]
    watts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One model on one kind of GPU. Answers are monotone in running sequences and in tokens."""

    gpu: str
    model: str
    clocks_mhz: tuple[int, ...]
    points: Mapping[int, TpPoint]
    idle_w: float
    clip_w: float
    batch_clip: int
    start_s: float

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
        step_s = (
            point.decode_base_s
            + point.decode_per_running_s * running
            + point.decode_per_context_token_s * context_tokens
        )
        return step_s * self._on_grid(point.tbt, clock_mhz)

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
        mixed_s = decode_s + point.prefill_per_token_s * prefill_tokens * self._on_grid(point.ttft, clock_mhz)
        return max(mixed_s, self.prefill_s(tp, clock_mhz, prefill_tokens))

    def watts(self, tp: int, clock_mhz: float, running: int, prefill_tokens: int = 0) -> float:
        """Power of the whole instance. A prefill token loads the GPU like a running sequence, up to the fit's end."""
        batch = running + prefill_tokens
        if batch <= 0:
            return self.idle_w * tp
        point = self.point(tp)
        gpu_w = point.watts_base_w + point.watts_per_doubling_w * math.log2(min(batch, self.batch_clip))
        loaded_w = min(gpu_w, self.clip_w) * self._on_grid(point.watts, clock_mhz)
        return max(loaded_w, self.idle_w) * tp

    def kv_tokens(self, tp: int) -> int:
        return self.point(tp).kv_tokens

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


def engine_model_names() -> tuple[str, ...]:
    return tuple(_document()["models"])


def load_engine_model(name: str) -> EngineModel:
    """The engine model called `name`; ValueError lists the known names."""
    document = _document()
    models = document["models"]
    if name not in models:
        raise ValueError(f"no engine model {name!r}; known: {', '.join(models)}")
    gpu, model = document["gpu"], models[name]
    points = {tp: _point(gpu, model, tp, raw, document["multipliers"][tp]) for tp, raw in model["tp"].items()}
    return EngineModel(
        gpu=gpu["name"],
        model=name,
        clocks_mhz=tuple(document["clocks_mhz"]),
        points=points,
        idle_w=float(gpu["idle_w"]),
        clip_w=float(gpu["clip_w"]),
        batch_clip=int(gpu["batch_clip"]),
        start_s=float(model["start_s"]),
    )


def _document() -> Any:
    # The C loader reads the file in 2 ms, the Python one in 15 ms; an engine's start pays for it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(MODELS_FILE.read_text(encoding="utf-8"), Loader=loader)


def _point(gpu: Any, model: Any, tp: int, raw: Any, multipliers: Any) -> TpPoint:
    decode_base_ms, decode_per_running_ms = raw["decode_ms"]
    prefill_base_ms, prefill_per_token_ms = raw["prefill_ms"]
    kv_bytes = gpu["memory_bytes"] * tp * gpu["memory_share"] - model["weight_bytes"]
    per_context_token_s = model["kv_bytes_per_token"] / (tp * gpu["bandwidth_bytes_s"])
    # The published slope already holds the reading of the runs' mean context, so that part is taken out again.
    per_running_s = decode_per_running_ms / 1e3 - per_context_token_s * model["context_tokens"]
    return TpPoint(
        decode_base_s=decode_base_ms / 1e3,
        decode_per_running_s=max(0.0, per_running_s),
        decode_per_context_token_s=per_context_token_s,
        prefill_base_s=prefill_base_ms / 1e3,
        prefill_per_token_s=prefill_per_token_ms / 1e3,
        watts_base_w=float(raw["watts"][0]),
        watts_per_doubling_w=float(raw["watts"][1]),
        kv_tokens=int(kv_bytes / model["kv_bytes_per_token"]),
        tbt=tuple(multipliers["tbt"]),
        ttft=tuple(multipliers["ttft"]),
        watts=tuple(multipliers["watts"]),
    )
