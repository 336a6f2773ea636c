"""Published measurements as rows: ML.ENERGY v2 and v3, splitwise-sim, aiconfigurator.

Owns the reading of those files and the rule that splits each into a fit set and a check set (`is_fit`). A row is in
exactly one of them. Reads only; fits nothing and compares nothing.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ML_ENERGY = "mlenergy/v3_llm_runs.csv"
ML_ENERGY_LENGTHS = "mlenergy/v3_output_length_histograms.csv.gz"
ML_ENERGY_V2 = "mlenergy/v2_llm_runs.csv"
SPLITWISE = "splitwise_perf_model/perf_model.csv"
SILICON = "aiconfigurator/silicon_sample.csv.gz"

BASE_TASK = {
    "llama-3.1-8b": "lm-arena-chat",
    "llama-3.1-70b": "lm-arena-chat",
    "qwen3-32b": "lm-arena-chat",
    "gpt-oss-120b": "gpqa",
}
ML_ENERGY_NAMES = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b",  # the same shapes, other weights
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-VL-32B-Instruct": "qwen3-32b",  # the same text decoder
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
TWINS = ("meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-VL-32B-Instruct")
SILICON_NAMES = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
OWN_PRECISION = {"llama-3.1-8b": "bf16", "llama-3.1-70b": "bf16", "qwen3-32b": "bf16", "gpt-oss-120b": "fp4"}
PREFILL_SHAPES = {("qwen3-32b", "0.12.0"): (4096, 128), ("gpt-oss-120b", "0.18.0"): (8192, 1024)}


@dataclass(frozen=True, slots=True)
class MlEnergyRun:
    """One v3 run on H100. `written_tokens`: what a running sequence met at random has written."""

    source: str
    model: str
    task: str
    tp: int
    cap: int
    running: float
    itl_s: float
    watts: float  # the whole instance
    tokens_s: float  # output tokens of the whole instance
    output_tokens: float
    written_tokens: float

    @property
    def is_fit(self) -> bool:
        """The model's own name, its base task, and a batch cap that is a power of two."""
        own = self.source not in TWINS and self.task == BASE_TASK[self.model]
        return own and self.cap & (self.cap - 1) == 0


@dataclass(frozen=True, slots=True)
class V2Run:
    """One ML.ENERGY v2 run (vLLM of 2024: times are several times today's, so only ratios are used)."""

    gpu: str
    model: str
    tp: int
    cap: int
    tpot_s: float
    watts: float

    @property
    def is_fit(self) -> bool:
        """Llama-3.1-8B with a batch cap that is a power of two."""
        return self.model == "llama-3.1-8b" and self.cap & (self.cap - 1) == 0


@dataclass(frozen=True, slots=True)
class SplitwiseRow:
    """The median of the repeats of one splitwise-sim configuration of Llama-2-70B."""

    gpu: str
    tp: int
    prompt: int
    batch: int
    output: int
    prompt_s: float
    token_s: float
    power_share: float  # of the card's limit; 0 = not measured

    @property
    def is_fit(self) -> bool:
        """One sequence, 128 output tokens, and a prompt of 2^odd tokens."""
        return self.batch == 1 and self.output == 128 and (self.prompt.bit_length() - 1) % 2 == 1


@dataclass(frozen=True, slots=True)
class SiliconRow:
    """One aiconfigurator serving run: closed loop of `concurrency` clients, aggregated prefill and decode."""

    gpu: str
    model: str
    backend: str
    version: str
    precision: str
    tp: int
    prompt: int
    output: int
    concurrency: int
    ttft_s: float
    tpot_s: float

    @property
    def is_fit(self) -> bool:
        """H100, vLLM, the engine model's own precision, and the shape with most prompt per answer (PREFILL_SHAPES)."""
        run = (self.gpu, self.backend, self.precision) == ("h100", "vllm", OWN_PRECISION[self.model])
        return run and PREFILL_SHAPES.get((self.model, self.version)) == (self.prompt, self.output)


def read_ml_energy(data: Path) -> list[MlEnergyRun]:
    written = _written_tokens(data / ML_ENERGY_LENGTHS)
    runs = []
    for row in _rows(data / ML_ENERGY):
        model = ML_ENERGY_NAMES.get(row["model_id"])
        if row["gpu_model"] != "H100" or model is None:
            continue
        tp, cap = int(row["num_gpus"]), int(row["max_num_seqs"])
        runs.append(
            MlEnergyRun(
                source=row["model_id"],
                model=model,
                task=row["task"],
                tp=tp,
                cap=cap,
                running=float(row["avg_batch_size"]),
                itl_s=float(row["median_itl_ms"]) / 1e3,
                watts=float(row["avg_power_watts"]),
                tokens_s=float(row["output_throughput_tokens_per_sec"]),
                output_tokens=float(row["avg_output_len"]),
                written_tokens=written.get((row["model_id"], row["task"], tp, cap), float(row["avg_output_len"]) / 2),
            )
        )
    return runs


