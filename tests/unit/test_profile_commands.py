"""`joulegate profile frontier`, `recommend` and `import` as a user runs them: text, JSON, pictures, exit statuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from commands.profile import app
from profiles.against_model import against_model, engine_model_of
from profiles.plots import draw_against_model, units
from profiles.profile import CPU_SECONDS, UNKNOWN
from profiles.profile_file import format_profile, save_profile
from tests.profile_samples import PROVENANCE, profile, row, sample
from tests.unit.test_profile_import import RUN, leaderboard


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_profile(sample(), tmp_path / "a.profile.csv")
    return tmp_path / "a.profile.csv"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: object, status: int = 0) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == status, done.output
    assert done.stdout.count("\n") == 1
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_frontier_in_json(path: Path) -> None:
    found = answer("frontier", path, "--class", "LL", "--tbt-ms", 40)
    assert list(found["classes"]) == ["LL"]
    one = found["classes"]["LL"]
    assert one["limits"] == {"ttft_ms": 2000.0, "tbt_ms": 40.0, "gpus": None}
    assert one["cheapest"] in one["points"]
    assert one["cheapest"]["tbt_p99_ms"] <= 40
    assert {"tp", "clock_mhz", "ttft_p99_ms", "tbt_p99_ms", "j_per_output_token", "origin", "quality"} <= set(
        one["cheapest"]
    )
    assert one["looser"]["tbt"]["saved_j"] > 0
    assert [step["gpus"] for step in one["by_gpus"]][-1] <= 8
    assert found["profile"]["origin"] == "emulated"


def test_frontier_for_people(path: Path, tmp_path: Path) -> None:
    done = run("frontier", path, "--tbt-ms", 40, "--out", tmp_path / "plots")
    assert done.exit_code == 0, done.output
    for told in (
        "test-70b on H100-SXM-80G",
        "SS:",
        "LL:",
        "J/token",
        "least energy within",
        "a millisecond)",
        "GPUs saves",
    ):
        assert told in done.stdout
    written = sorted(p.name for p in (tmp_path / "plots").iterdir())
    assert written == [f"{kind}-{c}.png" for kind in ("energy-clock", "frontier", "watts-load") for c in ("LL", "SS")]
    assert all((tmp_path / "plots" / name).read_bytes().startswith(b"\x89PNG") for name in written)


def test_deadlines_that_nothing_keeps_are_status_one(path: Path) -> None:
    done = run("frontier", path, "--class", "LL", "--tbt-ms", 1)
    assert done.exit_code == 1
    assert "the least TBT p99 of LL is" in done.stderr
    assert run("frontier", path, "--class", "LL", "--tbt-ms", "inf").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["frontier", "none.profile.csv"], "none.profile.csv: cannot be read"),
        (["frontier", "PATH", "--class", "XX"], "no class 'XX'; it has SS, LL"),
        (["frontier", "PATH", "--tbt-ms", "-1"], "--tbt-ms must be more than 0"),
        (["recommend", "PATH", "--class", "XX", "--rps", "1"], "no class 'XX'; it has SS, LL"),
        (["recommend", "PATH", "--class", "LL", "--rps", "0"], "--rps must be more than 0"),
        (["recommend", "PATH", "--class", "LL=0", "--rps", "1"], "must be CLASS or CLASS=SHARE"),
        (["recommend", "PATH", "--class", "LL", "--class", "LL", "--rps", "1"], "each class once"),
        (["recommend", "PATH", "--class", "LL", "--rps", "1", "--idle-w", "-3"], "--idle-w must be at least 0"),
        (["import", "none", "--format", "mlenergy", "--out", "x"], "none: cannot be read"),
        (["import", "none", "--format", "vllm-bench", "--out", "x"], "give --gpu and --tp"),
        (["import", "none", "--format", "mlenergy", "--out", "x", "--load", "a b"], "--load must be"),
    ],
)
def test_wrong_usage_is_status_two(path: Path, arguments: list[str], told: str) -> None:
    done = run(*[path if a == "PATH" else a for a in arguments])
    assert done.exit_code == 2
    assert told in done.stderr


def test_a_broken_profile_is_named_with_its_line(path: Path) -> None:
    path.write_text(format_profile(sample()).replace("emulated-vllm", "[", 1))
    assert run("frontier", path).exit_code == 2
    path.write_text(format_profile(profile([row(tbt_p50_s=0.02), row(offered_rps=2.0, tbt_p50_s=0.017)])))
    assert "warning: " in run("frontier", path).stderr


def test_recommend(path: Path) -> None:
    found = answer("recommend", path, "--class", "SS", "--rps", 20)
    best, most = found["best"], found["max_performance"]
    assert found["feasible"]
    assert (most["tp"], most["clock_mhz"]) == (8, 1980)
    assert found["saving"] == pytest.approx(1 - best["watts"] / most["watts"])
    assert best["gpus"] == best["tp"] * best["instances"]
    assert best["j_per_request"] == pytest.approx(best["watts"] / 20)
    assert best["quality"] == "measured"
    text = run("recommend", path, "--class", "SS", "--rps", 20).stdout
    assert f"Run {best['instances']} x TP{best['tp']} at {best['clock_mhz']} MHz" in text
    assert "less energy than" in text
    assert "with the same model and the same answers" in " ".join(text.split())


def test_recommend_a_mix(path: Path) -> None:
    found = answer("recommend", path, "--class", "SS=3", "--class", "LL=1", "--rps", 8, "--idle-w", 110)
    assert found["mix"] == {"SS": 0.75, "LL": 0.25}
    assert found["limits"]["SS"]["ttft_ms"] == 250
    assert found["limits"]["LL"]["ttft_ms"] == 2000
    assert found["best"]["origin"] == "derived"
    assert found["best"]["quality"] == "modelled"


def test_what_cannot_be_served_is_status_one_with_the_reason(path: Path) -> None:
    done = run("recommend", path, "--class", "SS", "--rps", 20, "--ttft-ms", 1)
    assert done.exit_code == 1
    assert "no configuration serves SS at 20 rps: " in done.stderr
    found = answer("recommend", path, "--class", "SS", "--rps", 500, "--gpus", 8, status=1)
    assert found["feasible"] is False
    assert "GPUs" in found["reason"]


def test_import_both_formats(tmp_path: Path) -> None:
    board = leaderboard(tmp_path / "board.json", {})
    out = tmp_path / "board.profile.csv"
    found = answer("import", board, "--format", "mlenergy", "--out", out)
    assert found["profile"]["points"] == 1
    assert found["file"] == str(out)
    assert found["notes"]
    assert answer("frontier", out, "--ttft-ms", "inf")["classes"]["lm-arena-chat"]["cheapest"]["ttft_p99_ms"] is None
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    out = tmp_path / "run.profile.csv"
    done = run(
        *("import", tmp_path / "run.json", "--format", "vllm-bench", "--out", out),
        *("--gpu", "H100", "--tp", 4, "--watts", 1740, "--load", "LL"),
    )
    assert done.exit_code == 0, done.output
    assert "1 points of meta-llama/Llama-3.1-70B-Instruct on H100 (LL)" in done.stdout
    assert answer("recommend", out, "--class", "LL", "--rps", 4)["best"]["instances"] == 2


@pytest.mark.parametrize("command", ["frontier", "recommend", "import"])
def test_help_teaches(command: str) -> None:
    done = run(command, "--help")
    assert done.exit_code == 0
    assert f"joulegate profile {command}" in " ".join(done.stdout.split())


def test_a_profile_is_held_against_the_engine_model_of_its_card(tmp_path: Path) -> None:
    made = replace(sample(), model="llama-2-70b")
    model = engine_model_of(made)
    assert model is not None
    pairs = against_model(made, model)
    assert len(pairs["watts (W)"]) == len([p for p in made.points if not p.saturated])
    assert draw_against_model(pairs, "t", tmp_path / "deep" / "x.png")[0].read_bytes().startswith(b"\x89PNG")
    assert engine_model_of(replace(made, gpu="B200")) is None
    assert engine_model_of(replace(made, model="other")) is None
    unknown = replace(made, points=(row(tbt_p50_s=UNKNOWN, tbt_p99_s=UNKNOWN, watts=UNKNOWN),))
    assert draw_against_model(against_model(unknown, model), "t", tmp_path / "y.png") == []


def test_cpu_seconds_are_not_called_joules(tmp_path: Path) -> None:
    made = profile([row(clock_mhz=0, offered_rps=rps) for rps in (0.5, 1.0)])
    made = replace(made, provenance=replace(PROVENANCE, energy_counter=CPU_SECONDS))
    assert units(made) == ("busy cores", "CPU-s")
    save_profile(made, tmp_path / "cpu.profile.csv")
    assert "CPU-s/token" in run("frontier", tmp_path / "cpu.profile.csv").stdout


@pytest.mark.parametrize("gpus", [0, -1])
def test_no_gpus_are_wrong_usage(path: Path, gpus: int) -> None:
    for arguments in (("frontier", path), ("recommend", path, "--class", "LL", "--rps", 1)):
        done = run(*arguments, "--gpus", gpus)
        assert done.exit_code == 2 and "--gpus must be at least 1" in done.stderr


def test_an_old_profile_is_told_in_json_too(tmp_path: Path) -> None:
    old = tmp_path / "old.profile.csv"
    save_profile(replace(sample(), provenance=replace(PROVENANCE, made_on="2020-01-01")), old)
    for arguments in (("frontier", old), ("recommend", old, "--class", "LL", "--rps", 1)):
        done = run(*arguments, "--json")
        assert "may be stale" in done.stderr
        assert "2020-01-01" in json.loads(done.stdout)["profile"]["stale"][0]


def test_an_empty_result_of_a_benchmark_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("")
    out = tmp_path / "x.profile.csv"
    done = run("import", tmp_path / "empty.json", "--format", "vllm-bench", "--gpu", "H100", "--out", out)
    assert done.exit_code == 2 and "holds no result" in done.stderr and not out.exists()


def test_check_tells_a_binary_file_and_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "mlenergy").mkdir()
    (tmp_path / "mlenergy" / "v3_llm_runs.csv").write_bytes(b"\xff\xfe\x00" * 99)
    done = run("check", "--data", tmp_path)
    assert done.exit_code == 2 and "UTF-8" in done.stderr and len(done.stderr) < 400
    (tmp_path / "none").mkdir()
    (tmp_path / "file").write_text("")
    done = run("check", "--data", tmp_path / "none", "--out", tmp_path / "file" / "plots")
    assert done.exit_code == 2 and "--out" in done.stderr
