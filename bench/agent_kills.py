"""The kill matrix: kill -9 of agent, gateway and controller in every combination; are clocks at their default in time?

    .venv/bin/python -m bench.agent_kills --runs 100 [--resume]

Real processes on GPUs in a file (`simulator/fake_nvml.c` under pynvml). Gateway and controller hold a lease on four
GPUs each, in processes of their own (`bench/clock_holder.py`, with the gateway's own client; `joulegate serve` has both
in one process). Both set 990 MHz under load. Then the combination is killed with SIGKILL and the file is watched; those
who live must keep their clocks. One run in five has the default lease of 5 s, the others one of 1 s. A second table has
other ends: SIGTERM, a hung agent, a killed watchdog, and agent and watchdog killed at once, where only the next start
undoes (systemd: ExecStopPost). Every run is written at once, and `--resume` goes on after those that are in the file
already. Exit status 1 when one run of the matrix was late."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.agent_rig import UUIDS, Agent, Holder, kill_id, until

NAMES = ("agent", "gateway", "controller")
MATRIX = [kill for size in (1, 2, 3) for kill in combinations(NAMES, size)]
SHARES = {"gateway": UUIDS[:4], "controller": UUIDS[4:]}
MHZ = 990


@dataclass(frozen=True, slots=True)
class Run:
    """`undone_s`: from the kill until every clock that had to be at default was; None if it never was. `kept`: those
    who lived kept theirs until then."""

    kill: str
    lease_s: float
    undone_s: float | None
    kept: bool

    @property
    def in_time(self) -> bool:
        return self.undone_s is not None and self.undone_s <= self.lease_s and self.kept


class Scene:
    """The three processes with one lease time; what was killed is started anew by `whole`."""

    def __init__(self, folder: Path, lease_s: float) -> None:
        self.folder = folder
        self.lease_s = lease_s
        folder.mkdir()
        self.agent = self._agent()
        self.agent.state.put(UUIDS, load=1.0)
        self.holders: dict[str, Holder] = {}

    def whole(self) -> None:
        if not self.agent.alive:
            self.agent.end()
            self.agent = self._agent()
        for name, uuids in SHARES.items():
            if name not in self.holders:
                self.holders[name] = Holder(self.agent, self.folder, name, self.lease_s, MHZ, uuids)
        if until(lambda: self.agent.locks() == [MHZ] * 8, 60) is None:
            raise RuntimeError(self.agent.log.read_text()[-2000:])

    def kill(self, names: Sequence[str]) -> None:
        for name in names:
            (self.agent if name == "agent" else self.holders[name]).send(signal.SIGKILL)

    def bury(self, names: Sequence[str]) -> None:
        """Waits for those that were killed: a process closes its files before it has ended."""
        for name in names:
            (self.agent if name == "agent" else self.holders.pop(name)).end()

    def end(self) -> None:
        for process in (*self.holders.values(), self.agent):
            process.end()

    def _agent(self) -> Agent:
        return Agent(self.folder, "--lease", str(self.lease_s))


def run_one(scene: Scene, kill: Sequence[str]) -> Run:
    scene.whole()
    orphaned = UUIDS if "agent" in kill else [uuid for name in kill for uuid in SHARES[name]]
    living = [uuid for uuid in UUIDS if uuid not in orphaned]
    start_s = time.monotonic()
    scene.kill(kill)
    done = until(lambda: scene.agent.at_default(orphaned), 30)
    undone_s = None if done is None else time.monotonic() - start_s
    kept = scene.agent.locks(living) == [MHZ] * len(living)
    scene.bury(kill)
    return Run("+".join(kill), scene.lease_s, undone_s, kept)


def sigterm(scene: Scene) -> None:
    scene.agent.send(signal.SIGTERM)


def hang(scene: Scene) -> None:
    scene.agent.send(signal.SIGSTOP)


def watchdog_then_agent(scene: Scene) -> None:
    """The agent starts another watchdog; then it is killed itself."""
    first = scene.agent.watchdog
    kill_id(first)
    until(lambda: scene.agent.watchdog not in (None, first))
    until(lambda: scene.agent.http.get("/readiness").status_code == 200)
    scene.agent.send(signal.SIGKILL)


def both_then_start(scene: Scene) -> None:
    """Nobody is left to undo; what systemd would do then is started."""
    watchdog = scene.agent.watchdog
    scene.agent.send(signal.SIGSTOP)  # so that it starts no other watchdog
    kill_id(watchdog)
    scene.agent.end()
    for holder in scene.holders.values():
        holder.end()
    scene.holders.clear()
    scene.agent = Agent(scene.folder, "--lease", str(scene.lease_s))


OTHER: dict[str, Callable[[Scene], None]] = {
    "SIGTERM to the agent": sigterm,
    "agent hangs (SIGSTOP)": hang,
    "watchdog, then agent": watchdog_then_agent,
    "agent and watchdog at once, then a start": both_then_start,
}


def run_other(scene: Scene, name: str) -> Run:
    scene.whole()
    start_s = time.monotonic()
    OTHER[name](scene)
    done = until(scene.agent.at_default, 30)
    undone_s = None if done is None else time.monotonic() - start_s
    if OTHER[name] is not both_then_start:
        scene.agent.end()
    return Run(name, scene.lease_s, undone_s, True)


def table(runs: Sequence[Run]) -> str:
    lines = ["| killed | lease | runs | in time | slowest | median |", "| --- | --- | --- | --- | --- | --- |"]
    for kill, lease_s in dict.fromkeys((run.kill, run.lease_s) for run in runs):
        rows = [run for run in runs if (run.kill, run.lease_s) == (kill, lease_s)]
        times = sorted(run.undone_s if run.undone_s is not None else float("inf") for run in rows)
        in_time = sum(run.in_time for run in rows)
        median_s = times[len(times) // 2]
        lines.append(f"| {kill} | {lease_s:g} s | {len(rows)} | {in_time} | {times[-1]:.3f} s | {median_s:.3f} s |")
    return "\n".join(lines)


@dataclass(slots=True)
class Runs:
    """All runs, and their file."""

    out: Path
    matrix: list[Run] = field(default_factory=list)
    other: list[Run] = field(default_factory=list)

    def load(self) -> None:
        told = json.loads(self.out.read_text()) if self.out.exists() else {"matrix": [], "other": []}
        self.matrix, self.other = ([Run(**row) for row in told[name]] for name in ("matrix", "other"))

    def add(self, runs: list[Run], run: Run) -> None:
        runs.append(run)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(
            json.dumps({name: [asdict(r) for r in getattr(self, name)] for name in ("matrix", "other")})
        )
        print(f"{len(runs)} {run}", file=sys.stderr)


def measure(runs: Runs, wanted: int, each: int) -> None:
    """Adds runs until the matrix has as many as are `wanted`, and every other end `each`."""
    with TemporaryDirectory(prefix="joulegate-kills-") as folder:
        scenes = {lease_s: Scene(Path(folder) / f"lease-{lease_s:g}", lease_s) for lease_s in (5.0, 1.0)}
        try:
            while (number := len(runs.matrix)) < wanted:
                scene = scenes[5.0 if number % 35 < 7 else 1.0]
                runs.add(runs.matrix, run_one(scene, MATRIX[number % 7]))
            for name in OTHER:
                while sum(run.kill == name for run in runs.other) < each:
                    runs.add(runs.other, run_other(scenes[1.0], name))
        finally:
            for scene in scenes.values():
                scene.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="in all, those of the file too")
    parser.add_argument("--other-runs", type=int, default=3)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/agent-kills.json"))
    asked = parser.parse_args()
    runs = Runs(asked.out)
    if asked.resume:
        runs.load()
    measure(runs, asked.runs, asked.other_runs)
    in_time = sum(run.in_time for run in runs.matrix)
    print(table(runs.matrix), "", table(runs.other), "", sep="\n")
    print(f"clocks at default within the lease in {in_time} of {len(runs.matrix)} runs")
    return 0 if in_time == len(runs.matrix) else 1


if __name__ == "__main__":
    sys.exit(main())
