"""`joulegate plan`: its keys, its exit statuses, and what holds a plan back."""

import json
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.binding import binding, more_load
from controller.dynamic import first_plan
from controller.problem import NodeShape
from controller.solver import Limits, solve
from joulegate import app
from tests.planning import problem

EXACT = partial(solve, limits=Limits(time_s=None, gap=1e-6))
KEYS = {"status", "expected_w", "groups", "gap", "solve_s", "fallback_s", "fallback_gap", "binding"}


def asked(*options: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["plan", "--service", "llama-2-70b", *options])
    return done.exit_code, done.stdout, done.stderr


def test_json_has_the_promised_keys_and_covers_the_load() -> None:
    status, out, _ = asked("--gpus", "32", "--rps", "6", "--spare", "--floor", "2", "--json")
    report = json.loads(out)
    assert status == 0
    assert set(report) >= KEYS
    assert sum(group["gpus"] for group in report["groups"]) == report["gpus"] <= 32
    assert sum(group["instances"] for group in report["groups"]) >= 2
    assert report["expected_w"] > 0
    assert report["shed"] == {}


def test_a_trace_is_a_load(tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:15:{n:02d}.0000000,{400 + 40 * n},{20 * n + 1}" for n in range(60)]
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    status, out, _ = asked("--gpus", "64", "--load", str(trace), "--json")
    assert status == 0
    assert sum(json.loads(out)["demand"].values()) == pytest.approx(60 / 59, rel=0.01)


def test_what_does_not_fit_is_told_with_status_one() -> None:
    status, out, err = asked("--gpus", "4", "--rps", "50")
    assert status == 1
    assert "no room for" in out
    assert "not all of the load fits" in err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--gpus", "8"), "--load FILE, --rps X"),
        (("--gpus", "0", "--rps", "1"), "--gpus must be more than 0"),
        (("--gpus", "8", "--rps", "nan"), "--rps must be more than 0"),
        (("--gpus", "8", "--rps", "1", "--eta", "2"), "eta is 2"),
        (("--gpus", "8", "--load", "/nowhere.csv"), "/nowhere.csv"),
        (("--gpus", "8", "--rps", "1", "--gpu", "b200"), "b200"),
        (("--gpus", "8", "--rps", "1", "--head-room", "-1"), "--head-room"),
    ],
)
def test_bad_input_ends_with_two(options: tuple[str, ...], told: str) -> None:
    status, out, err = asked(*options)
    assert status == 2
    assert told in err
    assert not out


def test_gpus_bind_where_more_would_serve_more() -> None:
    task = problem((6.0, 3.0, 1.0), nodes=(NodeShape("H100", 8, 1),))
    found = binding(task, EXACT(task), EXACT)
    assert found[0].limit == "gpus:H100"
    assert found[0].serves_rps > 0


def test_each_limit_that_costs_is_named_and_no_other() -> None:
    free = EXACT(problem((1.0, 0.5, 0.2), nodes=(NodeShape("H100", 8, 4),)))
    count = sum(free.counts().values())
    loose = problem((1.0, 0.5, 0.2), nodes=(NodeShape("H100", 8, 4),), floors=(("chat", 1),))
    tight = problem((1.0, 0.5, 0.2), nodes=(NodeShape("H100", 8, 4),), floors=(("chat", count + 3),))
    assert binding(loose, EXACT(loose), EXACT) == ()
    (only,) = binding(tight, EXACT(tight), EXACT)
    assert only.limit == "floor"
    assert only.saves_w == pytest.approx(EXACT(tight).cost_w - free.cost_w, rel=1e-4)


def test_ten_percent_more_load_costs_more() -> None:
    task = problem((4.0, 2.0, 1.0), nodes=(NodeShape("H100", 8, 4),))
    assert more_load(task, first_plan).cost_w > first_plan(task).cost_w
