"""What would have been used otherwise: read from a run log, simulated, corrected by the meter, with an interval."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from controller.knowledge import Settings
from core.service import Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from gateway.ledger_query import joules_by_window
from gateway.ledger_store import SCHEMA, Batch, add
from joulegate import app
from simulator.savings import CAUSES, Interval, Served, Traffic, _ratios, _saved, read_traffic, savings

T = 1_800_000_000.0
POOL = PoolSpec("all", ("S", "M", "L"), 2, 1, 1980, InstanceLimits(64, 0, 2048))
SPEC = ServiceSpec("svc", "m", 8192, Slo(), Edges(), (POOL,), LauncherSpec("emulated"), profile="llama-3.1-8b")


EVEN = dict.fromkeys(CAUSES, 0.0)  # nothing is told by cause: the ratio of the whole holds for each


def row(n: int, **more: Any) -> dict[str, Any]:
    foretold = {"p": [1.0, 0.0, 0.0], "q50": 50, "q90": 90, "q99": 99}
    return {
        "kind": "request", "t": T + 2.0 * n + 1.5, "e2e_s": 1.5, "service": "svc", "outcome": "completed",
        "input_tokens": 200 + n, "output_tokens": 60, "predicted": foretold, **more,
    }  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows: list[dict[str, Any]] = [row(n) for n in range(100)]
    rows += [row(3, outcome="failed"), row(4, service="other"), row(500)]
    rows += [{"kind": "instance_starting", "t": T, "service": "svc", "instance": "all-1"},
             {"kind": "instance_state", "t": T + 7, "service": "svc", "instance": "all-1", "from": "starting", "to": "ready"}]  # fmt: skip
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def traffic(log: Path) -> Traffic:
    found = read_traffic([log], "svc", T - 1, T + 900)
    assert found is not None
    return found


def test_a_run_log_gives_what_was_asked_and_foretold(log: Path) -> None:
    found = traffic(log)
    assert len(found.arrivals) == 100 and found.begins_s == T and found.ends_s == pytest.approx(T + 199.5)
    assert found.arrivals[1].at_s == pytest.approx(2.0) and found.start_s == 7.0
    assert found.arrivals[0].prediction is not None and found.arrivals[0].prediction.q90_tokens == 90
    assert read_traffic([log], "svc", T + 5000, T + 6000) is None


def test_what_was_served_by_the_baseline_itself_saves_nothing(log: Path) -> None:
    served = Served(0, False, Settings(), 1.0)
    first = savings(SPEC, traffic(log), served, "configured", [1.0] * 20, 10.0, EVEN, [0])
    metered = [first.simulated_j / 20] * 20
    found = savings(SPEC, traffic(log), served, "configured", metered, 10.0, EVEN, [0, 1])
    assert found.saved.mid == pytest.approx(0, abs=1e-6 * found.meter_j) and found.ratio == pytest.approx(1)
    assert found.saved.low < 0 < found.saved.high
    assert found.proposed is not None  # what the controller, which only watched, would have done


def test_a_meter_above_the_simulator_raises_the_baseline_alike_and_widens_the_interval(log: Path) -> None:
    served = Served(0, False, Settings(), 1.0)
    once = savings(SPEC, traffic(log), served, "singlepool", [1.0] * 20, 10.0, EVEN, [0])
    even = savings(SPEC, traffic(log), served, "singlepool", [once.simulated_j / 20] * 20, 10.0, EVEN, [0])
    more = savings(SPEC, traffic(log), served, "singlepool", [1.2 * once.simulated_j / 20] * 20, 10.0, EVEN, [0])
    assert more.saved.mid == pytest.approx(1.2 * even.saved.mid) and even.instances == 1
    assert more.saved.high - more.saved.low > even.saved.high - even.saved.low


def spent(**joules: float) -> Any:
    total_j = sum(joules.values())
    energy = (SimpleNamespace(tp=8, total_j=total_j),)
    return SimpleNamespace(by_cause=lambda: {**EVEN, **joules}, joules=total_j, energy=energy)


def test_each_cause_is_corrected_by_its_own_ratio_and_causes_that_differ_widen_the_interval() -> None:
    ran = spent(idle=100.0, decode=100.0, prefill=1.0)
    ratios = _ratios(191.1, {**EVEN, "idle": 80.0, "decode": 110.0, "prefill": 1.1}, ran)
    assert ratios == {"idle": 0.8, "decode": 1.1, "prefill": pytest.approx(191.1 / 201), "switching": 191.1 / 201}
    said = _saved(191.1, [ratios], 0.0, [1.0], {8}, [spent(decode=400.0)])
    assert said.mid == pytest.approx(440 - 191.1) and said.high - said.mid == pytest.approx(400 * 0.1)
    even = _saved(191.1, [dict.fromkeys(CAUSES, 1.0)], 0.0, [1.0], {8}, [spent(decode=400.0)])
    assert even.high == even.low == pytest.approx(400 - 191.1)
    elsewhere = _saved(191.1, [dict.fromkeys(CAUSES, 1.0)], 0.0, [1.0], {4}, [spent(decode=400.0)])
    assert elsewhere.high - elsewhere.mid == pytest.approx(0.05 * 400)  # no meter has seen TP8


def test_an_unknown_baseline_and_an_empty_meter_are_told(log: Path) -> None:
    served = Served(0, False, Settings(), 1.0)
    with pytest.raises(ValueError, match="singlepool or configured"):
        savings(SPEC, traffic(log), served, "best", [1.0], 10.0, EVEN, [0])
    with pytest.raises(ValueError, match="no joule"):
        savings(SPEC, traffic(log), served, "singlepool", [0.0], 10.0, EVEN, [0])


def test_errors_of_two_services_are_independent() -> None:
    both = Interval(-3.0, 0.0, 3.0).plus(Interval(6.0, 10.0, 14.0))
    assert (both.low, both.mid, both.high) == (5.0, 10.0, 15.0)


def test_windows_cut_by_an_end_count_by_their_share() -> None:
    disk = sqlite3.connect(":memory:")
    disk.executescript(SCHEMA)
    batch = Batch()
    for n in range(4):
        batch.window((T + 10 * n, "svc", "all", "measured"))[0] = 100.0
    add(disk, batch)
    assert joules_by_window(disk, "svc", T + 5, T + 25) == pytest.approx([100.0, 100.0])
    assert joules_by_window(disk, "svc", T, T + 40) == pytest.approx([100.0] * 4)
    assert sum(joules_by_window(disk, "svc", T + 12, T + 15)) == pytest.approx(30.0)


@pytest.fixture
def config(tmp_path: Path, log: Path) -> Path:
    disk = sqlite3.connect(tmp_path / "energy.sqlite")
    disk.executescript(SCHEMA)
    batch = Batch()
    for n in range(20):
        values = batch.window((T + 10 * n, "svc", "all", "modelled"))
        values[:5] = [4000.0, 0.0, 500.0, 2500.0, 900.0]
        values[6], values[8] = 90.0, 10.0
    batch.account((T, "svc", "all", "SS", "ann"))[:] = [10_000.0, 50_000.0, 100, 20_000, 6000, 5000]
    add(disk, batch)
    disk.commit()
    disk.close()
    path = tmp_path / "gateway.yaml"
    path.write_text(f"""
