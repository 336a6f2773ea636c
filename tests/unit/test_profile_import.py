"""Published runs as profiles: ML.ENERGY's JSON and CSV, and vllm bench serve. Samples are small and made up."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.importers import Imported, ImportFailed
from profiles.importers_mlenergy import Filters, import_mlenergy
from profiles.importers_vllm import Setup, import_vllm_bench
from profiles.profile import UNKNOWN
from profiles.profile_file import load_profile, save_profile

TODAY = date(2026, 11, 21)
CONFIGURATION = {
    "avg_batch_size": 16.0,
    "avg_output_len": 400.0,
    "avg_power_watts": 1800.0,
    "energy_per_request_joules": 800.0,
    "energy_per_token_joules": 2.0,
    "gpu_model": "H100",
    "max_num_seqs": 16,
    "max_num_batched_tokens": None,
    "median_itl_ms": 17.0,
    "num_gpus": 4,
    "output_throughput_tokens_per_sec": 900.0,
    "p90_itl_ms": 18.0,
    "p95_itl_ms": 20.0,
    "p99_itl_ms": 32.0,
    "output_length_distribution": {"bins": [1.0, 2.0], "counts": [3]},
    "parallelization": {"data_parallel": 1, "expert_parallel": 1, "tensor_parallel": 4, "notes": ""},
}
MODEL = {
    "model_id": "meta-llama/Llama-3.1-70B-Instruct",
    "nickname": "Llama 3.1 70B",
    "task": "lm-arena-chat",
    "weight_precision": "bfloat16",
}
RUN = {
    "date": "20261101-120000",
    "model_id": "meta-llama/Llama-3.1-70B-Instruct",
    "num_prompts": 300,
    "request_rate": 2.0,
    "max_concurrency": None,
    "duration": 155.0,
    "completed": 300,
    "total_input_tokens": 300_000,
    "total_output_tokens": 90_000,
    "request_throughput": 1.935,
    "output_throughput": 580.0,
    "mean_ttft_ms": 130.0,
    "median_ttft_ms": 120.0,
    "p99_ttft_ms": 300.0,
    "mean_tpot_ms": 20.0,
    "median_tpot_ms": 20.0,
    "p99_tpot_ms": 24.0,
    "mean_itl_ms": 20.5,
    "median_itl_ms": 19.0,
    "p99_itl_ms": 45.0,
}


def leaderboard(path: Path, *configurations: dict[str, Any], **top: Any) -> Path:
    document = {**MODEL, "configurations": [{**CONFIGURATION, **one} for one in configurations], **top}
    path.write_text(json.dumps(document))
    return path


def mlenergy(path: Path, **filters: Any) -> Imported:
    return import_mlenergy(path, Filters(**filters), TODAY, "joulegate profile import x")


def bench(path: Path, *runs: dict[str, Any], **setup: Any) -> Imported:
    path.write_text("\n".join(json.dumps({**RUN, **run}) for run in runs))
    return import_vllm_bench(path, Setup(**{"gpu": "H100", "tp": 4, **setup}), TODAY, "joulegate profile import x")


def test_leaderboard_json(tmp_path: Path) -> None:
    path = leaderboard(
        tmp_path / "a.json",
        {},
        {"max_num_seqs": 64, "avg_batch_size": 64.0, "output_throughput_tokens_per_sec": 2500.0, "energy_per_token_joules": 0.8, "avg_power_watts": 2000.0},
        {"max_num_seqs": 256, "avg_batch_size": 200.0, "output_throughput_tokens_per_sec": 3500.0, "energy_per_token_joules": 0.65, "avg_power_watts": 2275.0},
    )  # fmt: skip
    made = mlenergy(path).profile
    assert (made.gpu, made.model) == ("H100", "meta-llama/Llama-3.1-70B-Instruct")
    first, second, starved = made.points
    assert first.cell == ("lm-arena-chat", 4, 1980)
    assert first.offered_rps == 900 / 400
    assert (first.running, first.watts, first.j_per_output_token) == (16.0, 1800.0, 2.0)
    assert (first.tbt_p50_s, first.tbt_p99_s) == (0.017, 0.032)
    assert first.ttft_p99_s == first.input_tokens == first.kv_share == UNKNOWN
    assert [p.saturated for p in (first, second, starved)] == [False, False, True]
    assert starved.waiting == 56
    assert made.provenance.energy_counter == "published"
    assert "clocks were not locked" in made.provenance.notes
    save_profile(made, tmp_path / "a.profile.csv")
    assert load_profile(tmp_path / "a.profile.csv") == made


def test_a_larger_batch_that_gets_no_more_done_is_past_the_peak(tmp_path: Path) -> None:
    worse = {"max_num_seqs": 32, "avg_batch_size": 32.0, "energy_per_token_joules": 2.1}
    assert [p.saturated for p in mlenergy(leaderboard(tmp_path / "a", {}, {**worse, "output_throughput_tokens_per_sec": 880.0})).profile.points] == [True, False]  # fmt: skip


def test_csv_with_filters(tmp_path: Path) -> None:
    flat = {**MODEL, **CONFIGURATION, "tensor_parallel": 4, "expert_parallel": 1}
    flat = {key: value for key, value in flat.items() if not isinstance(value, dict)}
    rows = [flat, {**flat, "gpu_model": "B200"}, {**flat, "model_id": "Qwen/Qwen3-32B", "nickname": "Qwen"}]
    path = tmp_path / "runs.csv"
    path.write_text(
        "\n".join([",".join(flat), *(",".join("" if v is None else str(v) for v in r.values()) for r in rows)])
    )
    with pytest.raises(ImportFailed, match=r"one model on one GPU.*Qwen.*choose with --model, --gpu"):
        mlenergy(path)
    with pytest.raises(ImportFailed, match=r"no run passes the filters; models in it: Qwen/Qwen3-32B, meta-llama"):
        mlenergy(path, model="gpt-5")
    made = mlenergy(path, model="llama-3.1-70b-instruct", gpu="h100", gpus=4).profile
    assert len(made.points) == 1
    assert mlenergy(path, model="Qwen").profile.model == "Qwen/Qwen3-32B"


def test_two_splits_of_the_same_gpus_must_be_told_apart(tmp_path: Path) -> None:
    expert = {"parallelization": {"tensor_parallel": 1, "expert_parallel": 4}}
    path = leaderboard(tmp_path / "a", {}, expert)
    with pytest.raises(ImportFailed, match="repeats lm-arena-chat TP4"):
        mlenergy(path)
    assert len(mlenergy(path, expert_parallel=4).profile.points) == 1


def test_a_clock_that_nobody_knows_must_be_given(tmp_path: Path) -> None:
    path = leaderboard(tmp_path / "a", {"gpu_model": "MI300X"})
    with pytest.raises(ImportFailed, match="default clock of 'MI300X' is not known; say --clock-mhz"):
        mlenergy(path)
    assert import_mlenergy(path, Filters(), TODAY, "x", clock_mhz=2100).profile.points[0].clock_mhz == 2100


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is no JSON"),
        ("{}", "no list 'configurations'"),
        ("a,b\n1,2\n", "no column energy_per_token_joules"),
        ('{"configurations": [3]}', "must be objects"),
        (json.dumps({**MODEL, "configurations": [{**CONFIGURATION, "num_gpus": 2.5}]}), "num_gpus: must be a whole number"),
        (json.dumps({**MODEL, "configurations": [{**CONFIGURATION, "avg_output_len": None}]}), "avg_output_len: is missing"),
        (json.dumps({**MODEL, "configurations": [{**CONFIGURATION, "avg_power_watts": "x"}]}), "avg_power_watts: must be a number"),
        (json.dumps({**MODEL, "configurations": [{**CONFIGURATION, "p99_itl_ms": 1.0}]}), "tbt_p50_s 0.017 is above"),
    ],
)  # fmt: skip
def test_files_that_are_no_leaderboard(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(ImportFailed, match=told):
        mlenergy(tmp_path / "a")


def test_bench_serve(tmp_path: Path) -> None:
    made = bench(tmp_path / "a.json", {}, watts=1740.0, load="LL", engine_version="0.12.0").profile
    point = made.points[0]
    assert point.cell == ("LL", 4, 1980)
    assert (point.offered_rps, point.input_tokens, point.output_tokens) == (2.0, 1000.0, 300.0)
    assert (point.ttft_p50_s, point.ttft_p99_s, point.tbt_p50_s, point.tbt_p99_s) == (0.12, 0.3, 0.019, 0.045)
    assert point.j_per_output_token == pytest.approx(3.0)
    assert point.running == pytest.approx(1.935 * 299 * 0.0205)
    assert not point.saturated
    assert made.provenance.engine_version == "0.12.0"
    save_profile(made, tmp_path / "a.profile.csv")
    assert load_profile(tmp_path / "a.profile.csv") == made


def test_watts_are_not_known_unless_given(tmp_path: Path) -> None:
    made = bench(tmp_path / "a.json", {})
    assert made.profile.points[0].watts == made.profile.points[0].j_per_output_token == UNKNOWN
    assert any("--watts" in note for note in made.notes)
    assert made.profile.points[0].load == "in1000-out300"


def test_a_percentile_that_was_not_asked_for_stays_unknown(tmp_path: Path) -> None:
    bare = {key: None for key in RUN if key.startswith(("p99_", "median_itl"))}
    point = bench(tmp_path / "a.json", bare).profile.points[0]
    assert (point.ttft_p50_s, point.ttft_p99_s, point.tbt_p50_s, point.tbt_p99_s) == (0.12, UNKNOWN, UNKNOWN, UNKNOWN)
    detailed = {**bare, "itls": [[0.02] * 98, [0.03, 0.5]], "ttfts": [0.1, 0.2]}
    point = bench(tmp_path / "a.json", detailed).profile.points[0]
    assert (point.ttft_p50_s, point.ttft_p99_s, point.tbt_p50_s, point.tbt_p99_s) == (0.12, 0.2, 0.02, 0.03)


@pytest.mark.parametrize(
    ("run", "saturated", "rps"),
    [
        ({"request_rate": 2.0, "duration": 155.0}, False, 2.0),
        ({"request_rate": 2.0, "duration": 200.0}, True, 2.0),
        ({"request_rate": "inf", "max_concurrency": 32}, False, 1.935),
        ({"request_rate": "inf", "max_concurrency": None}, True, 1.935),
    ],
)
def test_whether_the_load_was_held(tmp_path: Path, run: dict[str, Any], saturated: bool, rps: float) -> None:
    point = bench(tmp_path / "a.json", run).profile.points[0]
    assert (point.saturated, point.offered_rps) == (saturated, rps)


def test_appended_results_lists_and_folders(tmp_path: Path) -> None:
    loads = [{"request_rate": 1.0, "duration": 305.0}, {"request_rate": 2.0}]
    lines = bench(tmp_path / "a.json", *loads).profile
    assert [p.offered_rps for p in lines.points] == [1.0, 2.0]
    folder = tmp_path / "runs"
    folder.mkdir()
    for n, load in enumerate(loads):
        (folder / f"{n}.json").write_text(json.dumps({**RUN, **load}))
    setup = Setup("H100", 4)
    assert import_vllm_bench(folder, setup, TODAY, "x").profile.points == lines.points
    (tmp_path / "list").write_text(json.dumps([{**RUN, **load} for load in loads]))
    assert import_vllm_bench(tmp_path / "list", setup, TODAY, "x").profile.points == lines.points
    with pytest.raises(ImportFailed, match="of one model"):
        bench(tmp_path / "b.json", {}, {"model_id": "other"})
    with pytest.raises(ImportFailed, match="no request_throughput"):
        bench(tmp_path / "c.json", {}, {"request_throughput": None}) if False else import_vllm_bench(
            _empty(tmp_path), setup, TODAY, "x"
        )
    with pytest.raises(ImportFailed, match="cannot be read"):
        import_vllm_bench(tmp_path / "none.json", setup, TODAY, "x")


def _empty(folder: Path) -> Path:
    (folder / "empty.json").write_text("{}")
    return folder / "empty.json"


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 10**9), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(sorted(RUN)), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted({*RUN, *CONFIGURATION, "ttfts", "itls"})), JSON, max_size=5))
def test_damaged_results_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, damage: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("damage") / "a.json"
    attempts = (
        lambda: bench(path, damage),
        lambda: mlenergy(leaderboard(path, damage)),
        lambda: mlenergy(leaderboard(path, {}, **damage)),
    )
    for attempt in attempts:
        try:
            made = attempt()
        except ImportFailed:
            continue
        save_profile(made.profile, path.with_suffix(".profile.csv"))
        assert load_profile(path.with_suffix(".profile.csv")) == made.profile
