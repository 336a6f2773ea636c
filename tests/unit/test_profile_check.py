"""`joulegate profile check`: fit and check sets never meet, misses are shown, missing files are named."""

import csv
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from joulegate import app
from profiles.check import check_models, nearest_rank, summarise
from profiles.check_rows import Comparison, Quantity, closed_loop_s, steady_state
from profiles.engine_model import load_engine_model
from profiles.fit import clock_constants, compare, grid_constants, line
from profiles.published import (
    ML_ENERGY,
    ML_ENERGY_LENGTHS,
    ML_ENERGY_V2,
    SILICON,
    SPLITWISE,
    read_ml_energy,
    read_silicon,
    read_splitwise,
    read_v2,
)
from profiles.published_facts import read_facts

V3_COLUMNS = (
    "model_id,gpu_model,task,num_gpus,max_num_seqs,avg_batch_size,median_itl_ms,"
    "avg_power_watts,output_throughput_tokens_per_sec,avg_output_len"
)
V2_COLUMNS = "Model,GPU,TP,PP,Max BS (reqs),Avg TPOT (s),Energy/req (J),Avg Output Tokens,Token tput (tok/s)"
SPLITWISE_COLUMNS = (
    "model,hardware,prompt_size,batch_size,token_size,average_power,prompt_time,token_time,tensor_parallel"
)
SILICON_COLUMNS = (
    "backend,backend_version,model_path,system,precision,mode,isl,osl,batch_size,tp_size,"
    "pp_size,attention_dp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms"
)
LLAMA, TWIN, QWEN = "meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-32B"
V3 = [  # fit rows first: B = 8, 16, 512
    (LLAMA, "H100", "lm-arena-chat", 4, 8, 8, 16.57, 1765, 470, 350),
    (LLAMA, "H100", "lm-arena-chat", 4, 16, 16, 17.7, 1803, 863, 354),
    (LLAMA, "H100", "lm-arena-chat", 4, 512, 510.5, 73.9, 2493, 5921, 350),
    (LLAMA, "H100", "lm-arena-chat", 4, 96, 95.7, 25.4, 2100, 3244, 357),
    (TWIN, "H100", "lm-arena-chat", 4, 16, 16, 17.6, 1840, 875, 410),
    (QWEN, "H100", "gpqa", 2, 64, 63.8, 32.3, 1114, 2079, 7058),
    (LLAMA, "B200", "lm-arena-chat", 4, 96, 95.7, 11.0, 3000, 9000, 357),
    ("google/gemma-3-12b-it", "H100", "lm-arena-chat", 1, 8, 8, 9.0, 400, 900, 300),
]
V2_8B, V2_70B = "meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-70B-Instruct"
A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"
V2 = [  # fit rows first: caps 64 and 128
    (V2_8B, A100, 1, 1, 64, 0.050, 40, 250, 1247),
    (V2_8B, H100, 1, 1, 64, 0.035, 43, 250, 1788),
    (V2_8B, A100, 1, 1, 128, 0.079, 31, 250, 1520),
    (V2_8B, H100, 1, 1, 128, 0.057, 33, 250, 2155),
    (V2_8B, A100, 1, 1, 192, 0.109, 30, 250, 1600),
    (V2_8B, H100, 1, 1, 192, 0.070, 30, 250, 2480),
    (V2_70B, A100, 8, 1, 64, 0.119, 400, 250, 531),
    (V2_70B, A100, 8, 2, 64, 0.119, 400, 250, 531),
]
SPLIT = [
    ("llama2-70b", "a100-80gb", 512, 1, 128, 0.6, 127, 45, 4),
    ("llama2-70b", "h100-80gb", 512, 1, 128, 0, 60, 29.7, 4),
    ("llama2-70b", "a100-80gb", 1024, 1, 128, 0.6, 227, 45, 4),
    ("llama2-70b", "h100-80gb", 1024, 1, 128, 0, 106, 29.4, 4),
    ("llama2-70b", "h100-80gb", 512, 4, 128, 0, 195, 29.9, 4),
    ("llama2-70b", "h100-80gb-pcap", 512, 4, 128, 0, 254, 29.9, 4),
    ("bloom-176b", "h100-80gb", 512, 4, 128, 0, 254, 29.9, 8),
]
SILICON_ROWS = [
    ("vllm", "0.12.0", QWEN, "h100_sxm", "", "agg", 4096, 128, 8, 2, 1, "", "1", 742, 26.3),
    ("vllm", "0.12.0", QWEN, "h100_sxm", "", "agg", 4096, 128, 32, 2, 1, "", "1", 1062, 75.0),
    ("vllm", "0.12.0", QWEN, "h100_sxm", "", "agg", 1024, 1024, 32, 2, 1, "", "1", 237, 20.1),
    ("vllm", "0.12.0", QWEN, "h100_sxm", "", "agg", 1024, 1024, 32, 2, 1, "", "1", 237, 20.1),
    ("vllm", "0.12.0", QWEN, "h100_sxm", "", "agg", 1024, 1024, 32, 4, 1, "", "1", 178, 13.7),
    ("sglang", "0.5", QWEN, "h100_sxm", "", "agg", 1024, 128, 16, 2, 1, "", "1", 841, 16.5),
    ("vllm", "0.18.0", "openai/gpt-oss-120b", "h100_sxm", "fp4", "agg", 1024, 1024, 8, 2, 1, "1", "1", 70, 6.2),
    ("vllm", "0.18.0", "openai/gpt-oss-120b", "h200_sxm", "fp4", "agg", 1024, 1024, 8, 2, 1, "1", "1", 68, 6.0),
    ("vllm", "0.18.0", "openai/gpt-oss-120b", "h200_sxm", "fp4", "agg", 1024, 1024, 8, 2, 1, "1", "4", 68, 6.0),
    ("vllm", "0.18.0", "openai/gpt-oss-120b", "h200_sxm", "fp4", "disagg", 1024, 1024, "", "", "", "", "", 68, 6.0),
]
FIT_ROWS = {ML_ENERGY: 3, ML_ENERGY_V2: 4, SPLITWISE: 2, SILICON: 2}
TABLES = {
    ML_ENERGY: (V3_COLUMNS, V3, ("median_itl_ms", "avg_power_watts")),
    ML_ENERGY_V2: (V2_COLUMNS, V2, ("Avg TPOT (s)", "Energy/req (J)")),
    SPLITWISE: (SPLITWISE_COLUMNS, SPLIT, ("prompt_time", "token_time")),
    SILICON: (SILICON_COLUMNS, SILICON_ROWS, ("silicon_ttft_ms", "silicon_tpot_ms")),
}


