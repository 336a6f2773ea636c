"""The ledger on disk: joules by window and by account, and a row per request, in SQLite.

Owns the tables, the one thread that touches them, and how long rows are kept. Writes are batches that the thread takes
when it can: the event loop never waits for the disk, and what the disk refuses waits for the next batch, up to a limit.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
WINDOW_S = 10.0
ACCOUNT_S = 60.0
OLD_S = 2 * 86_400.0  # older rows are added up to COARSE_S
COARSE_S = 600.0
MOST_ROWS = 200_000  # waiting for the disk
JOULES = (
    "meter_j", "filled_j", "prefill_j", "decode_j", "idle_j", "parked_j", "starting_j", "switching_j", "residual_j",
    "expected_j", "judged_j",
)  # fmt: skip
TOTALS = ("prefill_j", "decode_j", "requests", "input_tokens", "output_tokens", "good_tokens")
REQUEST = (
    "id", "t", "key", "service", "class", "outcome", "input_tokens", "output_tokens", "attained", "prefill_j",
    "decode_j", "quality",
)  # fmt: skip
SCHEMA = f"""
create table if not exists windows (t real, service text, pool text, quality text,
    {", ".join(f"{name} real not null default 0" for name in JOULES)}, primary key (t, service, pool, quality)
) without rowid;
create table if not exists accounts (t real, service text, pool text, class text, key text,
    {", ".join(f"{name} real not null default 0" for name in TOTALS)}, primary key (t, service, pool, class, key)
) without rowid;
create table if not exists requests ({", ".join(REQUEST)});
create index if not exists request_t on requests (t);
create index if not exists request_id on requests (id);
"""
WindowKey = tuple[float, str, str, str]  # beginning, service, pool, quality of the counter
AccountKey = tuple[float, str, str, str, str]  # beginning, service, pool, class, key


@dataclass(slots=True)
class Batch:
    """What has come since the last write. Rows are sums to be added to those on disk."""

    windows: dict[WindowKey, list[float]] = field(default_factory=dict)
    accounts: dict[AccountKey, list[float]] = field(default_factory=dict)
    requests: list[tuple[object, ...]] = field(default_factory=list)

    def window(self, key: WindowKey) -> list[float]:
        return self.windows.setdefault(key, [0.0] * len(JOULES))

    def account(self, key: AccountKey) -> list[float]:
        return self.accounts.setdefault(key, [0.0] * len(TOTALS))

    def take(self, older: Batch) -> None:
        """An earlier batch that the disk refused comes first."""
        for key, values in older.windows.items():
            self.windows[key] = [a + b for a, b in zip(values, self.window(key), strict=True)]
        for name, sums in older.accounts.items():
            self.accounts[name] = [a + b for a, b in zip(sums, self.account(name), strict=True)]
        self.requests[:0] = older.requests

    @property
    def rows(self) -> int:
        return len(self.windows) + len(self.accounts) + len(self.requests)


class LedgerStore:
    """`path` None keeps the ledger in memory, for as long as the process lives."""

    def __init__(self, path: Path | None, *, keep_s: float, keep_requests_s: float) -> None:
        self.written = self.dropped = self.errors = 0
        self.last_error = ""
        self._path = path
        self._keep_s = keep_s
        self._keep_requests_s = keep_requests_s
        self._refused = Batch()
        self._purge_due_s = 0.0
        self._disk: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")

    def write(self, batch: Batch, wall_s: float) -> Future[None]:
        """Returns at once."""
        return self._thread.submit(self._write, batch, wall_s)

    async def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Runs a question in the thread; sqlite3.Error when the disk does not answer."""
        return await asyncio.wrap_future(self._thread.submit(lambda: question(self._open())))

    def close(self) -> None:
        """Waits for what was to be written. Blocks: not for the event loop while it serves."""
        self._thread.submit(self._shut)
        self._thread.shutdown()

    def _open(self) -> sqlite3.Connection:
        if self._disk is None:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._disk = sqlite3.connect(self._path or ":memory:")
            if self._path is not None:
                self._disk.execute("pragma journal_mode = wal")
                self._disk.execute("pragma synchronous = normal")
            self._disk.executescript(SCHEMA)
        return self._disk

    def _write(self, batch: Batch, wall_s: float) -> None:
        batch.take(self._refused)
        self._refused = Batch()
        try:
            disk = self._open()
            with disk:
                add(disk, batch)
                if wall_s >= self._purge_due_s:
                    purge(disk, wall_s, self._keep_s, self._keep_requests_s)
                    self._purge_due_s = wall_s + COARSE_S
            self.written += batch.rows
        except (sqlite3.Error, OSError) as error:
            self.errors += 1
            self.last_error = str(error)
            if batch.rows <= MOST_ROWS:
                self._refused = batch
            else:
                self.dropped += batch.rows

    def _shut(self) -> None:
        if self._disk is not None:
            self._disk.close()


def add(disk: sqlite3.Connection, batch: Batch) -> None:
    """Adds the sums of a batch to those that are there."""
    disk.executemany(_upsert("windows", ("t", "service", "pool", "quality"), JOULES), _rows(batch.windows.items()))
    disk.executemany(
        _upsert("accounts", ("t", "service", "pool", "class", "key"), TOTALS), _rows(batch.accounts.items())
    )
    disk.executemany(f"insert into requests values ({','.join('?' * len(REQUEST))})", batch.requests)


def purge(disk: sqlite3.Connection, wall_s: float, keep_s: float, keep_requests_s: float) -> None:
    """What is too old goes; what is old is added up to COARSE_S."""
    disk.execute("delete from requests where t < ?", (wall_s - keep_requests_s,))
    for table, names, sums, step_s in (
        ("windows", ("service", "pool", "quality"), JOULES, WINDOW_S),
        ("accounts", ("service", "pool", "class", "key"), TOTALS, ACCOUNT_S),
    ):
        disk.execute(f"delete from {table} where t < ?", (wall_s - keep_s,))
        before = (wall_s - OLD_S) // COARSE_S * COARSE_S
        fine = f"select min(t) from {table} where t < ? and t / {COARSE_S} <> cast(t / {COARSE_S} as int)"
        first = disk.execute(fine, (before,)).fetchone()[0]
        if first is None or step_s >= COARSE_S:
            continue
        begin = first // COARSE_S * COARSE_S
        added = ", ".join(f"sum({name})" for name in sums)
        rows = disk.execute(
            f"select cast(t / {COARSE_S} as int) * {COARSE_S}, {', '.join(names)}, {added} from {table} "
            f"where t >= ? and t < ? group by 1, {', '.join(names)}",
            (begin, before),
        ).fetchall()
        disk.execute(f"delete from {table} where t >= ? and t < ?", (begin, before))
        disk.executemany(f"insert into {table} values ({','.join('?' * (1 + len(names) + len(sums)))})", rows)


def _upsert(table: str, names: tuple[str, ...], sums: tuple[str, ...]) -> str:
    places = ",".join("?" * (len(names) + len(sums)))
    added = ", ".join(f"{name} = {name} + excluded.{name}" for name in sums)
    return f"insert into {table} values ({places}) on conflict do update set {added}"


def _rows(items: Iterable[tuple[tuple[float | str, ...], list[float]]]) -> list[tuple[object, ...]]:
    return [(*key, *values) for key, values in items]
