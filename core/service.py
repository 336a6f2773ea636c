"""What the operator promised and configured, as frozen values: SLO, class edges, pools, instance limits, services.

Built from YAML by gateway/config.py; read by everyone; changed by replacing, never in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SIZES = ("S", "M", "L")
CLASSES = tuple(input_size + output_size for input_size in SIZES for output_size in SIZES)
STEP_TOKENS = 2048  # taken where nothing says better: vLLM's serving default on most GPUs


@dataclass(frozen=True, slots=True)
class Edges:
    """Upper edges in tokens, inclusive. Input: (S, M, L), L being the largest prompt of the SLO. Output: (S, M)."""

    input: tuple[int, int, int] = (256, 1024, 8192)
    output: tuple[int, int] = (100, 350)

    def input_size(self, tokens: int) -> str:
        return "S" if tokens <= self.input[0] else "M" if tokens <= self.input[1] else "L"

    def output_size(self, tokens: int) -> str:
        return "S" if tokens <= self.output[0] else "M" if tokens <= self.output[1] else "L"


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objectives in seconds, each at p99: TTFT by input size, TBT for all (DynamoLLM, Table IV)."""

    ttft_s: Mapping[str, float] = field(default_factory=lambda: {"S": 0.25, "M": 0.4, "L": 2.0})
    tbt_s: float = 0.1


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """What one instance may hold at once: `slots` sequences and `kv_tokens` tokens of KV cache; and `step_tokens`, the
    most tokens, decoded and prefilled together, that its engine computes in one step. 0 = not known."""

    slots: int
    kv_tokens: int = 0
    step_tokens: int = 0

    @property
    def tokens_per_step(self) -> int:
        return self.step_tokens or STEP_TOKENS


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool: `serves` are output sizes it serves first. Pools are ordered, shortest answers first."""

    name: str
    serves: tuple[str, ...]
    instances: int
    tp: int
    clock_mhz: int
    limits: InstanceLimits
    urls: tuple[str, ...] = ()  # static launcher only


def order_problem(serves: Sequence[Sequence[str]]) -> tuple[int | None, str] | None:
    """What is wrong with the output sizes of pools in their order: (index of the pool or None, a sentence)."""
    longest = [max(SIZES.index(size) for size in sizes) for sizes in serves]
    for index, (before, here) in enumerate(pairwise(longest), start=1):
        if here < before:
            return index, "pools go from short answers to long ones; move it further up"
    if longest and max(longest) < len(SIZES) - 1:
        unserved = " and ".join(SIZES[max(longest) + 1 :])
        return None, f"no pool serves {unserved} answers, nor longer ones; add {unserved} to the last pool"
    return None


@dataclass(frozen=True, slots=True)
class LauncherSpec:
    """How instances come to be. kind: `emulated` (joulegate engine as child processes), `process` (argv as given, child
    processes), `static` (URLs that somebody else runs). In argv and env `{port}`, `{tp}`, `{model}`, `{slots}`,
    `{clock_mhz}` and the like are filled in."""

    kind: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 120.0
    start_delay_s: float = 0.0  # emulated: what loading weights would take
    stop_timeout_s: float = 10.0
    log_dir: str = "build/logs"
    agent: str = ""  # of this host, by its name in the configuration
    sleep_level: int = 1  # vLLM's: 1 keeps the weights in host memory, 2 drops them
    weights: str = ""  # a folder that instances read their weights from


@dataclass(frozen=True, slots=True)
class PredictorSpec:
    """What foretells the lengths of answers. kind: `model` (a length model beside each template's history) or `running`
    (history alone). `model` and `challenger` are files, empty = the shipped model and none."""

    kind: str = "model"
    model: str = ""
    challenger: str = ""
    keep_prompts: bool = False


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """One served model with its promises and pools. `name` is what clients put into `model`; `model` is what the
    engines call it; `profile` names an engine model in profiles/ or is empty."""

    name: str
    model: str
    context_tokens: int
    slo: Slo
    edges: Edges
    pools: tuple[PoolSpec, ...]
    launcher: LauncherSpec
    profile: str = ""
    tokenizer: str = ""
    embeddings: bool = False
    engine_api_key_env: str = ""
    engine_priority: bool = False
    migration: bool = True
    predictor: PredictorSpec = field(default_factory=PredictorSpec)
    eta: float | None = None  # 1: plans count joules alone, 0: latency alone; None: as the controller is configured

    def pool_for(self, output_size: str) -> int:
        """Index of the first pool that serves `output_size`; the last pool serves whatever no pool names."""
        for index, pool in enumerate(self.pools):
            if output_size in pool.serves:
                return index
        return len(self.pools) - 1
