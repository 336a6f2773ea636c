"""An engine model that remembers its answers: a simulation asks the same few thousand questions millions of times.

Answers are the model's own; the only formula used is that a decode step rises in a straight line with its context.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from profiles.engine_model import EngineModel

PROBE_TOKENS = 1 << 20  # far enough apart that the slope keeps 12 digits
MOST_KNOWN = 200_000  # watts by batch and prompt: one prompt length comes with many batches


@dataclass(frozen=True, slots=True)
class PreparedModel(EngineModel):
    """Grows with the number of different batches and prompt lengths met, up to a limit, not with the trace."""

    decode_known: dict[tuple[int, float, int], tuple[float, float]] = field(default_factory=dict, compare=False)
    prefill_known: dict[tuple[int, float, int], float] = field(default_factory=dict, compare=False)
    watts_known: dict[tuple[int, float, int, int], float] = field(default_factory=dict, compare=False)

    def decode_step_s(self, tp: int, clock_mhz: float, running: int, context_tokens: int) -> float:
        known = self.decode_known.get((tp, clock_mhz, running)) or self.decode_line(tp, clock_mhz, running)
        return known[0] + known[1] * context_tokens

    def decode_line(self, tp: int, clock_mhz: float, running: int) -> tuple[float, float]:
        """Seconds of a step with no context, and seconds for each token of context."""
        key = (tp, clock_mhz, running)
        known = self.decode_known.get(key)
        if known is None:
            base_s = EngineModel.decode_step_s(self, tp, clock_mhz, running, 0)
            far_s = EngineModel.decode_step_s(self, tp, clock_mhz, running, PROBE_TOKENS)
            known = self.decode_known[key] = (base_s, (far_s - base_s) / PROBE_TOKENS)
        return known

    def prefill_s(self, tp: int, clock_mhz: float, tokens: int) -> float:
        key = (tp, clock_mhz, tokens)
        known = self.prefill_known.get(key)
        if known is None:
            known = self.prefill_known[key] = EngineModel.prefill_s(self, tp, clock_mhz, tokens)
        return known

    def watts(self, tp: int, clock_mhz: float, running: int, prefill_tokens: int = 0) -> float:
        key = (tp, clock_mhz, running, prefill_tokens)
        known = self.watts_known.get(key)
        if known is None:
            if len(self.watts_known) >= MOST_KNOWN:
                self.watts_known.clear()
            known = self.watts_known[key] = EngineModel.watts(self, tp, clock_mhz, running, prefill_tokens)
        return known


def prepare(model: EngineModel) -> PreparedModel:
    if isinstance(model, PreparedModel):
        return model
    return PreparedModel(**{one.name: getattr(model, one.name) for one in fields(model)})
