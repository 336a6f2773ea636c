"""`make paper` on seconds of a made-up trace: every part runs, what is there is not run again, and pools of any number."""

import json
from pathlib import Path

import pytest

from bench.paper import main
from bench.paper_figures import HOUR, POOLS
from core.service import SIZES, Edges
from simulator.case import shipped_service
from simulator.pool_grid import cells, pool_of_cells
from simulator.trace import Arrival
from tests.unit.test_simulate_command import azure, trace


def test_the_quick_variant_runs_and_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = azure(tmp_path / "trace.csv", trace(2, 3.0, 60.0))
    week = tmp_path / "week.csv"
    week.write_text("hour,requests\n" + "".join(f"{hour},{100 + hour % 24}\n" for hour in range(168)))
    out = tmp_path / "paper"
    arguments = ["--quick", "--trace", str(path), "--week", str(week), "--out", str(out), "--jobs", "1",
                 "--policies", "singlepool,joulegate"]  # fmt: skip
    assert main([*arguments, "--only", "hour-12,load"]) == 0
    assert main(arguments) == 0
    assert int(capsys.readouterr().err.splitlines()[-1].split()[0]) >= 12
    found = json.loads((out / "paper.json").read_text())
    assert list(found["parts"]) == ["hour-12", "hour-own", "load", "accuracy", "pools", "day", "week"]
    assert list(found["parts"]["pools"]) == [str(number) for number in POOLS]
    lines = (out / "table.md").read_text().splitlines()
    assert sum(" singlepool | " in line for line in lines) == 18 and "dynamollm" in lines[-1]
    page = (out / "paper.html").read_text()
    assert page.count("<h2>") >= 7 and "src=" not in page
    before = {file.name: file.read_bytes() for file in out.glob("t*")}
    spent = found["sim"]["cpu_s"]
    assert main(arguments) == 0
    again = json.loads((out / "paper.json").read_text())
    assert again == found and again["sim"]["cpu_s"] == spent
    assert {file.name: file.read_bytes() for file in out.glob("t*")} == before


def test_the_papers_bar_is_the_one_it_states() -> None:
    assert [round(HOUR[name], 2) for name in HOUR] == [1.0, 1.2, 0.98, 0.94, 0.81, 0.65]


@pytest.mark.parametrize("count", range(2, 17))
def test_any_number_of_pools_takes_every_request_once(count: int) -> None:
    arrivals = [Arrival(0.0, 1 + 37 * n % 4001, 1 + 53 * n % 700) for n in range(3000)]
    edges = Edges()
    grid = cells(arrivals, edges, count)
    assert len(grid) == count
    pool_of, spec = pool_of_cells(grid), shipped_service("llama-2-70b")
    for one in arrivals:
        size = edges.output_size(one.output_tokens)
        holding = [n for n, cell in enumerate(grid) if cell.holds(one.input_tokens, size)]
        assert holding == [pool_of(spec, one, size)]
    held = [sum(cell.holds(a.input_tokens, edges.output_size(a.output_tokens)) for a in arrivals) for cell in grid]
    for size in SIZES if count > 2 and count != 9 else ():
        of_size = [number for number, cell in zip(held, grid, strict=True) if size in cell.sizes]
        assert max(of_size) - min(of_size) <= 1 + 0.02 * sum(of_size)


def test_a_pool_that_is_left_out_is_replaced_by_a_later_one() -> None:
    grid = [cell for cell in cells([], Edges()) if cell.name not in ("SM", "LL")]
    pool_of, spec = pool_of_cells(grid), shipped_service("llama-2-70b")
    assert grid[pool_of(spec, Arrival(0.0, 100, 1), "M")].name == "MM"
    assert pool_of(spec, Arrival(0.0, 9000, 1), "L") == len(grid) - 1
