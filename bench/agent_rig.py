"""The node agent and its clients as real processes, on GPUs in a file. Owns the processes and ends them by id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx

from core.clock import SystemClock
from simulator.gpu_library import build, environment
from simulator.gpu_state import GpuState, uuids_of

ROOT = Path(__file__).resolve().parents[1]
UUIDS = uuids_of("h100", 8)


def until(holds: Callable[[], object], within_s: float = 30.0) -> float | None:
    """Seconds until it holds, asked every 2 ms; None if it never did."""
    start_s = time.monotonic()
    while not holds():
        if time.monotonic() - start_s > within_s:
            return None
        time.sleep(0.002)
    return time.monotonic() - start_s


class Process:
    def __init__(
        self, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, folder: Path = ROOT
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self.child = subprocess.Popen(
                [sys.executable, *argv],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    def send(self, number: int) -> None:
        self.child.send_signal(number)

    def end(self) -> None:
        if self.alive:
            self.child.send_signal(signal.SIGCONT)
            self.child.kill()
        self.child.wait()


class Agent(Process):
    """`joulegate agent` on a Unix socket, as it is; the library it finds is the one that has its GPUs in a file."""

    def __init__(self, folder: Path, *flags: str, gpus: int = 8) -> None:
        path = folder / "gpus"
        self.state = (
            GpuState(path, SystemClock()) if path.exists() else GpuState.of_kind(path, SystemClock(), "h100", gpus)
        )
        self.address = f"unix:{folder}/agent.sock"
        env = environment(build(ROOT / "build"), path, os.environ)
        super().__init__(["joulegate.py", "agent", "--listen", self.address, *flags], folder / "agent.log", env)
        self.http = httpx.Client(transport=httpx.HTTPTransport(uds=f"{folder}/agent.sock"), base_url="http://agent")
        if until(lambda: not self.alive or self.answers()) is None or not self.alive:
            self.end()
            raise RuntimeError(self.log.read_text())

    def answers(self) -> bool:
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def watchdog(self) -> int | None:
        """Its process id; None between two of them."""
        named = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children")
        return next(map(int, named.read_text().split()), None)

    def locks(self, uuids: Sequence[str] = UUIDS) -> list[int]:
        return [gpu.locked_max_mhz for gpu in self.state.group(uuids)]

    def at_default(self, uuids: Sequence[str] = UUIDS) -> bool:
        return not any(self.locks(uuids))

    def end(self) -> None:
        super().end()
        self.http.close()


class Holder(Process):
    """A client that keeps a clock set."""

    def __init__(self, agent: Agent, folder: Path, name: str, lease_s: float, mhz: int, uuids: Sequence[str]) -> None:
        self.uuids = tuple(uuids)
        argv = ["-m", "bench.clock_holder", agent.address, name, str(lease_s), str(mhz), ",".join(uuids)]
        super().__init__(argv, folder / f"{name}.log")


def kill_id(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
