"""What it costs to start, stop, park, wake and re-shard an instance: seconds and joules of every transition here.

Owns the record and its file. Joules come from the counters of the instance's GPUs where they can be read at both ends,
else from the engine model: idle (or parked) watts x GPUs x seconds. Times are this process's. CPU seconds are those of
the instance's processes: for an engine on a CPU, where neither is known, they stand in for joules by their own name.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from core.clock import Clock
from core.files import write_whole
from pools.instance import Instance
from pools.knobs import Knobs

KEPT = 20  # of a kind, the newest: a slower disk or a larger model is learnt within a day
PAIRED_S = 600.0  # between the beginnings of both halves: the old one first lets its answers end
SOON_S = 60.0  # GPUs that a stop has freed are taken by the next tick, or by one after a failed start's pause
KINDS = ("start", "stop", "park", "wake", "reshard")
log = structlog.get_logger("joulegate.transitions")


@dataclass(frozen=True, slots=True)
class Kind:
    """`from_tp`: of a re-shard, what its GPUs or its place were before; else 0."""

    service: str
    kind: str
    tp: int
    from_tp: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One transition. `joules` None: neither counted nor modelled. `quality`: measured or modelled. `cpu_s` None: not
    known, as of a stop, whose processes are gone at its end; of a re-shard it is that of the start."""

    wall_s: float
    seconds: float
    joules: float | None
    quality: str
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """Means over the newest transitions of a kind."""

    kind: Kind
    count: int
    seconds: float
    joules: float | None
    quality: str
    cpu_s: float | None = None


@dataclass(slots=True)
class _Open:
    """A transition under way. `read_j`, `read_cpu_s`: the counters at its start, once they were read."""

    kind: Kind
    instance: Instance
    knobs: Knobs
    began_s: float
    cpu: Callable[[], float | None]
    read_j: float | None = None
    read_cpu_s: float | None = None
    seconds: float | None = None  # set when it has ended


@dataclass(frozen=True, slots=True)
class _Half:
    """A start or a stop that may turn out to be the first half of a re-shard."""

    kind: Kind
    instance_id: str
    pool: str
    began_s: float
    row: Row

    @property
    def ended_s(self) -> float:
        return self.began_s + self.row.seconds

    def reshards(self, later: _Half) -> bool:
        """Make before break: a stop that began after the start of another TP in the same pool. Where GPUs are short,
        drained before it starts: a start soon after such a stop's end."""
        alike = (self.kind.service, self.pool) == (later.kind.service, later.pool) and self.kind.tp != later.kind.tp
        if later.kind.kind == "stop":
            return alike and self.kind.kind == "start" and self.began_s <= later.began_s
        soon = 0 <= later.began_s - self.ended_s <= SOON_S
        return alike and soon and (self.kind.kind, later.kind.kind) == ("stop", "start")


