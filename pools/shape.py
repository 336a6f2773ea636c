"""What an instance is started as: its pool's configuration with what a plan says differently. Pure."""

from __future__ import annotations

from dataclasses import replace

from core.instances import Shape
from core.service import STEP_TOKENS, PoolSpec
from profiles.engine_model import EngineModel

LEAST_STEP_TOKENS = 256
BESIDE = 16  # sequences that decode while a prompt is prefilled


def step_tokens(model: EngineModel, tp: int, clock_mhz: int, tbt_s: float, beside: int = BESIDE) -> int:
    """The largest power of two, up to vLLM's default of 2048, with which a step beside a small batch stays within
    `tbt_s`: what an operator sets --max-num-batched-tokens to."""
    tokens = STEP_TOKENS
    while tokens > LEAST_STEP_TOKENS:
        if model.step_s(tp, clock_mhz, tokens - beside, beside, beside * model.context_tokens) <= tbt_s:
            break
        tokens //= 2
    return tokens


def shaped(pool: PoolSpec, shape: Shape, model: EngineModel | None) -> PoolSpec:
    """The pool's specification of one instance. With another TP the engine model tells the KV room; slots and step are
    the configured ones unless the shape names them."""
    limits, tp = pool.limits, shape.tp or pool.tp
    if tp != pool.tp:
        limits = replace(limits, kv_tokens=model.kv_tokens(tp) if model is not None else 0)
    if shape.slots:
        limits = replace(limits, slots=shape.slots)
    if shape.step_tokens:
        limits = replace(limits, step_tokens=shape.step_tokens)
    return replace(pool, tp=tp, clock_mhz=shape.clock_mhz or pool.clock_mhz, limits=limits)