def write(data: Path, file: str, rows: list[dict[str, object]]) -> None:
    path = data / file
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = io.StringIO()
    table = csv.DictWriter(lines, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    text = lines.getvalue().encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def write_all(data: Path, fit_times: float = 1, check_times: float = 1) -> Path:
    """The small data, the measured columns of fit and check rows multiplied."""
    for file, (columns, rows, measured) in TABLES.items():
        named = [dict(zip(columns.split(","), row, strict=True)) for row in rows]
        for index, row in enumerate(named):
            for column in measured:
                row[column] *= fit_times if index < FIT_ROWS[file] else check_times
        write(data, file, named)
    lengths = {"model": QWEN, "task": "gpqa", "gpu": "H100", "num_gpus": 2, "max_num_seqs": 64}
    write(data, ML_ENERGY_LENGTHS, [{**lengths, "bins_lo": 0, "bins_hi": 4000, "counts": "0 10 0 10"}])
    return data


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_all(tmp_path / "data")


def test_readers_keep_what_the_models_describe(data: Path) -> None:
    runs = read_ml_energy(data)
    assert [(run.model, run.cap, run.is_fit) for run in runs] == [
        ("llama-3.1-70b", 8, True), ("llama-3.1-70b", 16, True), ("llama-3.1-70b", 512, True),
        ("llama-3.1-70b", 96, False), ("llama-3.1-70b", 16, False), ("qwen3-32b", 64, False),
    ]  # fmt: skip
    assert runs[-1].written_tokens == pytest.approx(
        (1500**2 + 3500**2) / (2 * 5000)
    )  # longer answers are met more often
    assert runs[0].written_tokens == 175  # no histogram: half of the mean
    assert [run.is_fit for run in read_v2(data)] == [True] * 4 + [False] * 3
    assert read_v2(data)[0].watts == pytest.approx(40 / 250 * 1247)
    assert {(row.gpu, row.prompt, row.batch): row.is_fit for row in read_splitwise(data)} == {
        ("a100", 512, 1): True, ("h100", 512, 1): True,
        ("a100", 1024, 1): False, ("h100", 1024, 1): False, ("h100", 512, 4): False,
    }  # fmt: skip
    assert [(row.gpu, row.tp, row.precision, row.is_fit) for row in read_silicon(data)] == [
        ("h100", 2, "bf16", True), ("h100", 2, "bf16", True), ("h100", 2, "bf16", False), ("h100", 4, "bf16", False),
        ("h100", 2, "bf16", False), ("h100", 2, "fp4", False), ("h200", 2, "fp4", False),
    ]  # fmt: skip


def test_no_check_row_takes_part_in_a_fit(data: Path, tmp_path: Path) -> None:
    """Ten times larger check rows leave every re-derived constant where it was; larger fit rows do not."""
    plain = {constant.name: constant.refit for constant in compare(data)}
    other = {constant.name: constant.refit for constant in compare(write_all(tmp_path / "check", check_times=10))}
    assert plain == other
    moved = {constant.name: constant.refit for constant in compare(write_all(tmp_path / "fit", fit_times=10))}
    changed = {name.split()[1] for name in plain if moved[name] != pytest.approx(plain[name])}
    assert changed == {"llama-3.1-70b", "qwen3-32b"}  # the other sources give ratios


def test_no_fit_row_is_checked(data: Path, tmp_path: Path) -> None:
    plain = [(one.label, one.published) for one in check_models(data).comparisons]
    assert [
        (one.label, one.published) for one in check_models(write_all(tmp_path / "fit", fit_times=10)).comparisons
    ] == plain


def test_facts_are_split_too() -> None:
    facts = read_facts()
    fit = {row.load_class for row in facts.grid if row.is_fit}
    assert fit == {"SL", "MM", "LS", "LM", "LL"}
    assert [tokens for tokens, _, is_fit in facts.fig_3 if is_fit] == [512, 2048, 8192]
    labels = {one.label for one in check_models(Path("nowhere")).comparisons}
    assert not [label for label in labels if label.split()[0] in fit and label.split()[1].startswith("TP")]
    assert {"SS TP4 5.5/s", "16 tokens", "decode TP2 930 MHz"} <= labels
    assert not {"512 tokens", "decode TP1 930 MHz", "prefill TP1 930 MHz"} & labels
    assert {row.place for row in facts.grid} == {"first", "middle", "last"}


def test_facts_of_the_check_set_take_no_part_in_a_fit() -> None:
    facts, model = read_facts(), load_engine_model("llama-2-70b")
    twice = [replace(row, tbt_s=2 * row.tbt_s, watts=2 * row.watts) if not row.is_fit else row for row in facts.grid]
    assert grid_constants(twice, model) == grid_constants(facts.grid, model)
    clocks = [row if row.is_fit else replace(row, time=(9.0,) * 6) for row in facts.a800]
    assert clock_constants(clocks) == clock_constants(facts.a800)


def test_typed_constants_of_the_facts_are_what_the_fit_set_gives() -> None:
    constants = compare(Path("nowhere"))
    assert len(constants) > 30
    assert [constant for constant in constants if not constant.agrees] == []


def test_a_small_check_finds_and_names(data: Path) -> None:
    report = check_models(data)
    by_name = {error.quantity.name: error for error in report.errors}
    assert by_name["decode step: ML.ENERGY v3, other batch caps"].n == 1
    assert by_name["decode step: ML.ENERGY v3, other batch caps"].median_error < 0.05
    assert by_name["TP scaling of time per token: own precision (aiconfigurator)"].n == 1
    assert by_name["H200 / H100 time per token (aiconfigurator)"].within_aim
    assert by_name["time per token: A100, derived (ML.ENERGY v2)"] in report.missed
    assert by_name["time per token: vLLM on H100, qwen3-32b (aiconfigurator)"].n == 2  # the double is read once
    no_row = "no row of the check set fits a known model"
    assert dict(report.left_out) == {
        "TP scaling of time per token: fp8 weights (aiconfigurator)": no_row,
        "time per token: TensorRT-LLM on H100, llama-3.1-8b (aiconfigurator)": no_row,
    }


def test_missing_sources_are_left_out_and_named(data: Path) -> None:
    (data / SILICON).unlink()
    (data / ML_ENERGY).unlink()
    result = CliRunner().invoke(app, ["profile", "check", "--data", str(data)])
    assert result.exit_code == 0, result.output
    assert f"left out: H200 / H100 time per token (aiconfigurator): {data / SILICON} is not there" in result.stdout
    assert f"left out: watts: ML.ENERGY v3, other batch caps: {data / ML_ENERGY} is not there" in result.stdout
    assert "MISS" in result.stdout


def test_json_strict_and_plots(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["profile", "check", "--data", str(data), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert set(answer) == {"quantities", "left_out", "constants", "fit_rule", "files"}
    for figures in answer["quantities"].values():
        assert {"n", "median_error", "p90_error", "aim", "within_aim"} <= set(figures)
        assert 0 <= figures["median_error"] <= figures["p90_error"]
        assert figures["within_aim"] == (figures["median_error"] <= figures["aim"])
    assert {path.name for path in out.iterdir()} == {"parity.png", "batch.png", "clocks.png", "check.json"}
    strict = CliRunner().invoke(app, ["profile", "check", "--data", str(data), "--strict"])
    assert strict.exit_code == 1
    assert "miss their aim" in strict.stderr


def test_bad_data_is_refused(data: Path, tmp_path: Path) -> None:
    nowhere = CliRunner().invoke(app, ["profile", "check", "--data", str(tmp_path / "nowhere")])
    assert (nowhere.exit_code, nowhere.stdout) == (2, "")
    assert "nowhere is not a folder" in nowhere.stderr
    (data / SPLITWISE).write_text("model,hardware\nllama2-70b,h100-80gb\n")
    broken = CliRunner().invoke(app, ["profile", "check", "--data", str(data)])
    assert broken.exit_code == 2
    assert "is not as published: KeyError('prompt_size')" in broken.stderr


def test_error_figures_are_nearest_ranks() -> None:
    quantity = Quantity("q", 0.1)
    errors = [Comparison(quantity, "", 100, 100 + at) for at in range(1, 11)]
    (error,) = summarise(errors)
    assert (error.n, round(error.median_error, 9), round(error.p90_error, 9)) == (10, 0.05, 0.09)
    assert nearest_rank([3.0], 0.5) == nearest_rank([3.0], 0.9) == 3.0
    assert nearest_rank([1.0, 2.0, 3.0], 0.5) == 2.0


def test_lines_and_steady_states() -> None:
    assert line([(0, 1), (1, 3), (2, 5)]) == pytest.approx((1, 2))
    assert line([(0, 1), (1, 3), (2, 99)], [1, 1, 0]) == pytest.approx((1, 2))
    model = load_engine_model("llama-2-70b")
    assert closed_loop_s(model, 2, 1000, 4096, 128) is None  # the KV does not fit
    assert closed_loop_s(model, 16, 1, 10, 10) is None
    assert closed_loop_s(model, 4, 1, 100, 100) == model.decode_step_s(4, 1980, 1, 150)
    assert steady_state(model, 2, 1980, 50, 1010, 256) is None  # more prefill than there is time
    quiet, busy = (steady_state(model, 4, 1980, rps, 1010, 256) for rps in (0.1, 2.5))
    assert quiet is not None and busy is not None
    assert quiet.running < busy.running
    assert quiet.gap_s < busy.gap_s
    assert quiet.ttft_s < busy.ttft_s
    assert 4 * model.idle_w < quiet.watts < busy.watts
    row = next(row for row in read_facts().grid if (row.load_class, row.tp, row.rps) == ("SL", 4, 0.5))
    share = row.rps * row.alone_s
    assert row.alone_s * (1 + share / (2 * (1 - share))) == pytest.approx(row.ttft_s)
