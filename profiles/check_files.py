"""The engine models beside the rows of published data files. Owns which row is compared with which answer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from profiles.check_rows import LATENCY_AIM, POWER_AIM, Comparison, Models, Quantity, closed_loop_s
from profiles.engine_model import EngineModel
from profiles.published import BASE_TASK, OWN_PRECISION, MlEnergyRun, SiliconRow, SplitwiseRow, V2Run

ASSUMED_PROMPT = 200  # tokens; the published rows outside the base tasks do not give theirs

STEP_CAPS = Quantity("decode step: ML.ENERGY v3, other batch caps", LATENCY_AIM)
STEP_TASKS = Quantity(
    "decode step: ML.ENERGY v3, other tasks and twins", LATENCY_AIM, "prompt lengths are not published"
)
WATTS_CAPS = Quantity("watts: ML.ENERGY v3, other batch caps", POWER_AIM)
WATTS_TASKS = Quantity("watts: ML.ENERGY v3, other tasks and twins", POWER_AIM)
TOKEN_J = Quantity("joules per token: ML.ENERGY v3", POWER_AIM, "prompt lengths are not published")
ML_ENERGY_QUANTITIES = (STEP_CAPS, STEP_TASKS, WATTS_CAPS, WATTS_TASKS, TOKEN_J)

TPOT_QWEN = Quantity("time per token: vLLM on H100, qwen3-32b (aiconfigurator)", LATENCY_AIM)
TPOT_GPT_OSS = Quantity(
    "time per token: vLLM on H100, gpt-oss-120b (aiconfigurator)",
    LATENCY_AIM,
    "vLLM 0.18; the decode constants are vLLM 0.11's",
)
TPOT_TRTLLM = Quantity(
    "time per token: TensorRT-LLM on H100, llama-3.1-8b (aiconfigurator)", LATENCY_AIM, "another engine than vLLM"
)
TPOT_SGLANG = Quantity(
    "time per token: SGLang on H100, qwen3-32b (aiconfigurator)",
    LATENCY_AIM,
    "it prefills first and alone: its TTFT holds what vLLM's time per token holds",
)
TPOT_H200 = Quantity(
    "time per token: H200, derived, gpt-oss-120b (aiconfigurator)",
    LATENCY_AIM,
    "vLLM 0.18 and TensorRT-LLM; the decode constants are vLLM 0.11's",
)
H200_RATIO = Quantity("H200 / H100 time per token (aiconfigurator)", LATENCY_AIM)
TP_TPOT = Quantity("TP scaling of time per token: own precision (aiconfigurator)", LATENCY_AIM)
TP_TPOT_FP8 = Quantity(
    "TP scaling of time per token: fp8 weights (aiconfigurator)",
    LATENCY_AIM,
    "the models are bf16; half the weights to read gain less from a larger TP",
)
TP_TTFT = Quantity(
    "TP scaling of TTFT (aiconfigurator)",
    LATENCY_AIM,
    "closed loop: their TTFT holds the queue behind a burst of prompts",
)
TPOT_OTHER = Quantity("time per token: other runs on H100 (aiconfigurator)", LATENCY_AIM, "another engine than vLLM")
TPOT_H100 = {
    ("vllm", "qwen3-32b"): TPOT_QWEN,
    ("vllm", "gpt-oss-120b"): TPOT_GPT_OSS,
    ("trtllm", "llama-3.1-8b"): TPOT_TRTLLM,
    ("sglang", "qwen3-32b"): TPOT_SGLANG,
}
SILICON_QUANTITIES = (*TPOT_H100.values(), TPOT_H200, H200_RATIO, TP_TPOT, TP_TPOT_FP8, TP_TTFT)

PROMPT_H100 = Quantity("prompt time: splitwise-sim, H100", LATENCY_AIM, "engine of 2023")
TOKEN_H100 = Quantity("token time: splitwise-sim, H100", LATENCY_AIM, "engine of 2023, no CUDA graphs")
PROMPT_A100 = Quantity("prompt time: splitwise-sim, A100, derived", LATENCY_AIM, "engine of 2023")
TOKEN_A100 = Quantity("token time: splitwise-sim, A100, derived", LATENCY_AIM, "engine of 2023, no CUDA graphs")
WATTS_A100 = Quantity("watts: splitwise-sim, A100, derived", POWER_AIM, "engine of 2023")
SPLITWISE_QUANTITIES = (PROMPT_H100, TOKEN_H100, PROMPT_A100, TOKEN_A100, WATTS_A100)

V2_RATIO = Quantity("A100 / H100 time per token (ML.ENERGY v2)", LATENCY_AIM, "A100 has 40 GB at 1.56 TB/s there")
V2_WATTS = Quantity("A100 / H100 watts (ML.ENERGY v2)", POWER_AIM, "two rows")
V2_TPOT = Quantity(
    "time per token: A100, derived (ML.ENERGY v2)", LATENCY_AIM, "vLLM of 2024, about three times slower than 2025's"
)
V2_QUANTITIES = (V2_RATIO, V2_WATTS, V2_TPOT)

QUANTITIES = (*ML_ENERGY_QUANTITIES, *SILICON_QUANTITIES, *SPLITWISE_QUANTITIES, *V2_QUANTITIES)


def compare_ml_energy(runs: Iterable[MlEnergyRun], models: Models) -> list[Comparison]:
    compared: list[Comparison] = []
    for run in runs:
        model = models["h100", run.model]
        if run.is_fit or run.tp not in model.points:
            continue
        in_base = run.task == BASE_TASK[run.model]
        context = model.context_tokens if in_base else run.written_tokens + ASSUMED_PROMPT
        running, mhz = round(run.running), model.clocks_mhz[-1]
        step_s = model.decode_step_s(run.tp, mhz, running, round(running * context))
        label = f"{run.source.rpartition('/')[2]} {run.task} TP{run.tp} B={run.cap}"
        is_cap = in_base and run.source.rpartition("/")[2].lower().startswith(run.model)
        compared.append(Comparison(STEP_CAPS if is_cap else STEP_TASKS, label, run.itl_s, step_s))
        watts = model.watts(run.tp, mhz, running)
        compared.append(Comparison(WATTS_CAPS if is_cap else WATTS_TASKS, label, run.watts, watts))
        if "image" in run.task or "video" in run.task:
            continue  # most of their prompt is pictures
        prompt = max(0.0, context - run.written_tokens)
        prompt_s = model.point(run.tp).prefill_per_token_s * running * prompt / run.output_tokens
        token_j = watts * (step_s + prompt_s) / running
        compared.append(Comparison(TOKEN_J, label, run.watts / run.tokens_s, token_j))
    return compared


def compare_silicon(rows: Iterable[SiliconRow], models: Models) -> list[Comparison]:
    check = [row for row in rows if not row.is_fit]
    compared: list[Comparison] = []
    for row in check:
        modelled_s = _tpot_s(row, models)
        if modelled_s is None or row.precision != OWN_PRECISION[row.model]:
            continue
        quantity = TPOT_H200 if row.gpu == "h200" else TPOT_H100.get((row.backend, row.model), TPOT_OTHER)
        compared.append(Comparison(quantity, _silicon_label(row), row.tpot_s, modelled_s))
    return compared + _gpu_ratios(check, models) + _tp_ratios(check, models)


def compare_splitwise(rows: Iterable[SplitwiseRow], models: Models) -> list[Comparison]:
    compared: list[Comparison] = []
    for row in rows:
        model = models[row.gpu, "llama-2-70b"]
        tokens = row.batch * row.prompt
        if row.is_fit or row.batch * (row.prompt + row.output) > model.kv_tokens(row.tp):
            continue
        mhz = model.clocks_mhz[-1]
        label = f"{row.gpu} TP{row.tp} {row.batch} x {row.prompt} in, {row.output} out"
        on_h100 = row.gpu == "h100"
        prompt_s = model.prefill_s(row.tp, mhz, tokens)
        compared.append(Comparison(PROMPT_H100 if on_h100 else PROMPT_A100, label, row.prompt_s, prompt_s))
        token_s = model.decode_step_s(row.tp, mhz, row.batch, tokens + row.batch * row.output // 2)
        compared.append(Comparison(TOKEN_H100 if on_h100 else TOKEN_A100, label, row.token_s, token_s))
        if row.power_share > 0:
            share = min(1.0, prompt_s / (prompt_s + row.output * token_s))
            watts = share * model.watts(row.tp, mhz, 0, tokens) + (1 - share) * model.watts(row.tp, mhz, row.batch)
            compared.append(Comparison(WATTS_A100, label, row.power_share * model.clip_w * row.tp, watts))
    return compared


def compare_v2(runs: Iterable[V2Run], models: Models) -> list[Comparison]:
    check = [run for run in runs if not run.is_fit]
    others = {(run.model, run.tp, run.cap): run for run in check if run.gpu == "h100"}
    compared: list[Comparison] = []
    for run in check:
        if run.gpu != "a100":
            continue
        a100, h100 = models["a100", run.model], models["h100", run.model]
        label = f"{run.model} TP{run.tp} B={run.cap}"
        context = run.cap * a100.context_tokens
        a100_s = a100.decode_step_s(run.tp, a100.clocks_mhz[-1], run.cap, context)
        compared.append(Comparison(V2_TPOT, label, run.tpot_s, a100_s))
        other = others.get((run.model, run.tp, run.cap))
        if other is not None:
            h100_s = h100.decode_step_s(run.tp, h100.clocks_mhz[-1], run.cap, context)
            compared.append(Comparison(V2_RATIO, label, run.tpot_s / other.tpot_s, a100_s / h100_s))
            ratio = _max_w(a100, run) / _max_w(h100, run)
            compared.append(Comparison(V2_WATTS, label, run.watts / other.watts, ratio))
    return compared


def _gpu_ratios(rows: list[SiliconRow], models: Models) -> list[Comparison]:
    """The same run on both cards, in the precision that the engine models have."""
    on_h100 = {_run(row): row for row in rows if row.gpu == "h100"}
    compared = []
    for row in rows:
        other = on_h100.get(_run(row))
        if row.gpu != "h200" or other is None or row.precision != OWN_PRECISION[row.model]:
            continue
        h200_s, h100_s = _tpot_s(row, models), _tpot_s(other, models)
        if h200_s is not None and h100_s is not None:
            label = _silicon_label(row)
            compared.append(Comparison(H200_RATIO, label, row.tpot_s / other.tpot_s, h200_s / h100_s))
    return compared


def _tp_ratios(rows: list[SiliconRow], models: Models) -> list[Comparison]:
    """Each TP against the smallest one that the engine model has, in runs that are equal but for TP."""
    compared = []
    ordered = sorted(rows, key=lambda row: (row.gpu, *_run(row, with_tp=False), row.tp))
    for _, same in groupby(ordered, key=lambda row: (row.gpu, *_run(row, with_tp=False))):
        known = [(row, tpot_s) for row in same if (tpot_s := _tpot_s(row, models)) is not None]
        for row, tpot_s in known[1:]:
            least, least_s = known[0]
            model = models[row.gpu, row.model]
            mhz = model.clocks_mhz[-1]
            label = f"{_silicon_label(row)} / TP{least.tp}"
            quantity = TP_TPOT if row.precision == OWN_PRECISION[row.model] else TP_TPOT_FP8
            compared.append(Comparison(quantity, label, row.tpot_s / least.tpot_s, tpot_s / least_s))
            ratio = model.prefill_s(row.tp, mhz, row.prompt) / model.prefill_s(least.tp, mhz, row.prompt)
            compared.append(Comparison(TP_TTFT, label, row.ttft_s / least.ttft_s, ratio))
    return compared


def _tpot_s(row: SiliconRow, models: Models) -> float | None:
    return closed_loop_s(models[row.gpu, row.model], row.tp, row.concurrency, row.prompt, row.output)


def _run(row: SiliconRow, with_tp: bool = True) -> tuple[str | int, ...]:
    shape = (row.model, row.backend, row.version, row.precision, row.prompt, row.output, row.concurrency)
    return (*shape, row.tp) if with_tp else shape


def _silicon_label(row: SiliconRow) -> str:
    engine = f"{row.backend} {row.version}".strip()
    return f"{row.gpu} {row.model} {engine} {row.precision} TP{row.tp} {row.prompt}/{row.output} c={row.concurrency}"


def _max_w(model: EngineModel, run: V2Run) -> float:
    return model.watts(run.tp, model.clocks_mhz[-1], run.cap)
