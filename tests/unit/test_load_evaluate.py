"""`joulegate forecast eval`: its figures against ones computed by hand, its inputs, and what it says of bad ones."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from joulegate import app
from predictor.load_evaluate import evaluate
from simulator.trace import TraceError
from simulator.trace_totals import is_totals, read_totals, spread

TOTALS = (
    "time_gst,requests,context_tokens,generated_tokens\n"
    "2024-05-13 00:00:00,36000,36000000,3600000\n"
    "2024-05-13 01:00:00,72000,72000000,7200000\n"
)


def constant(ticks: int, requests: float = 10.0) -> np.ndarray:
    counts = np.zeros((ticks, 9, 3))
    counts[:, 4] = requests, 500 * requests, 200 * requests
    return counts


def test_a_constant_load_is_forecast_without_error() -> None:
    for report in evaluate(constant(500), 0.0).values():
        for score in report.methods.values():
            assert score.mape == pytest.approx(0) and score.peak_coverage == 1
        assert report.classes[4] == 1 and report.classes[0] is None


def test_errors_and_coverage_are_those_of_the_windows() -> None:
    """Ten minutes at 2 req/s, then 4: of the windows of 5 min by persistence those that reach past the step err."""
    counts = np.concatenate((constant(120), constant(120, 20.0)))
    score = evaluate(counts, 0.0)[300.0].methods["persistence"]
    errors = []
    rate = [2.0] * 10 + [4.0] * 10  # by minute
    for now in range(1, 16):
        before = np.mean(rate[max(0, now - 5) : now])
        errors.append(abs(before / np.mean(rate[now : now + 5]) - 1))
    assert score.windows == 15
    assert score.mape == pytest.approx(np.mean(errors))


def test_totals_are_told_by_content_and_spread_over_ticks(tmp_path: Path) -> None:
    path = tmp_path / "week.csv"
    path.write_text(TOTALS)
    assert is_totals(path)
    totals = read_totals(path)
    counts = spread(totals, 1.0, seed=0)
    assert counts.shape == (1440, 9, 3)
    assert counts[:360, :, 0].sum() / 1800 == pytest.approx(10, rel=0.05)
    assert counts[-360:, :, 0].sum() / 1800 == pytest.approx(20, rel=0.05)
    assert counts[:, :, 1].sum() / counts[:, :, 0].sum() == pytest.approx(1000)
    assert np.array_equal(counts, spread(totals, 1.0, seed=0))


@pytest.mark.parametrize("line", ["2024-05-13 03:00:00,1,1,1\n", "2024-05-13 02:00:00,-1,1,1\n", "noon,1,1,1\n"])
def test_bad_totals_name_their_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "week.csv"
    path.write_text(TOTALS + line)
    with pytest.raises(TraceError, match=r"week\.csv:4"):
        read_totals(path)


def test_the_command_prints_the_keys_others_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(f'{{"timestamp": {n * 500}, "input_length": 300, "output_length": 50}}\n' for n in range(6000))
    )
    done = CliRunner().invoke(app, ["forecast", "eval", str(path), "--json"])
    assert done.exit_code == 0, done.output
    horizons = json.loads(done.stdout)["horizons"]
    assert set(horizons) == {"5", "300", "1800"}
    assert horizons["300"]["mape"] == pytest.approx(0, abs=1e-6) and horizons["300"]["peak_coverage"] == 1
    assert horizons["1800"]["windows"] == 3
    assert "persistence" in CliRunner().invoke(app, ["forecast", "eval", str(path)]).stdout


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("a,b\n1,2\n", [], "expected the columns"),
        (TOTALS, ["--scale", "0"], "--scale"),
        (TOTALS, ["--warm-up", "99"], "too short"),
        ('{"timestamp": 0, "input_length": 3, "output_length": 5}\n', [], "too short"),
        ('{"timestamp": 0, "input_length": 3, "output_length": 5}\n', ["--start", "noon"], "--start"),
    ],
)
def test_bad_input_is_told(tmp_path: Path, text: str, more: list[str], said: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    done = CliRunner().invoke(app, ["forecast", "eval", str(path), *more])
    assert done.exit_code == 2 and said in done.output


def test_a_missing_file_is_told() -> None:
    assert CliRunner().invoke(app, ["forecast", "eval", "/nowhere"]).exit_code == 2
