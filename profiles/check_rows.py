"""What a comparison is, and the steady states that turn step times into what a run shows. Compares nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.engine_model import EngineModel
from profiles.fit import busy

LATENCY_AIM = POWER_AIM = 0.10
CLOCK_AIM = 0.15

Models = Mapping[tuple[str, str], EngineModel]


@dataclass(frozen=True, slots=True)
class Quantity:
    """`note`: what the source differs in, printed beside a miss."""

    name: str
    aim: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    quantity: Quantity
    label: str
    published: float
    modelled: float

    @property
    def error(self) -> float:
        return abs(self.modelled / self.published - 1)


@dataclass(frozen=True, slots=True)
class Steady:
    """An instance under Poisson arrivals, in the mean."""

    running: float
    ttft_s: float
    gap_s: float
    watts: float


def closed_loop_s(model: EngineModel, tp: int, concurrency: int, prompt: int, output: int) -> float | None:
    """Time per output token when `concurrency` clients send the next request at once; None if their KV does not fit.

    Each sequence lives `output` steps, so each step carries the prompts of (concurrency - 1) / output of the others.
    """
    if tp not in model.points or concurrency * (prompt + output) > model.kv_tokens(tp):
        return None
    mhz = model.clocks_mhz[-1]
    context = round(concurrency * (prompt + output / 2))
    decode_s = model.decode_step_s(tp, mhz, concurrency, context)
    return decode_s + model.point(tp).prefill_per_token_s * (concurrency - 1) * prompt / output


def steady_state(model: EngineModel, tp: int, clock_mhz: float, rps: float, prompt: int, output: int) -> Steady | None:
    """Little's law and an M/D/1 prefill queue; None if the instance cannot keep up."""
    if tp not in model.points:
        return None
    prefill_s = model.prefill_s(tp, clock_mhz, prompt)
    share = rps * prefill_s
    if share >= 1:
        return None
    gap_s = model.decode_step_s(tp, clock_mhz, 1, prompt)
    running = 0.0
    for _ in range(200):
        running = rps * output * gap_s
        context = running * (prompt + output / 2)
        if context > model.kv_tokens(tp):
            return None
        step_s = _decode_s(model, tp, clock_mhz, max(running, 1.0), context)
        gap_s += (step_s / (1 - share) - gap_s) / 2
    wait_s = share * prefill_s / (2 * (1 - share)) + busy(running) * model.decode_step_s(tp, clock_mhz, 1, 0) / 2
    watts = steady_watts(model, tp, clock_mhz, share, running, prompt)
    return Steady(running, prefill_s + wait_s, gap_s, watts)


def steady_watts(
    model: EngineModel, tp: int, clock_mhz: float, prefill_share: float, running: float, prompt: int
) -> float:
    """Mean watts of the instance: its time prefills, decodes or idles."""
    decode_share = (1 - prefill_share) * busy(running)
    batch = max(1, round(running))
    return (
        prefill_share * model.watts(tp, clock_mhz, round(running), prompt)
        + decode_share * model.watts(tp, clock_mhz, batch)
        + (1 - prefill_share - decode_share) * model.watts(tp, clock_mhz, 0)
    )


def _decode_s(model: EngineModel, tp: int, clock_mhz: float, running: float, context: float) -> float:
    """A decode step for a mean number of sequences, between the whole numbers beside it."""
    low = int(running)
    low_s = model.decode_step_s(tp, clock_mhz, low, round(context))
    return low_s + (running - low) * (model.decode_step_s(tp, clock_mhz, low + 1, round(context)) - low_s)
