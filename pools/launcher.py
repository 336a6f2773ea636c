"""How instances come to be. `start` returns at once, `alive` is the truth, everything may be called twice.

`StaticLauncher` knows servers that somebody else runs; `ProcessLauncher` runs vLLM (or the emulated engine) as child
processes on this host, ends whole sessions so that no worker outlives its server, and finds what an earlier gateway
that was killed has left running."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from core.service import InstanceLimits, PoolSpec, ServiceSpec
from pools.children import HOME, Child, Orphan, kill_session, orphans, session_cpu_s
from pools.children import start as start_child
from pools.gpu_book import GpuBook
from pools.ports import free_ports
from pools.weights import read_ahead_aside

EMULATED_ARGV = (
    "{python}", "-m", "simulator.serve", "--port", "{port}", "--profile", "{profile}", "--tp", "{tp}",
    "--clock-mhz", "{clock_mhz}", "--max-num-seqs", "{slots}", "--served-model-name", "{model}",
    "--max-model-len", "{context_tokens}", "--runner", "{runner}", "--max-num-batched-tokens", "{step_tokens}",
    "--shutdown-timeout", "{stop_s}", "--speed", "{speed}", "--start-delay", "{start_delay_s}",
)  # fmt: skip
ON_GPUS = ("--nvml-state", "{nvml_state}", "--gpus", "{gpus}")
Spawn = Callable[[str, Sequence[str], Mapping[str, str], Mapping[str, Any], Path], Child]
DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Place:
    """`gpus`: UUIDs, where they are known."""

    host: str
    port: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """An instance that an earlier gateway started and that still runs as this one would start it."""

    instance_id: str
    pool: PoolSpec
    place: Place


class Launcher(Protocol):
    """`managed` says whether instances can be started and stopped at all."""

    managed: bool

    def start(self, instance_id: str, pool: PoolSpec, near: str = "") -> Place:
        """`near`: a GPU on whose island it is to be, if there is room."""
        ...

    def alive(self, instance_id: str) -> bool: ...

    def stop(self, instance_id: str, *, force: bool) -> None: ...

    def cpu_s(self, instance_id: str) -> float | None:
        """Processor seconds of its processes so far; None where nobody knows. May be called in any thread."""
        ...

    def take_over(self) -> tuple[list[Found], list[str]]:
        """What an earlier gateway left: instances that are ours from now on, and ids of those that were ended."""
        ...

    def exclude(self, gpus: Sequence[str]) -> None:
        """Nothing starts on these GPUs from now on."""
        ...


class StaticLauncher:
    """No lifecycle: whether a server lives is the prober's question."""

    managed = False

    def start(self, instance_id: str, pool: PoolSpec, near: str = "") -> Place:
        raise RuntimeError("static instances are added by URL")

    def alive(self, instance_id: str) -> bool:
        return True

    def stop(self, instance_id: str, *, force: bool) -> None:
        return

    def cpu_s(self, instance_id: str) -> float | None:
        return None

    def take_over(self) -> tuple[list[Found], list[str]]:
        return [], []

    def exclude(self, gpus: Sequence[str]) -> None:
        return