def read_v2(data: Path) -> list[V2Run]:
    names = {"Meta-Llama-3.1-8B-Instruct": "llama-3.1-8b", "Meta-Llama-3.1-70B-Instruct": "llama-3.1-70b"}
    runs = []
    for row in _rows(data / ML_ENERGY_V2):
        model = names.get(row["Model"].rpartition("/")[2])
        if model is None or row["PP"] != "1":
            continue
        token_j = float(row["Energy/req (J)"]) / float(row["Avg Output Tokens"])
        gpu = "a100" if "A100" in row["GPU"] else "h100"
        watts = token_j * float(row["Token tput (tok/s)"])
        runs.append(V2Run(gpu, model, int(row["TP"]), int(row["Max BS (reqs)"]), float(row["Avg TPOT (s)"]), watts))
    return runs


def read_splitwise(data: Path) -> list[SplitwiseRow]:
    repeats: dict[tuple[str, int, int, int, int], list[Mapping[str, str]]] = defaultdict(list)
    for row in _rows(data / SPLITWISE):
        gpu = row["hardware"].removesuffix("-80gb")
        if row["model"] == "llama2-70b" and gpu in ("a100", "h100"):  # the "pcap" rows are assumed, not measured
            shape = (int(row["prompt_size"]), int(row["batch_size"]), int(row["token_size"]))
            repeats[(gpu, int(row["tensor_parallel"]), *shape)].append(row)
    return [
        SplitwiseRow(
            *key,
            prompt_s=median(float(row["prompt_time"]) for row in rows) / 1e3,
            token_s=median(float(row["token_time"]) for row in rows) / 1e3,
            power_share=median(float(row["average_power"]) for row in rows),
        )
        for key, rows in sorted(repeats.items())
    ]


def read_silicon(data: Path) -> list[SiliconRow]:
    """Runs on H100 and H200 of the models at hand; doubles of one run are read once."""
    found: dict[tuple[object, ...], SiliconRow] = {}
    for row in _rows(data / SILICON):
        model = SILICON_NAMES.get(row["model_path"])
        plain = row["mode"] == "agg" and row["pp_size"] == "1" and row["attention_dp_size"] in ("", "1")
        gpu = row["system"].removesuffix("_sxm")
        # Expert parallelism and pipelines are other configurations than the engine models describe.
        if model is None or not plain or gpu not in ("h100", "h200") or row["moe_ep_size"] not in ("", "0", "1"):
            continue
        one = SiliconRow(
            gpu=gpu,
            model=model,
            backend=row["backend"],
            version=row["backend_version"],
            precision=row["precision"] or "bf16",
            tp=int(row["tp_size"]),
            prompt=int(row["isl"]),
            output=int(row["osl"]),
            concurrency=int(row["batch_size"]),
            ttft_s=float(row["silicon_ttft_ms"]) / 1e3,
            tpot_s=float(row["silicon_tpot_ms"]) / 1e3,
        )
        key = (gpu, model, one.backend, one.version, one.precision, one.tp, one.prompt, one.output, one.concurrency)
        found.setdefault(key, one)
    return list(found.values())


def _written_tokens(path: Path) -> dict[tuple[str, str, int, int], float]:
    """Mean tokens that a sequence met at random has written: E[L^2] / 2 E[L], from the output-length histograms."""
    written: dict[tuple[str, str, int, int], float] = {}
    if not path.exists():
        return written
    for row in _rows(path):
        if row["gpu"] != "H100":
            continue
        counts = [int(count) for count in row["counts"].split()]
        low, high = float(row["bins_lo"]), float(row["bins_hi"])
        lengths = [low + (high - low) * (index + 0.5) / len(counts) for index in range(len(counts))]
        total = sum(n * length for n, length in zip(counts, lengths, strict=True))
        squares = sum(n * length * length for n, length in zip(counts, lengths, strict=True))
        if total:
            key = (row["model"], row["task"], int(row["num_gpus"]), int(row["max_num_seqs"]))
            written[key] = squares / (2 * total)
    return written


def _rows(path: Path) -> Iterator[dict[str, str]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    yield from csv.DictReader(text.splitlines())
