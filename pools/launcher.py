"""How instances come to be. `start` returns at once, `alive` is the truth, everything may be called twice.

`StaticLauncher` knows servers that somebody else runs; `ProcessLauncher` runs vLLM (or the emulated engine) as child
processes on this host, each in a session of its own, and ends whole sessions so that no worker outlives its server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from core.service import PoolSpec, ServiceSpec

EMULATED_ARGV = (
    "{python}", "-m", "simulator.serve", "--port", "{port}", "--profile", "{profile}", "--tp", "{tp}",
    "--clock-mhz", "{clock_mhz}", "--max-num-seqs", "{slots}", "--served-model-name", "{model}",
    "--max-model-len", "{context_tokens}", "--runner", "{runner}", "--max-num-batched-tokens", "{step_tokens}",
)  # fmt: skip
REAP_S = 0.5  # a killed process is gone at once, unless its kernel call hangs, as in a driver that is stuck
MARK = "JOULEGATE_INSTANCE"  # in the environment of every child: how a later start recognises what an earlier one left


@dataclass(frozen=True, slots=True)
class Place:
    host: str
    port: int


class GpuBook:
    """Which GPU indices of this host each instance has. One per process, shared by all launchers."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, ...]] = {}

    def take(self, holder: str, number: int) -> tuple[int, ...]:
        """The lowest free run of `number` neighbours that starts at a multiple of it: such a group shares its links."""
        taken = {gpu for held in self._held.values() for gpu in held}
        start = next(s for s in range(0, 1 << 20, number) if not taken & set(range(s, s + number)))
        self._held[holder] = tuple(range(start, start + number))
        return self._held[holder]

    def give_back(self, holder: str) -> None:
        self._held.pop(holder, None)


class Launcher(Protocol):
    """`managed` says whether instances can be started and stopped at all."""

    managed: bool

    def start(self, instance_id: str, pool: PoolSpec) -> Place: ...

    def alive(self, instance_id: str) -> bool: ...

    def stop(self, instance_id: str, *, force: bool) -> None: ...


class StaticLauncher:
    """No lifecycle: whether a server lives is the prober's question."""

    managed = False

    def start(self, instance_id: str, pool: PoolSpec) -> Place:
        raise RuntimeError("static instances are added by URL")

    def alive(self, instance_id: str) -> bool:
        return True

    def stop(self, instance_id: str, *, force: bool) -> None:
        return


class ProcessLauncher:
    """Children of this process. Owns their Popen objects and nothing else does. `_undead` are killed children that
    have not ended yet: they keep their GPUs until they have."""

    managed = True

    def __init__(
        self,
        service: ServiceSpec,
        environment: Mapping[str, str],
        gpus: GpuBook,
        kill: Callable[[int], None] | None = None,
    ) -> None:
        self._kill = kill or _kill_session
        self._undead: dict[str, subprocess.Popen[bytes]] = {}
        self._service = service
        self._gpus = gpus
        self._environment = dict(environment)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, instance_id: str, pool: PoolSpec) -> Place:
        self._reap()
        place = Place("127.0.0.1", _free_port())
        spec = self._service.launcher
        argv = EMULATED_ARGV if spec.kind == "emulated" else spec.argv
        values = self._values(place, pool)
        if any("{gpus}" in word for word in (*argv, *spec.env.values())):
            values["gpus"] = ",".join(str(gpu) for gpu in self._gpus.take(instance_id, pool.tp))
        environment = (
            self._environment
            | {k: _fill(v, values) for k, v in spec.env.items()}
            | {MARK: f"{self._service.name}/{instance_id}"}
        )
        log = Path(spec.log_dir) / f"{instance_id}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._children[instance_id] = subprocess.Popen(
                [_fill(word, values) for word in argv],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return place

    def alive(self, instance_id: str) -> bool:
        child = self._children.get(instance_id) or self._undead.get(instance_id)
        return child is not None and child.poll() is None

    def stop(self, instance_id: str, *, force: bool) -> None:
        """SIGTERM to the server, or SIGKILL to its whole session. A server that has gone takes its session along."""
        self._reap()
        child = self._children.get(instance_id)
        if child is None:
            if instance_id not in self._undead:
                self._gpus.give_back(instance_id)  # a start that failed had taken them
            return
        if not force and child.poll() is None:
            child.terminate()
            return
        self._kill(child.pid)
        self._undead[instance_id] = self._children.pop(instance_id)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(REAP_S)
        self._reap()

    def _reap(self) -> None:
        for instance_id, child in list(self._undead.items()):
            if child.poll() is not None:
                del self._undead[instance_id]
                self._gpus.give_back(instance_id)

    def _values(self, place: Place, pool: PoolSpec) -> dict[str, str]:
        service = self._service
        return {
            "python": sys.executable,
            "host": place.host,
            "port": str(place.port),
            "model": service.model,
            "profile": service.profile,
            "context_tokens": str(service.context_tokens),
            "runner": "pooling" if service.embeddings else "generate",
            "tp": str(pool.tp),
            "clock_mhz": str(pool.clock_mhz),
            "slots": str(pool.limits.slots),
            "step_tokens": str(pool.limits.tokens_per_step),
            "pool": pool.name,
        }


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _kill_session(session_id: int) -> None:
    """A session is more than a process group: engine workers may have moved to a group of their own."""
    for pid in _processes():
        try:
            if os.getsid(pid) == session_id:
                os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def end_leftovers(service: ServiceSpec) -> list[str]:
    """Ends children that an earlier gateway of this service left behind when it was killed; returns their ids.

    Only orphans count: a child whose parent still lives belongs to another running gateway."""
    prefix = f"{MARK}={service.name}/".encode()
    ended = []
    for pid in _processes():
        try:
            if os.getsid(pid) != pid or _parent(pid) not in (0, 1):
                continue
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        mark = next((entry for entry in environment if entry.startswith(prefix)), None)
        if mark is not None:
            _kill_session(pid)
            ended.append(mark.decode().partition("=")[2])
    return ended


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def place_of(url: str) -> Place:
    """Host and port of an http URL that the configuration has already checked."""
    parts = urlsplit(url)
    return Place(parts.hostname or "127.0.0.1", parts.port or 80)
