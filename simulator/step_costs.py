"""What a step costs, prepared for many thousands of questions per second. Owns closed-form sums over steps;
what one step costs is the engine model's to say.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from profiles.engine_model import EngineModel
from simulator.prepared_model import PreparedModel, prepare


class DecodeRun(NamedTuple):
    """Consecutive decode steps of an unchanged batch: the first lasts `first_s`, each later one `slope_s` more."""

    first_s: float
    slope_s: float

    def total_s(self, steps: int) -> float:
        return steps * self.first_s + self.slope_s * (steps * (steps - 1) / 2)

    def last_s(self, steps: int) -> float:
        return self.first_s + self.slope_s * (steps - 1)

    def steps_begun(self, elapsed_s: float) -> int:
        """The fewest steps that last at least `elapsed_s`: what began before then is carried to its end."""
        if elapsed_s <= 0:
            return 0
        half = self.slope_s / 2
        linear = self.first_s - half
        steps = math.ceil(2 * elapsed_s / (linear + math.sqrt(linear * linear + 4 * half * elapsed_s)))
        while self.total_s(steps) < elapsed_s:
            steps += 1
        while steps > 1 and self.total_s(steps - 1) >= elapsed_s:
            steps -= 1
        return steps

    def later_than(self, limit_s: float, steps: int) -> int:
        """How many of the first `steps` last longer than `limit_s`."""
        if self.last_s(steps) <= limit_s:
            return 0
        if self.first_s > limit_s:
            return steps
        return steps - 1 - int((limit_s - self.first_s) / self.slope_s)


class MixedStep(NamedTuple):
    """A step with prefill. `prefill_share` of its joules belongs to the prefill tokens, by marginal time."""

    duration_s: float
    watts: float
    prefill_share: float


class StepCosts:
    """One (engine model, TP, clock), shared by all instances that run there. Grows to the number of batch sizes met."""

    def __init__(self, model: PreparedModel, tp: int, clock_mhz: int) -> None:
        self._model = model
        self._tp = tp
        self._clock_mhz = clock_mhz
        self.idle_w = model.watts(tp, clock_mhz, 0)
        self._decode: dict[int, tuple[float, float, float]] = {}

    def decode(self, running: int, context_tokens: int) -> tuple[DecodeRun, float]:
        """The run that starts with `context_tokens` in context, and its watts."""
        known = self._decode.get(running)
        if known is None:
            known = self._decode[running] = (
                *self._model.decode_line(self._tp, self._clock_mhz, running),
                self._model.watts(self._tp, self._clock_mhz, running),
            )
        base_s, per_token_s, watts = known
        return DecodeRun(base_s + per_token_s * context_tokens, per_token_s * running), watts

    def mixed(self, prefill_tokens: int, running: int, context_tokens: int) -> MixedStep:
        model, tp, mhz = self._model, self._tp, self._clock_mhz
        duration_s = model.step_s(tp, mhz, prefill_tokens, running, context_tokens)
        watts = model.watts(tp, mhz, running, prefill_tokens)
        if running == 0:
            return MixedStep(duration_s, watts, 1.0)
        if prefill_tokens == 0:
            return MixedStep(duration_s, watts, 0.0)
        by_prefill_s = duration_s - model.decode_step_s(tp, mhz, running, context_tokens)
        by_decode_s = duration_s - model.prefill_s(tp, mhz, prefill_tokens)
        both_s = by_prefill_s + by_decode_s
        return MixedStep(duration_s, watts, by_prefill_s / both_s if both_s > 0 else 0.5)


class CostBook:
    """All `StepCosts` of one simulation, so that a hundred instances share their memories."""

    def __init__(self, model: EngineModel) -> None:
        self.model = prepare(model)
        self._known: dict[tuple[int, int], StepCosts] = {}

    def at(self, tp: int, clock_mhz: int) -> StepCosts:
        costs = self._known.get((tp, clock_mhz))
        if costs is None:
            costs = self._known[tp, clock_mhz] = StepCosts(self.model, tp, clock_mhz)
        return costs
