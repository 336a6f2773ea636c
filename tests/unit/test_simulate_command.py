"""The command `joulegate simulate`: what it prints, writes and refuses."""

import json
import random
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from commands.simulate import simulate
from simulator.registry import POLICIES
from simulator.trace import Arrival

KEYS = {"energy_kwh", "energy_owned_kwh", "energy_by_cause", "j_per_good_token", "ttft_p50_s", "ttft_p99_s", "tbt_p99_s",
        "attainment", "attainment_all", "gpu_hours", "switches_per_hour_per_100_gpus", "migrations", "shed", "cost_usd",
        "gco2"}  # fmt: skip
FEW = ["--policies", "singlepool,joulegate", "--jobs", "1", "--no-bound"]


def trace(seed: int, rps: float, seconds: float) -> list[Arrival]:
    rng, at_s, out = random.Random(seed), 0.0, []
    while at_s < seconds:
        out.append(Arrival(at_s, rng.choice([60, 200, 500, 900, 2500]), rng.choice([20, 80, 150, 300, 500])))
        at_s += rng.expovariate(rps)
    return out


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(simulate)
    return app


def azure(path: Path, arrivals: list[Arrival]) -> Path:
    rows = [
        f"2023-11-16 18:{int(a.at_s) // 60:02d}:{a.at_s % 60:010.7f},{a.input_tokens},{a.output_tokens}"
        for a in arrivals
    ]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return path


