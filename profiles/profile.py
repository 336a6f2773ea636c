"""The profile: a table of operating points and where each came from. Frozen values; reads no file, answers no query."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA = 1
ORIGINS = ("measured", "emulated", "derived")
CPU_SECONDS = "cpu-seconds"  # the energy counter under which a "watt" is one busy core
# A quantity that nobody measured or published; an empty cell in a file. Infinite, so that an unknown latency never
# passes for one within its limit and unknown watts never for the cheapest.
UNKNOWN = math.inf
MAY_BE_UNKNOWN = frozenset(
    {
        *("input_tokens", "prefill_tps", "running", "context_tokens", "kv_share", "watts", "j_per_output_token"),
        *("ttft_p50_s", "ttft_p99_s", "tbt_p50_s", "tbt_p99_s"),
    }
)


@dataclass(frozen=True, slots=True)
class Point:
    """One steady-state window of one instance under one load.

    `load` names the request mix ("LL", "SS", or a mix's name); `input_tokens` and `output_tokens` are its means: what
    generated the point. `prefill_tps` (prompt tokens/s), `running` (mean sequences in a step) and `context_tokens`
    (mean KV tokens of one running sequence) are what the engine saw. `watts` is the whole instance, not one GPU; where
    the profile's energy counter is cpu-seconds it is the number of busy cores, and "joules" are CPU-seconds.
    `saturated`: the load was past what the instance holds (its queue grew); such a row marks the cliff and is never
    interpolated to. A row with `offered_rps` 0 is the idle anchor of its cell: watts with nothing running, no latency.
    What is not known is UNKNOWN.
    """

    tp: int
    clock_mhz: int
    load: str
    input_tokens: float
    output_tokens: float
    offered_rps: float
    prefill_tps: float
    running: float
    context_tokens: float
    ttft_p50_s: float
    ttft_p99_s: float
    tbt_p50_s: float
    tbt_p99_s: float
    watts: float
    j_per_output_token: float
    output_tps: float
    kv_share: float
    waiting: float
    saturated: bool
    requests: int
    window_s: float
    repeats: int = 1
    watts_ci: float = 0.0  # half width of the 95 % confidence interval over repeats, W; 0 = one repeat
    ttft_p99_ci_s: float = 0.0
    origin: str = "measured"

    @property
    def cell(self) -> tuple[str, int, int]:
        return (self.load, self.tp, self.clock_mhz)


@dataclass(frozen=True, slots=True)
class Provenance:
    """How the rows came to be.

    `energy_counter`: nvml-total-energy, emulated, cpu-seconds, published, modelled, given (by a person) or none.
    """

    origin: str
    made_on: str  # ISO date
    command: str
    energy_counter: str
    steady_state: str  # the rule that cut the window
    engine: str  # vllm, emulated-vllm
    engine_version: str
    driver: str = ""
    source: str = ""  # citation, or the engine model's name
    notes: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)  # max_num_seqs, max_num_batched_tokens, max_model_len


@dataclass(frozen=True, slots=True)
class Residual:
    """What live traffic taught about one (TP, clock): measured / profiled.

    `latency_sd` and `watts_sd` are how unsure the estimates are, as standard deviations of their logarithms; `samples`
    counts the latencies behind them, `watts_samples` the watts.
    """

    tp: int
    clock_mhz: int
    latency: float
    watts: float
    latency_sd: float
    watts_sd: float
    samples: int
    watts_samples: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """Every point known for one (gpu, model, engine)."""

    gpu: str
    model: str
    provenance: Provenance
    points: tuple[Point, ...]
    residuals: tuple[Residual, ...] = ()
    schema: int = SCHEMA