run_log: {{path: {log}}}
energy: {{path: {tmp_path / "energy.sqlite"}, price_per_kwh: 0.2, currency: EUR}}
services:
  svc:
    model: m
    profile: llama-3.1-8b
    pools: [{{name: all, serves: [S, M, L], instances: 2, tp: 1, clock_mhz: 1980, slots: 64}}]
    launcher: {{kind: emulated}}
""")
    return path


def test_the_command_tells_the_ledger_and_what_was_saved(config: Path, tmp_path: Path) -> None:
    words = ["report", "--config", str(config), "--since", str(T), "--until", "2027-01-15T08:15:00Z"]
    done = CliRunner().invoke(app, [*words, "--json", "--seeds", "1", "--export", str(tmp_path / "csv")])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["meter_kwh"] * 3.6e6 == pytest.approx(80_000)
    assert found["requests_kwh"] * 3.6e6 == pytest.approx(60_000) and found["idle_kwh"] * 3.6e6 == pytest.approx(18_000)
    assert found["switching_kwh"] * 3.6e6 == pytest.approx(1800) and found["residual"] * 3.6e6 == pytest.approx(200)
    assert found["saved_kwh"]["low"] <= found["saved_kwh"]["mid"] <= found["saved_kwh"]["high"]
    assert found["cost"]["currency"] == "EUR" and found["by_key"]["ann"]["requests"] == 100
    for name in ("windows", "accounts", "requests"):
        assert (tmp_path / "csv" / f"{name}.csv").read_text().startswith("t," if name != "requests" else "id,")
    told = CliRunner().invoke(app, [*words, "--seeds", "1"])
    assert "saved against singlepool" in told.output and "would have saved" in told.output


def test_the_command_says_why_it_cannot(config: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["report", "--config", str(config), "--since", "yesterday"]).exit_code == 2
    gone = f"energy.path={tmp_path / 'none.sqlite'}"
    assert runner.invoke(app, ["report", "--config", str(config), "--set", gone]).exit_code == 1
    done = runner.invoke(app, ["report", "--config", str(config), "--json", "--since", "0", "--until", "1000"])
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["saved_kwh"] is None and "no completed request" in found["savings"]["why_not"]
    assert runner.invoke(app, ["report", "--config", str(config), "--baseline", "best"]).exit_code == 2


def test_a_service_that_served_with_a_plan_is_replayed_with_one(log: Path) -> None:
    planned = savings(SPEC, traffic(log), Served(8, True, Settings(), 1.0), "configured", [1e4] * 20, 10.0, EVEN, [0])
    assert planned.proposed is None and planned.simulated_j <= replace(planned).baseline_j * 1.001