def run(app: typer.Typer, path: Path, *arguments: str) -> dict:  # type: ignore[type-arg]
    done = CliRunner().invoke(app, [str(path), "--service", "llama-2-70b", "--json", *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_the_command_prints_one_json_object(app: typer.Typer, tmp_path: Path) -> None:
    path = azure(tmp_path / "trace.csv", [*trace(2, 3.0, 20.0), Arrival(21.0, 16_380, 10)])
    report = run(app, path, "--scale", "1.5", "--seed", "3", "--jobs", "1")
    assert set(report["policies"]) == {policy.name for policy in POLICIES}
    assert report["trace"]["excluded_too_long"] == 1 and report["trace"]["scale"] == 1.5
    assert report["sim"]["requests_per_cpu_s"] > 0 and {"bound_kwh", "fluid_bound_kwh"} <= set(report)
    assert all(set(row) >= KEYS for row in report["policies"].values())
    assert 0 < report["fluid_bound_kwh"] <= report["bound_kwh"]
    assert all(1 <= row["times_bound"] <= row["times_fluid_bound"] for row in report["policies"].values())
    assert report["gpus"] == 8 * report["static_instances"] == report["policies"]["singlepool"]["gpus"]


def test_the_same_seed_gives_the_same_bytes_in_any_number_of_processes(app: typer.Typer, tmp_path: Path) -> None:
    path = azure(tmp_path / "trace.csv", trace(2, 3.0, 40.0))
    written = []
    for number, jobs in enumerate(("1", "1", "2")):
        out = tmp_path / str(number)
        run(app, path, *FEW[:2], "--no-bound", "--seeds", "2", "--jobs", jobs, "--out", str(out))
        report = json.loads((out / "report.json").read_text())
        assert report.pop("sim")["jobs"] == int(jobs)
        written.append({file.name: file.read_bytes() for file in out.iterdir() if file.name != "report.json"})
        written[-1]["report"] = json.dumps(report).encode()
    assert written[0] == written[1] == written[2] and len(written[0]["report"]) > 1000


def test_the_page_needs_nothing_from_elsewhere(app: typer.Typer, tmp_path: Path) -> None:
    path = azure(tmp_path / "trace.csv", trace(2, 3.0, 40.0))
    report = run(app, path, *FEW, "--out", str(tmp_path / "o"))
    page = (tmp_path / "o/report.html").read_text()
    assert page.count("<svg") == 4 and "singlepool over time" in page
    assert not re.findall(r'(?:src|href)="(?!#)', page) and "<script" not in page and "@import" not in page
    timelines = json.loads((tmp_path / "o/timelines.json").read_text())[""]
    assert set(timelines) == set(report["policies"]) == {"singlepool", "joulegate"}
    columns = timelines["singlepool"]
    passed = [b - a for a, b in zip([0.0, *columns["at_s"]], columns["at_s"], strict=False)]
    joules = sum(w * s for watts in columns["watts"].values() for w, s in zip(watts, passed, strict=True))
    whole = report["policies"]["singlepool"]
    assert 0.8 < joules / 3.6e6 / whole["energy_kwh"] <= 1.0  # all but what follows the last sample
    assert columns["instances"]["state"] == {"ready": [report["static_instances"]] * len(passed)}
    assert set(columns["clock_mhz"]["all"]) == {1980}


def test_repeats_give_means_and_intervals(app: typer.Typer, tmp_path: Path) -> None:
    path = azure(tmp_path / "trace.csv", trace(2, 3.0, 40.0))
    report = run(app, path, "--policies", "joulegate", "--gpus", "24", "--seeds", "3", "--jobs", "1", "--no-bound")
    assert report["bound_kwh"] is None
    row = report["policies"]["joulegate"]
    each = [report["by_seed"][seed]["joulegate"]["energy_kwh"] for seed in ("0", "1", "2")]
    low, high = row["ci95"]["energy_kwh"]
    assert row["repeats"] == 3 and row["energy_kwh"] == pytest.approx(sum(each) / 3)
    assert low < row["energy_kwh"] < high and len(set(each)) > 1


def test_a_static_size_that_is_told_is_not_looked_for(app: typer.Typer, tmp_path: Path) -> None:
    path = azure(tmp_path / "trace.csv", trace(2, 3.0, 40.0))
    report = run(app, path, *FEW, "--set", "static=3")
    assert report["gpus"] == 24 and report["sim"]["runs"] == 2
    assert report["policies"]["singlepool"]["instances"] == {"all": 3}


def test_a_sweep_is_a_report_per_value(app: typer.Typer, tmp_path: Path) -> None:
    path = azure(tmp_path / "trace.csv", trace(2, 3.0, 40.0))
    report = run(app, path, *FEW, "--gpus", "24", "--sweep", "slo.tbt=0.05,0.2", "--set", "power_cap=9000")
    assert report["sweep"] == "slo.tbt" and list(report["values"]) == ["0.05", "0.2"]
    assert [one["slo"]["tbt_s"] for one in report["values"].values()] == [0.05, 0.2]
    assert all("over_power_cap" in one["policies"]["joulegate"] for one in report["values"].values())
    done = CliRunner().invoke(app, [str(path), "--service", "llama-2-70b", *FEW, "--sweep", "gpus=8,16"])
    assert done.exit_code == 0 and "gpus = 8: " in done.stdout and "gpus = 16: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policies", "magic"], "known: singlepool"),
        (["--scale", "0"], "above 0"),
        (["--seeds", "0"], "positive"),
        (["--set", "slo.ttfx.S=1"], "known: slo.ttft.S"),
        (["--set", "edges.input=900,100"], "rising"),
        (["--set", "pools"], "key=value"),
        (["--set", "pools=17"], "2 to 16"),
        (["--sweep", "gpus"], "key=value"),
        (["--sweep", "gpus=1.5"], "number of GPUs"),
        (["--service", "nothing"], "nothing"),
        (["--predictor", "perhaps"], "predictor"),
    ],
)
def test_wrong_usage_exits_with_2(app: typer.Typer, tmp_path: Path, arguments: list[str], says: str) -> None:
    path = azure(tmp_path / "trace.csv", trace(2, 3.0, 10.0))
    done = CliRunner().invoke(app, [str(path), "--service", "llama-2-70b", *arguments])
    assert done.exit_code == 2 and says in done.output


def test_a_file_that_is_no_trace_exits_with_2(app: typer.Typer, tmp_path: Path) -> None:
    (tmp_path / "no.csv").write_text("a,b\n")
    done = CliRunner().invoke(app, [str(tmp_path / "no.csv"), "--service", "llama-2-70b"])
    assert done.exit_code == 2 and "no.csv:1:" in done.output
    done = CliRunner().invoke(app, [str(tmp_path / "absent.csv"), "--service", "llama-2-70b"])
    assert done.exit_code == 2 and "absent.csv" in done.output


def test_the_operators_pools_are_held(app: typer.Typer, tmp_path: Path) -> None:
    path = azure(tmp_path / "trace.csv", trace(2, 2.0, 30.0))
    arguments = [str(path), "--service", "llama-3.1-70b", "--config", "configs/dev.yaml", "--gpus", "16",
                 "--policies", "joulegate", "--json"]  # fmt: skip
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    row = json.loads(done.stdout)["policies"]["joulegate"]
    assert row["instances"] == {"short": 1, "medium": 1, "long": 1} and row["gpus"] == 16
