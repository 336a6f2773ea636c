"""The ledger on disk: sums are added, old rows are made coarse and go, a disk that refuses loses nothing at once."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from gateway.ledger_query import energy, request_joules, span_of
from gateway.ledger_store import COARSE_S, JOULES, OLD_S, SCHEMA, Batch, LedgerStore, add, purge
from gateway.tariff import Tariff, constant, read_steps, total

T = 1_800_000_000.0
DAY_S = 86_400.0


def batch(at_s: float = T, joules: float = 100.0) -> Batch:
    made = Batch()
    row = made.window((at_s // 10 * 10, "svc", "short", "measured"))
    row[0], row[3], row[4] = joules, joules * 0.7, joules * 0.3
    made.account((at_s // 60 * 60, "svc", "short", "SS", "ann"))[1:] = [joules * 0.7, 2, 50, 90, 80]
    made.requests.append(("id-1", at_s, "ann", "svc", "SS", "completed", 25, 45, 1, 3.0, 32.0, "attributed"))
    return made


@pytest.fixture
def disk() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:")
    made.executescript(SCHEMA)
    return made


def test_sums_of_one_window_are_added_and_answered(disk: sqlite3.Connection) -> None:
    add(disk, batch())
    add(disk, batch(joules=50.0))
    found = energy(disk, span_of(T - 100, T + 100), Tariff(constant(400.0), constant(0.25), "EUR"))
    assert found["meter_j"] == 150 and found["lines"]["requests"] == pytest.approx(105)
    assert found["lines"]["idle"] == pytest.approx(45) and found["residual_share"] == 0
    assert found["by_key"]["ann"]["joules"] == pytest.approx(105) and found["requests"] == 4
    assert found["j_per_good_token"] == pytest.approx(150 / 160)
    assert found["co2"]["g"] == pytest.approx(150 / 3.6e6 * 400)
    assert found["cost"] == {"amount": pytest.approx(150 / 3.6e6 * 0.25), "currency": "EUR"}
    assert found["quality"] == {"meter": "measured", "requests": "attributed"}
    assert sum(point["total"] for point in found["series"]) * found["step_s"] == pytest.approx(150)
    assert energy(disk, span_of(T + 100, T + 200), Tariff())["meter_j"] == 0
    one = request_joules(disk, "id-1")
    assert one is not None and one["joules"] == 35.0 and one["attained"] is True
    assert request_joules(disk, "id-2") is None


def test_old_rows_become_coarse_and_then_go_without_losing_a_joule(disk: sqlite3.Connection) -> None:
    for n in range(200):
        add(disk, batch(T + 10 * n))
    before = disk.execute("select sum(meter_j), count(*) from windows").fetchone()
    purge(disk, T + OLD_S + 1500, keep_s=30 * DAY_S, keep_requests_s=7 * DAY_S)
    after = disk.execute("select sum(meter_j), count(*) from windows").fetchone()
    assert before == (20_000, 200) and after[0] == before[0] and after[1] < 120
    assert disk.execute("select sum(requests) from accounts").fetchone()[0] == 400
    purge(disk, T + OLD_S + 1500, keep_s=30 * DAY_S, keep_requests_s=7 * DAY_S)  # twice is once
    assert disk.execute("select sum(meter_j) from windows where t % ? = 0", (COARSE_S,)).fetchone()[0] > 10_000
    purge(disk, T + 40 * DAY_S, keep_s=30 * DAY_S, keep_requests_s=7 * DAY_S)
    for table in ("windows", "accounts", "requests"):
        assert disk.execute(f"select count(*) from {table}").fetchone()[0] == 0


def test_a_disk_that_refuses_gets_the_rows_later(tmp_path: Path) -> None:
    blocked = tmp_path / "folder"
    blocked.write_text("no folder")
    store = LedgerStore(blocked / "energy.sqlite", keep_s=30 * DAY_S, keep_requests_s=DAY_S)
    store.write(batch(), T).result(10)
    assert store.errors == 1 and store.written == 0 and store.last_error
    blocked.unlink()
    store.write(batch(), T).result(10)
    assert store.written == 4
    rows = asyncio.run(store.ask(lambda disk: disk.execute("select sum(meter_j) from windows").fetchone()))
    assert rows == (200.0,)
    store.close()


def test_prices_hold_from_their_moment_on(tmp_path: Path) -> None:
    path = tmp_path / "price.csv"
    path.write_text("moment,price\n2027-01-15T00:00:00Z,0.10\n1800000000,0.30\n")
    steps = read_steps(path)
    assert steps.at(0.0) == 0.10 and steps.at(T - 1) == 0.10 and steps.at(T) == 0.30
    assert total(steps, [(T - 10, 3.6e6), (T + 10, 3.6e6)]) == pytest.approx(0.4)
    path.write_text("moment,price\n1800000000,cheap\n")
    with pytest.raises(ValueError, match=r"price.csv:2"):
        read_steps(path)


def test_a_batch_has_a_value_for_every_sum() -> None:
    assert len(Batch().window((0.0, "", "", ""))) == len(JOULES)