class Transitions:
    """One for all services. `begin` and `end` never wait; `run` reads the counters and writes the file."""

    def __init__(self, clock: Clock, path: Path | None) -> None:
        self.rows: dict[Kind, deque[Row]] = {}
        self._clock = clock
        self._path = path
        self._open: dict[str, _Open] = {}
        self._halves: list[_Half] = []
        self._due: asyncio.Queue[tuple[_Open, bool]] = asyncio.Queue()  # with whether this is its end
        if path is not None:
            self.rows = _loaded(path)

    def begin(
        self, kind: str, service: str, instance: Instance, knobs: Knobs, cpu: Callable[[], float | None] = lambda: None
    ) -> None:
        """Whatever was under way with this instance has come to nothing. `cpu`: processor seconds of its processes so
        far; it is called in a thread."""
        one = _Open(Kind(service, kind, instance.tp), instance, knobs, self._clock.now_s(), cpu)
        if kind == "start":
            one.read_cpu_s = 0.0  # its processes are born with it
        self._open[instance.id] = one
        self._due.put_nowait((one, False))

    def end(self, kind: str, instance_id: str) -> None:
        one = self._open.get(instance_id)
        if one is not None and one.kind.kind == kind:
            del self._open[instance_id]
            one.seconds = self._clock.now_s() - one.began_s
            self._due.put_nowait((one, True))

    def drop(self, instance_id: str) -> None:
        """It failed: what that took is no price of anything."""
        self._open.pop(instance_id, None)

    def costs(self) -> tuple[Cost, ...]:
        """In a fixed order."""
        kinds = sorted(self.rows, key=lambda kind: (kind.service, KINDS.index(kind.kind), kind.tp, kind.from_tp))
        return tuple(_cost(kind, self.rows[kind]) for kind in kinds)

    def switch_j(self, service: str) -> dict[int, tuple[float, float]]:
        """By TP, joules of a start and of a stop, as recorded. A stop that never was costs nothing yet."""
        known = {(c.kind.kind, c.kind.tp): c.joules for c in self.costs() if c.kind.service == service}
        found = {}
        for (kind, tp), start_j in known.items():
            if kind == "start" and start_j is not None:
                found[tp] = round(start_j, 1), round(known.get(("stop", tp)) or 0.0, 1)
        return found

    def wake_j(self, service: str) -> dict[int, float]:
        """By TP, joules of waking an instance, as recorded."""
        mine = [c for c in self.costs() if (c.kind.service, c.kind.kind) == (service, "wake")]
        return {c.kind.tp: round(c.joules, 1) for c in mine if c.joules is not None}

    def reshard_j(self, service: str) -> tuple[tuple[int, int, float], ...]:
        """(TP before, TP after, joules), as recorded: from the new one's start to the old one's end."""
        mine = [c for c in self.costs() if (c.kind.service, c.kind.kind) == (service, "reshard")]
        return tuple((c.kind.from_tp, c.kind.tp, round(c.joules, 1)) for c in mine if c.joules is not None)

    async def run(self) -> None:
        """For ever, in the order of events."""
        while True:
            one, ended = await self._due.get()
            try:
                await self._read(one, ended)
            finally:
                self._due.task_done()

    async def settled(self) -> None:
        """Until everything told so far is on record."""
        await self._due.join()

    async def _read(self, one: _Open, ended: bool) -> None:
        """What ended before its beginning was read has no reading of that."""
        if not ended and one.seconds is not None:
            return
        read_j = await one.knobs.joules(one.instance)
        cpu_s = await asyncio.to_thread(one.cpu)
        if not ended:
            one.read_j = read_j
            one.read_cpu_s = cpu_s if one.read_cpu_s is None else one.read_cpu_s
            return
        spent_s = cpu_s - one.read_cpu_s if cpu_s is not None and one.read_cpu_s is not None else None
        self._keep(one, read_j, spent_s)
        if self._path is not None:
            await asyncio.to_thread(_save, self._path, {kind: list(rows) for kind, rows in self.rows.items()})

    def _keep(self, one: _Open, read_j: float | None, cpu_s: float | None) -> None:
        assert one.seconds is not None
        joules, quality = None, "modelled"
        if read_j is not None and one.read_j is not None and read_j >= one.read_j:
            joules, quality = read_j - one.read_j, one.knobs.quality
        elif one.instance.model is not None:
            model = one.instance.model
            watts = model.parked_w if one.kind.kind in ("park", "wake") else model.idle_w
            joules = watts * one.kind.tp * one.seconds
        row = Row(self._clock.wall_s(), one.seconds, joules, quality, cpu_s)
        self._add(one.kind, row)
        if one.kind.kind in ("start", "stop"):
            self._pair(_Half(one.kind, one.instance.id, one.instance.pool, one.began_s, row))

    def _pair(self, half: _Half) -> None:
        """Both halves are one re-shard, from the beginning of the first to the end of the second. What has ended itself
        replaces nothing any more."""
        recent = [one for one in self._halves if half.began_s - one.began_s < PAIRED_S]
        self._halves = [one for one in recent if one.instance_id != half.instance_id]
        first = next((one for one in reversed(self._halves) if one.reshards(half)), None)
        if first is None:
            self._halves.append(half)
            return
        self._halves.remove(first)
        start, stop = (half, first) if half.kind.kind == "start" else (first, half)
        known = start.row.joules is not None and stop.row.joules is not None
        both = (start.row.joules or 0.0) + (stop.row.joules or 0.0) if known else None
        seconds = half.ended_s - first.began_s
        kind = Kind(half.kind.service, "reshard", start.kind.tp, stop.kind.tp)
        self._add(kind, replace(half.row, seconds=seconds, joules=both, cpu_s=start.row.cpu_s))

    def _add(self, kind: Kind, row: Row) -> None:
        self.rows.setdefault(kind, deque(maxlen=KEPT)).append(row)


def _cost(kind: Kind, rows: deque[Row]) -> Cost:
    joules = [row.joules for row in rows if row.joules is not None]
    cpu_s = [row.cpu_s for row in rows if row.cpu_s is not None]
    measured = bool(rows) and all(row.quality == "measured" for row in rows)
    return Cost(
        kind, len(rows), sum(row.seconds for row in rows) / len(rows), sum(joules) / len(joules) if joules else None,
        "measured" if measured else "modelled", sum(cpu_s) / len(cpu_s) if cpu_s else None,
    )  # fmt: skip


def _loaded(path: Path) -> dict[Kind, deque[Row]]:
    """Nothing where there is no such file. One that cannot be read is told of, and written anew."""
    try:
        told = json.loads(path.read_text())["transitions"]
        return {Kind(**one["kind"]): deque((Row(**row) for row in one["rows"]), KEPT) for one in told}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("recorded transitions cannot be read", file=str(path), why=repr(error))
        return {}


def _save(path: Path, rows: Mapping[Kind, list[Row]]) -> None:
    told = [{"kind": asdict(kind), "rows": [asdict(row) for row in kept]} for kind, kept in rows.items()]
    try:
        write_whole(path, json.dumps({"transitions": told}).encode())
    except OSError as error:
        log.warning("transitions cannot be written", file=str(path), why=repr(error))
