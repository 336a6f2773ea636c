"""`joulegate profile measure` as a command: what it answers and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from joulegate import app
from profiles.profile_file import load_profile

SMALL = ("profile", "measure", "--service", "llama-3.1-8b", "--tp", "1", "--classes", "SS", "--budget-hours", "0.2")


def invoke(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_it_writes_a_profile_and_says_what_it_cost(tmp_path: Path) -> None:
    out = tmp_path / "x.profile.csv"
    status, stdout, _ = invoke(*SMALL, "--clocks", "1200,1980", "--out", str(out), "--json")
    assert status == 0
    answer = json.loads(stdout)
    assert {"points", "gpu_hours", "dense_points", "dense_gpu_hours", "saved_share", "out"} <= answer.keys()
    assert answer["instance_hours"] <= 0.2 and answer["out"] == str(out)
    profile = load_profile(out)
    assert {p.clock_mhz for p in profile.points} == {1200, 1980}
    assert profile.provenance.energy_counter == "emulated" and profile.provenance.limits["max_num_seqs"] == 256
    assert [f.name for f in tmp_path.iterdir()] == ["x.profile.csv"], "a simulated sweep leaves no journal"


def test_classes_may_have_lengths_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "x.profile.csv"
    arguments = [*SMALL, "--clocks", "1980", "--out", str(out)]
    arguments[arguments.index("SS")] = "chat:64:32"
    status, stdout, _ = invoke(*arguments)
    assert status == 0 and "GPU-hours" in stdout
    assert {(p.load, p.input_tokens, p.output_tokens) for p in load_profile(out).points} == {("chat", 64.0, 32.0)}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--service", "gpt-9"), "gpt-9"),
        (("--service", "llama-3.1-8b", "--tp", "3"), "TP3"),
        (("--service", "llama-3.1-8b", "--tp", "two"), "--tp takes whole numbers"),
        (("--service", "llama-3.1-8b", "--clocks", "-5"), "--clocks takes numbers above 0"),
        (("--service", "llama-3.1-8b", "--classes", "XX"), "--classes takes"),
        (("--service", "llama-3.1-8b", "--classes", "SS,SS"), "twice"),
        (("--service", "llama-3.1-8b", "--budget-hours", "0"), "--budget-hours"),
        (("--service", "llama-3.1-8b", "--budget-hours", "nan"), "finite"),
        (("--service", "llama-3.1-8b", "--budget-hours", "inf"), "finite"),
        (("--service", "llama-3.1-8b", "--tolerance", "nan"), "finite"),
        (("--service", "llama-3.1-8b", "--window", "nan"), "finite"),
        (("--service", "llama-3.1-8b", "--max-num-seqs", "0"), "--max-num-seqs"),
        (("--service", "llama-3.1-8b", "--max-num-batched-tokens", "0"), "--max-num-batched-tokens"),
        (("--service", "llama-3.1-8b", "--clocks", "100"), "--clocks must be"),
        (("--service", "llama-3.1-8b", "--classes", "bad name:10:10"), "--classes takes"),
        (("--service", "llama-3.1-8b", "--classes", "a:\u00b2:3"), "--classes takes"),
        (("--service", "llama-3.1-8b", "--classes", "a:1:3"), "at least 2 tokens"),
        (("--service", "llama-3.1-8b", "--url", "notaurl"), "--url must be"),
        (("--service", "llama-3.1-8b", "--url", "http://127.0.0.1:1", "--verify"), "--verify"),
        (("--service", "llama-3.1-8b", "--classes", "huge:9000:10"), "context"),
    ],
)
def test_wrong_usage_is_refused(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    status, stdout, stderr = invoke("profile", "measure", *arguments, "--out", str(tmp_path / "x.profile.csv"))
    assert status == 2 and told in stderr and stdout == ""


def test_no_server_is_a_failure(tmp_path: Path) -> None:
    out = str(tmp_path / "x.profile.csv")
    status, _, stderr = invoke("profile", "measure", "--service", "x", "--url", "http://127.0.0.1:1", "--out", out)
    assert status == 1 and "--resume" in stderr


def test_a_place_that_cannot_be_written_is_told_before_the_first_window(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file" / "x.profile.csv"):
        status, stdout, stderr = invoke(*SMALL, "--out", str(out))
        assert status == 2 and "--out" in stderr and stdout == ""
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_budget_without_room_for_a_window_writes_no_empty_profile(tmp_path: Path) -> None:
    arguments = [*SMALL, "--out", str(tmp_path / "x.profile.csv")]
    arguments[arguments.index("0.2")] = "0.001"
    status, stdout, stderr = invoke(*arguments)
    assert status == 1 and "--budget-hours" in stderr and stdout == ""
    assert not (tmp_path / "x.profile.csv").exists()
