"""kill -9 of whole gateways and of the agent, in every combination: clocks undone in time, instances lost or doubled.

    .venv/bin/python -m bench.gateway_kills --runs 30 [--seed 1] [--resume]

One agent on eight emulated GPUs, one `joulegate serve` (its controller is a task of it, so it dies with it) and two
emulated engines of two GPUs each at 1200 MHz. After up to two seconds (`--seed`) a combination is killed with SIGKILL
and the GPUs' file is watched; then what was killed is started anew, and every instance must be there once: the same
ids and the same processes, each on its GPUs, at its clock again. Every run is written at once, and `--resume` goes on
after those that are in the file already. Exit status 1 when one run was late, or lost or doubled an instance."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from bench.agent_rig import Agent, Process, until
from pools.ports import free_ports

MHZ, LEASE_S = 1200, 5.0
PATIENCE_S = 240.0  # a start of Python on a crowded machine
MATRIX = [("gateway",), ("agent",), ("agent", "gateway")]
CONFIG = """
listen: {{port: {port}}}
health: {{interval_s: 0.2, timeout_s: 10, fall: 5}}
controller: {{interval_s: 0.2, transitions: {folder}/transitions.json}}
run_log: {{path: null}}
energy: {{path: null}}
agents:
  node-1: {{url: "{address}"}}
services:
  m:
    model: m
    profile: llama-3.1-8b
    pools:
      - {{name: short, serves: [S], tp: 2, clock_mhz: {mhz}, slots: 64}}
      - {{name: long, serves: [M, L], tp: 2, clock_mhz: {mhz}, slots: 64}}
    launcher: {{kind: emulated, agent: node-1, log_dir: {folder}}}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """`undone_s`: from the kill until all clocks were at default; `back_s`: from the start of what was killed until all
    instances were ready and at their clock; `lost`, `doubled`: instances, by the processes that run."""

    kill: str
    undone_s: float | None
    back_s: float | None
    lost: int
    doubled: int

    @property
    def good(self) -> bool:
        in_time = self.undone_s is not None and self.undone_s <= LEASE_S
        return in_time and self.back_s is not None and not self.lost and not self.doubled


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.agent = self._agent()
        self.config = folder / "gateway.yaml"
        self.config.write_text(CONFIG.format(port=port, folder=folder, address=self.agent.address, mhz=MHZ))
        self.http = httpx.Client(timeout=5)
        self.gateway = self._gateway()

    def _agent(self) -> Agent:
        return Agent(self.folder, "--lease", str(LEASE_S))

    def _gateway(self) -> Process:
        return Process(["joulegate.py", "serve", str(self.config)], self.folder / "gateway.log")

    def instances(self) -> dict[str, dict[str, Any]]:
        try:
            shown = self.http.get(f"{self.url}/admin/instances").json()
        except (httpx.TransportError, ValueError):
            return {}
        return {one["id"]: one for one in shown}

    def whole(self) -> bool:
        """Two ready instances on GPUs of their own, at the clock that is wanted, which the GPUs have."""
        time.sleep(0.1)  # not to be what keeps the gateway busy
        shown = self.instances().values()
        held = {gpu for one in shown for gpu in one["gpus"]}
        ready = [one for one in shown if one["state"] == "ready" and one["clock_mhz"] == MHZ]
        return len(ready) == len(shown) == 2 and len(held) == 4 and self.agent.locks(sorted(held)) == [MHZ] * 4

    def engines(self) -> dict[int, str]:
        """Living processes of instances of this world, by process id: their instance's name."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "environ").read_bytes().split(b"\0")
                mine = str(self.agent.state.path).encode() in (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            mark = next((word for word in words if word.startswith(b"JOULEGATE_INSTANCE=m/")), None)
            if mark is not None and mine and state != "Z":
                found[int(entry.name)] = mark.decode().rpartition("/")[2]
        return found

    def run(self, kill: Sequence[str], delay_s: float) -> Run:
        if until(self.whole, PATIENCE_S) is None:
            raise RuntimeError((self.folder / "gateway.log").read_text()[-3000:])
        time.sleep(delay_s)
        before = self.engines()
        victims: dict[str, Process] = {"agent": self.agent, "gateway": self.gateway}
        start_s = time.monotonic()
        for name in kill:
            victims[name].send(signal.SIGKILL)
        undone_s = None if until(self.agent.at_default, 30) is None else time.monotonic() - start_s
        for name in kill:
            victims[name].end()
        if "agent" in kill:
            self.agent = self._agent()
        if "gateway" in kill:
            self.gateway = self._gateway()
        back_s = until(self.whole, PATIENCE_S)
        after = self.engines()
        lost = len(before.keys() - after.keys())
        return Run(
            "+".join(kill),
            undone_s,
            back_s,
            lost,
            len(after) - len(set(after.values())) + len(after.keys() - before.keys()),
        )

    def end(self) -> None:
        self.gateway.send(signal.SIGTERM)
        until(lambda: not self.gateway.alive, 20)
        self.gateway.end()
        for pid in self.engines():
            os.kill(pid, signal.SIGKILL)
        self.agent.end()
        self.http.close()


def table(runs: Sequence[Run]) -> str:
    lines = [
        "| killed | runs | in time | slowest undone | slowest back | lost | doubled |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kill in dict.fromkeys(run.kill for run in runs):
        rows = [run for run in runs if run.kill == kill]
        undone_s = max(run.undone_s if run.undone_s is not None else float("inf") for run in rows)
        back_s = max(run.back_s if run.back_s is not None else float("inf") for run in rows)
        in_time = sum(run.undone_s is not None and run.undone_s <= LEASE_S for run in rows)
        lost, doubled = sum(run.lost for run in rows), sum(run.doubled for run in rows)
        lines.append(f"| {kill} | {len(rows)} | {in_time} | {undone_s:.3f} s | {back_s:.1f} s | {lost} | {doubled} |")
    return "\n".join(lines)


def measure(runs: list[Run], wanted: int, seed: int, out: Path) -> None:
    """Adds runs until there are as many as are wanted; all of them are in `out` after each."""
    with TemporaryDirectory(prefix="jg-") as folder:
        world = World(Path(folder))
        try:
            while len(runs) < wanted:
                number = len(runs)
                delay_s = random.Random(seed * 10_000 + number).uniform(0, 2)
                runs.append(world.run(MATRIX[number % len(MATRIX)], delay_s))
                out.write_text(json.dumps([asdict(run) for run in runs]))
                print(f"{number + 1}/{wanted} {runs[-1]}", file=sys.stderr)
                if not runs[-1].good:
                    logs = out.with_name(f"{out.stem}-{number + 1}")
                    shutil.copytree(world.folder, logs, ignore=shutil.ignore_patterns("*.sock"))
        finally:
            world.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="in all, those of the file too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/gateway-kills.json"))
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    runs = [Run(**row) for row in json.loads(asked.out.read_text())] if asked.resume and asked.out.exists() else []
    measure(runs, asked.runs, asked.seed, asked.out)
    good = sum(run.good for run in runs)
    print(
        table(runs),
        f"\nclocks undone within {LEASE_S:g} s, no instance lost or doubled: {good} of {len(runs)} runs",
        sep="\n",
    )
    return 0 if good == len(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
