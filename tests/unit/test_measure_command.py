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