class ProcessLauncher:
    """Sessions on this host. `_undead` are killed children that have not ended yet: they keep their GPUs until they
    have. `emulated_gpus`: the file of the emulated GPUs that emulated engines run on; empty: they need none.
    `address`: where this gateway listens; with the folder of the logs it tells its children from another gateway's."""

    managed = True

    def __init__(
        self,
        service: ServiceSpec,
        environment: Mapping[str, str],
        gpus: GpuBook,
        kill: Callable[[int], None] = kill_session,
        emulated_gpus: Callable[[], str] = str,
        spawn: Spawn = start_child,
        speed: float = 1.0,
        address: str = "",
    ) -> None:
        self._speed = speed
        self._home = f"{address} {Path(service.launcher.log_dir).resolve()}"
        self._spawn = spawn
        self._kill = kill
        self._undead: dict[str, Child] = {}
        self._service = service
        self._gpus = gpus
        self._emulated_gpus = emulated_gpus
        self._environment = dict(environment)
        self._children: dict[str, Child] = {}

    def start(self, instance_id: str, pool: PoolSpec, near: str = "") -> Place:
        """OSError where it cannot be started: no such program, or no GPUs for it."""
        self._reap()
        spec = self._service.launcher
        argv = (
            spec.argv if spec.kind == "process" else EMULATED_ARGV + (ON_GPUS if self._gpus.islands is not None else ())
        )
        extra = dict(spec.env)
        if spec.kind == "process" and self._gpus.islands is not None:
            extra.setdefault(DEVICES, "{gpus}")
        gpus: tuple[str, ...] = ()
        if any("{gpus}" in word for word in (*argv, *extra.values())):
            gpus = self._gpus.take(instance_id, pool.tp, near)
        place = Place("127.0.0.1", free_ports(1)[0], gpus)
        values = self._values(place, pool)
        if spec.weights:
            read_ahead_aside(spec.weights)
        self._children[instance_id] = self._spawn(
            f"{self._service.name}/{instance_id}",
            [_fill(word, values) for word in argv],
            self._environment | {k: _fill(v, values) for k, v in extra.items()},
            _about(pool, place, self._print()) | {"nvml_state": values["nvml_state"], HOME: self._home},
            Path(spec.log_dir) / f"{instance_id}.log",
        )
        return place

    def alive(self, instance_id: str) -> bool:
        child = self._children.get(instance_id) or self._undead.get(instance_id)
        return child is not None and child.alive()

    def stop(self, instance_id: str, *, force: bool) -> None:
        """SIGTERM to the server, or SIGKILL to its whole session. A server that has gone takes its session along."""
        self._reap()
        child = self._children.get(instance_id)
        if child is None:
            if instance_id not in self._undead:
                self._gpus.give_back(instance_id)  # a start that failed had taken them
            return
        if not force and child.alive():
            child.terminate()
            return
        child.kill(self._kill)
        self._undead[instance_id] = self._children.pop(instance_id)
        child.reap()
        self._reap()

    def cpu_s(self, instance_id: str) -> float | None:
        child = self._children.get(instance_id)
        return session_cpu_s(child.pid) if child is not None and child.alive() else None

    def exclude(self, gpus: Sequence[str]) -> None:
        self._gpus.exclude(gpus)

    def take_over(self) -> tuple[list[Found], list[str]]:
        """Instances of another make (argv, model, pool gone) are ended, and so are those that share a GPU."""
        found, ended = [], []
        for orphan in orphans(f"{self._service.name}/", self._home):
            instance_id = orphan.name.rpartition("/")[2]
            one = self._found(instance_id, orphan.about)
            if one is None or instance_id in self._children:
                self._end_leftover(orphan)
                ended.append(instance_id)
                continue
            self._children[instance_id] = orphan.child
            if one.place.gpus:
                self._gpus.hold(instance_id, one.place.gpus)
            found.append(one)
        return found, ended

    def _end_leftover(self, orphan: Orphan) -> None:
        """Its GPUs are nobody else's before it has ended."""
        orphan.child.kill(self._kill)
        orphan.child.reap()
        holder = f"leftover {orphan.child.pid}"
        self._undead[holder] = orphan.child
        self._gpus.hold(holder, orphan.about.get("gpus", ()))

    def _found(self, instance_id: str, about: Mapping[str, Any]) -> Found | None:
        pool = next((pool for pool in self._service.pools if pool.name == about.get("pool")), None)
        if pool is None or about.get("print") != self._print():
            return None
        limits = InstanceLimits(about["slots"], about["kv_tokens"], about["step_tokens"])
        place = Place("127.0.0.1", about["port"], tuple(about["gpus"]))
        known = self._emulated_gpus()  # empty while the agent does not answer: that is no reason to end anything
        if self._service.launcher.kind == "emulated" and known and about.get("nvml_state") != known:
            return None
        others = {gpu for held in self._gpus.held.values() for gpu in held}
        if others.intersection(place.gpus) or (not place.gpus and self._gpus.islands is not None):
            return None
        return Found(instance_id, replace(pool, tp=about["tp"], clock_mhz=about["clock_mhz"], limits=limits), place)

    def _reap(self) -> None:
        for instance_id, child in list(self._undead.items()):
            if not child.alive():
                del self._undead[instance_id]
                self._gpus.give_back(instance_id)

    def _print(self) -> str:
        """What all instances of this service have in common: one that runs with another one is not of this make."""
        service, spec = self._service, self._service.launcher
        same = (spec.kind, spec.argv, sorted(spec.env.items()), service.model, service.profile, service.context_tokens)
        return hashlib.sha256(repr((*same, service.embeddings, self._speed)).encode()).hexdigest()[:16]

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
            "gpus": ",".join(place.gpus),
            "nvml_state": self._emulated_gpus(),
            "speed": str(self._speed),
            "start_delay_s": str(service.launcher.start_delay_s / self._speed),
            "stop_s": str(max(0, int(service.launcher.stop_timeout_s) - 1)),
        }


def _about(pool: PoolSpec, place: Place, same: str) -> dict[str, Any]:
    limits = pool.limits
    return {
        "pool": pool.name, "tp": pool.tp, "clock_mhz": pool.clock_mhz, "slots": limits.slots, "port": place.port,
        "kv_tokens": limits.kv_tokens, "step_tokens": limits.step_tokens, "gpus": place.gpus, "print": same,
    }  # fmt: skip


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace("{" + name + "}", value)
    return word


def place_of(url: str) -> Place:
    """Host and port of an http URL that the configuration has already checked."""
    parts = urlsplit(url)
    return Place(parts.hostname or "127.0.0.1", parts.port or 80)
