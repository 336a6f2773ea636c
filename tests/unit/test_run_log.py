"""The run log: every row once, in order, in files of bounded size, whatever the disk does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.run_log import QUEUE_ROWS, RotatingFile, RunLog

BIG = 1 << 30


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def rows(path: Path) -> list[int]:
    return [json.loads(line)["i"] for line in lines(path)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RunLog]:
    log = RunLog(tmp_path / "deep" / "run.jsonl", BIG, 3, flush_s=30.0)  # only flush and close make it write
    yield log
    log.close()


def counts(log: RunLog) -> tuple[int, int, int]:
    return log.written, log.dropped, log.failed


def test_rows_arrive_in_order(log: RunLog, tmp_path: Path) -> None:
    for i in range(5000):
        log.record({"i": i})
    assert log.close()
    assert rows(tmp_path / "deep" / "run.jsonl") == list(range(5000))
    assert counts(log) == (5000, 0, 0)


def test_a_later_run_appends(tmp_path: Path) -> None:
    for i in range(2):
        log = RunLog(tmp_path / "run.jsonl", BIG, 3)
        log.record({"i": i})
        log.close()
    assert rows(tmp_path / "run.jsonl") == [0, 1]


def test_a_full_queue_drops_and_counts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = RunLog(tmp_path / "file" / "run.jsonl", BIG, 3, flush_s=30.0)  # no folder: nothing can be written
    for i in range(QUEUE_ROWS + 7):
        log.record({"i": i})
    assert log.dropped == 7
    assert log.close()
    assert counts(log) == (0, 7, QUEUE_ROWS)
    assert log.errors > 0 and "exists" in log.last_error


def test_rows_after_the_end_are_dropped(log: RunLog) -> None:
    assert log.close()
    log.record({"i": 1})
    assert counts(log) == (0, 1, 0)
    assert log.close()


def test_rows_wait_until_the_disk_is_back(tmp_path: Path) -> None:
    blocker = tmp_path / "blocked"
    blocker.write_text("")
    log = RunLog(blocker / "run.jsonl", BIG, 3, flush_s=30.0)
    for i in range(1500):
        log.record({"i": i})
    assert log.flush() and log.errors == 1 and log.written == 0
    assert log.flush() and log.errors == 2
    blocker.unlink()
    log.record({"i": 1500})
    assert log.flush()
    assert counts(log) == (1501, 0, 0)
    assert rows(blocker / "run.jsonl") == list(range(1501))
    log.close()


def test_a_full_disk_is_counted(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "run.jsonl").symlink_to("/dev/full")
    log = RunLog(tmp_path / "run.jsonl", BIG, 3, flush_s=30.0)
    log.record({"i": 1})
    assert log.flush() and log.errors == 1 and "No space left" in log.last_error
    assert log.close()
    assert counts(log) == (0, 0, 1)


def test_part_of_a_batch_on_a_full_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    path, whole = tmp_path / "run.jsonl", os.write
    path.write_bytes(b'{"i":0}\n')
    file = RotatingFile(path, BIG, 3)

    def half(fd: int, data: bytes) -> int:
        if len(data) < 12:
            raise OSError(28, "No space left on device")
        return whole(fd, data[:9])

    monkeypatch.setattr("gateway.run_log.os.write", half)
    with pytest.raises(OSError, match="No space"):
        file.append([b'{"i":1}\n', b'{"i":2}\n'])
    monkeypatch.undo()
    assert rows(path) == [0]
    assert file.append([b'{"i":1}\n', b'{"i":2}\n']) == 2
    assert rows(path) == [0, 1, 2]


def test_an_impossible_path_ends_no_thread() -> None:
    log = RunLog("/tmp/a\0b", BIG, 3, flush_s=30.0)
    log.record({"i": 1})
    assert log.flush() and log.flush() and log.errors == 2
    assert log.close() and log.failed == 1


def test_a_row_without_json_costs_only_itself(log: RunLog, tmp_path: Path) -> None:
    for row in ({"i": 1}, {"i": object()}, {"i": "\ud800"}, {"i": 2, "x": float("nan")}):
        log.record(row)
    assert log.close()
    assert rows(tmp_path / "deep" / "run.jsonl") == [1, 2]
    assert counts(log) == (2, 0, 2)


def test_half_a_line_of_a_power_cut_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"i":0}\n{"i":')
    RotatingFile(path, BIG, 3).append([b'{"i":1}\n'])
    assert lines(path) == [b'{"i":0}\n', b'{"i":\n', b'{"i":1}\n']


def test_a_file_moved_away_is_made_again(log: RunLog, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    log.record({"i": 0})
    assert log.flush()
    path.rename(tmp_path / "moved")
    log.record({"i": 1})
    assert log.flush()
    assert (rows(tmp_path / "moved"), rows(path)) == ([0], [1])


def test_record_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def stuck(file: RotatingFile, batch: list[bytes]) -> int:
        begun.set()
        go_on.wait(10)
        return len(batch)

    monkeypatch.setattr(RotatingFile, "append", stuck)
    log = RunLog(tmp_path / "run.jsonl", BIG, 3, flush_s=0.001)
    log.record({"i": 0})
    assert begun.wait(10)
    for i in range(QUEUE_ROWS + 1):
        log.record({"i": i})
    assert log.dropped == 1
    assert not log.close(timeout_s=0.01)
    go_on.set()
    assert log.close(10)


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_rotation_keeps_the_newest(tmp_path: Path, keep: int) -> None:
    log = RunLog(tmp_path / "run.jsonl", 80, keep)
    for i in range(10, 60):
        log.record({"i": i})  # 9 bytes a line, 8 lines a file
    assert log.close() and counts(log) == (50, 0, 0)
    names = ["run.jsonl", *(f"run.jsonl.{n}" for n in range(1, keep + 1))]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    kept = [i for name in reversed(names) for i in rows(tmp_path / name)]
    assert kept == list(range(60 - len(kept), 60))
    assert len(kept) == 2 + 8 * keep


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=60),
    limit=st.integers(1, 100),
    batch=st.integers(1, 10),
)
def test_no_line_is_lost_cut_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int, batch: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    file = RotatingFile(path, limit, 1000)
    todo = given_lines = [b"%d" % i + b"x" * size + b"\n" for i, size in enumerate(sizes)]
    while todo:
        todo = todo[file.append(todo[:batch]) :]
    files = sorted(path.parent.iterdir(), key=lambda each: -int(each.suffix[1:] if each.suffix != ".jsonl" else 0))
    assert [line for each in files for line in lines(each)] == given_lines
    assert all(each.stat().st_size <= limit or len(lines(each)) == 1 for each in files)
