"""The run log on disk: rows in, JSON lines out, one file that rotates by size.

Owns the queue between the event loop and the disk, the one thread that writes, and the files. `record` never waits and
never raises: a full queue drops the row and counts it. Refuses to know what a row means; rows are built elsewhere,
without any text of prompts or answers.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

QUEUE_ROWS = 10_000
BATCH_ROWS = 1_000
FLUSH_S = 0.2  # how old a row may be before it is on disk; also spares the event loop a wake-up per row


class RotatingFile:
    """Appends whole lines to `path`; at `max_bytes` it becomes path.1, path.1 becomes path.2, up to `keep`.

    Opened for each append (about 30 us, a few times a second), so a file that is moved, deleted or replaced meanwhile,
    or a folder that comes back, needs no special care."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep

    def append(self, lines: list[bytes]) -> int:
        """Writes the first of `lines`, as many as fit into the file (a fresh one takes at least one), and says how
        many. All of these or, with OSError, none."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            fitting = _fitting(lines, self._max_bytes - size)
            if fitting or size == 0:
                count = max(1, fitting)
                self._write(file.fileno(), size, b"".join(lines[:count]))
                return count
        self._rotate()
        return 0

    def _write(self, fd: int, size: int, data: bytes) -> None:
        try:
            if size and os.pread(fd, 1, size - 1) != b"\n":  # a power cut left half a line; the next one is whole again
                data = b"\n" + data
            while data:
                data = data[os.write(fd, data) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, size)  # a full disk takes part of a batch; the retry must not repeat it
            raise

    def _rotate(self) -> None:
        if self._keep == 0:
            self._path.unlink(missing_ok=True)
            return
        for number in range(self._keep - 1, 0, -1):
            with suppress(FileNotFoundError):
                self._numbered(number).replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _fitting(lines: list[bytes], room: int) -> int:
    for count, line in enumerate(lines):
        room -= len(line)
        if room < 0:
            return count
    return len(lines)


class RunLog:
    """The Recorder of a running gateway. The event loop calls `record`; everything else happens in one thread.

    Each row ends up counted once: `written`; `dropped` (the queue was full or the log closed); or `failed` (no JSON can
    be made of it, or the disk refused it until the end). While the disk refuses, rows wait in the queue and each
    attempt counts in `errors`."""

    def __init__(self, path: str | Path, max_bytes: int, keep: int, flush_s: float = FLUSH_S) -> None:
        self.written = self.dropped = self.failed = self.errors = 0
        self.last_error = ""
        self._file = RotatingFile(Path(path), max_bytes, keep)
        self._flush_s = flush_s
        self._rows: deque[Mapping[str, object]] = deque()
        self._lines: list[bytes] = []  # encoded, not yet on disk; the thread's own
        self._encode = msgspec.json.Encoder().encode
        self._wake = threading.Event()
        self._flushes: deque[threading.Event] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="run-log", daemon=True)
        self._thread.start()

    def record(self, row: Mapping[str, object]) -> None:
        if self._closed or len(self._rows) >= QUEUE_ROWS:
            self.dropped += 1
        else:
            self._rows.append(row)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Waits until the rows recorded so far were tried once. Blocks: not for the event loop."""
        done = threading.Event()
        self._flushes.append(done)
        self._wake.set()
        return done.wait(timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Takes no more rows and writes what waits. Returns after `timeout_s` at the latest; False: still busy."""
        self._closed = True
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._flush_s)
            self._wake.clear()
            self._round()
        self._round()  # rows that came between the last round and the closing
        self.failed += len(self._lines) + len(self._rows)

    def _round(self) -> None:
        asked = [self._flushes.popleft() for _ in range(len(self._flushes))]
        try:
            while self._rows or self._lines:
                self._fill()
                self._drain()
        except (OSError, ValueError) as error:  # ValueError: the path itself is impossible
            self.errors += 1
            self.last_error = str(error)
        finally:
            for done in asked:
                done.set()

    def _fill(self) -> None:
        for _ in range(min(len(self._rows), BATCH_ROWS - len(self._lines))):
            try:
                self._lines.append(self._encode(self._rows.popleft()) + b"\n")
            except Exception:  # whatever is in a row, the next rows are still to be written
                self.failed += 1

    def _drain(self) -> None:
        while self._lines:
            count = self._file.append(self._lines)
            self.written += count
            del self._lines[:count]
