"""What the kernel tells about processes and cores: CPU time, memory, idle time. Reads /proc, starts nothing.

A process's CPU clock counts nanoseconds, where /proc/PID/stat counts ticks of 10 ms: 5 % of the 200 ms that a segment
costs. A core's busy time is taken from its idle time, which the kernel keeps by the clock too; the other columns of
/proc/stat are sampled once a tick, and load that is paced by a timer beats with that."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Stat:
    """Of /proc/PID/stat what tells who belongs to whom."""

    parent: int
    session: int
    state: str


def parse_stat(text: str) -> Stat:
    fields = text.rpartition(")")[2].split()  # a command name may hold blanks and brackets
    return Stat(parent=int(fields[1]), session=int(fields[3]), state=fields[0])


def read_stats() -> dict[int, Stat]:
    stats = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stats[int(entry.name)] = parse_stat((entry / "stat").read_text())
            except OSError:
                continue  # ended meanwhile
    return stats


def family(root: int, stats: dict[int, Stat]) -> set[int]:
    """The processes of the session that `root` leads, and whatever descends from one of them."""
    found = {root}
    while True:
        more = {pid for pid, stat in stats.items() if stat.parent in found or stat.session == root} - found
        if not more:
            return found
        found |= more


def cpu_s(pids: Iterable[int]) -> float:
    """User and system seconds of all threads of living processes."""
    total = 0
    for pid in pids:
        try:
            total += time.clock_gettime_ns((~pid << 3) | 2)  # the kernel's clock id of another process
        except OSError:
            continue
    return total / 1e9


def parse_idle_s(text: str, core: int) -> float:
    """Idle, waiting for a disk, or taken away by the hypervisor: seconds since boot in which a core ran nobody."""
    for line in text.splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            return (int(ticks[3]) + int(ticks[4]) + int(ticks[7])) * TICK_S
    raise ValueError(f"/proc/stat knows no core {core}")


def idle_s(core: int) -> float:
    return parse_idle_s((PROC / "stat").read_text(), core)


def parse_waited_s(text: str) -> float:
    """Of /proc/PID/task/TID/schedstat the seconds that a thread was ready to run while another one had the core."""
    return int(text.split()[1]) / 1e9


def waited_s(pids: Iterable[int]) -> float:
    total = 0.0
    for pid in pids:
        for path in (PROC / str(pid) / "task").glob("*/schedstat"):
            try:
                total += parse_waited_s(path.read_text())
            except (OSError, IndexError):
                continue
    return total


def parse_rss_kb(text: str) -> int:
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Rss:"))


def rss_mb(pids: Iterable[int]) -> float:
    total = 0
    for pid in pids:
        try:
            total += parse_rss_kb((PROC / str(pid) / "smaps_rollup").read_text())
        except OSError:
            continue
    return total / 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a gateway and its core."""

    at: float
    cpu: float
    waited: float
    idle: float
    all_cpu: float  # of all gateways of the bench: those that only wait run probes and timers too


def read(pids: set[int], all_pids: set[int], core: int) -> Reading:
    return Reading(time.monotonic(), cpu_s(pids), waited_s(pids), idle_s(core), cpu_s(all_pids))


@dataclass(frozen=True, slots=True)
class Span:
    """What passed between two readings, seconds; `foreign` is the share of the core that others used."""

    cpu: float
    waited: float
    foreign: float
    wall: float


def between(before: Reading, after: Reading) -> Span:
    wall = after.at - before.at
    ours = after.all_cpu - before.all_cpu
    foreign = wall - (after.idle - before.idle) - ours
    waited = max(0.0, after.waited - before.waited)  # threads that ended took their share with them
    return Span(after.cpu - before.cpu, waited, max(0.0, foreign / wall), wall)
