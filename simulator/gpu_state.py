"""Emulated GPUs in a file: their layout, their physics, and the hand that loads them and lets them fail.

The file is what `fake_nvml.c` reads and writes too, field by field, so that an agent that calls NVML, an engine that
runs on these GPUs and a test that watches share one truth. Every access locks it whole: a killed process leaves neither
a lock nor half a record. The watts are a shape (idle + load x the square of the clock), not a measurement; an engine
that runs on a GPU says its own watts instead. The average is over about a second.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from core.clock import Clock

MAGIC = b"JGNVML01"
HEADER = struct.Struct("<8sqqqd32s184x")
RECORD = struct.Struct("<64s64s17q13d144x")
IDLE, SW_POWER_CAP = 1, 4
AVERAGE_S, WARM_S = 1.0, 20.0


@dataclass(frozen=True, slots=True)
class EmulatedGpu:
    """One record, in the order of the file. Faults: `bin_mhz` (locks snap upwards to bins this wide), `deaf` (a lock
    succeeds and does nothing), `throttle_mhz` with its reasons, `read_error` and `write_error` (nvmlReturn_t; a lost
    GPU has the first, a missing permission the second), `delay_s` (a lock acts later), `call_s` (a write takes long).
    """

    uuid: str
    name: str
    architecture: int
    min_mhz: int
    max_mhz: int
    step_mhz: int
    memory_mhz: int
    locked_min_mhz: int = 0
    locked_max_mhz: int = 0  # 0: no lock
    before_min_mhz: int = 0  # the lock in force until effect_s
    before_max_mhz: int = 0
    bin_mhz: int = 0
    deaf: int = 0
    throttle_mhz: int = 0
    throttle_reasons: int = 0
    read_error: int = 0
    write_error: int = 0
    old_driver: int = 0  # has neither the two power fields nor the versioned temperature
    writes: int = 0  # writes that succeeded
    effect_s: float = 0.0
    delay_s: float = 0.0
    call_s: float = 0.0
    load: float = 0.0  # 0 to 1
    given_w: float = -1.0  # what an engine says it draws; negative: nobody says
    energy_j: float = 0.0
    settled_s: float = 0.0
    average_w: float = 0.0
    temperature_c: float = 30.0
    idle_w: float = 70.0
    limit_w: float = 700.0
    tdp_w: float = 700.0
    min_limit_w: float = 200.0

    @property
    def early(self) -> bool:
        """The last lock has not taken effect yet."""
        return self.settled_s < self.effect_s

    @property
    def top_mhz(self) -> int:
        """The lock in force; 0 for none."""
        return self.before_max_mhz if self.early else self.locked_max_mhz

    @property
    def loaded_mhz(self) -> int:
        """The clock that work on this GPU runs at."""
        return self._loaded(self.top_mhz)[0]

    @property
    def clock_mhz(self) -> int:
        low_mhz = self.before_min_mhz if self.early else self.locked_min_mhz
        return self.loaded_mhz if self.load > 0 else max(low_mhz, self.min_mhz)

    @property
    def reasons(self) -> int:
        return self._loaded(self.top_mhz)[1] if self.load > 0 else IDLE

    @property
    def watts(self) -> float:
        return self._watts(self.top_mhz)

    def settled(self, now_s: float) -> EmulatedGpu:
        """The same GPU at `now_s`, with the energy of the time between."""
        gpu = self
        if gpu.early and gpu.effect_s <= now_s:
            gpu = gpu._run(gpu.effect_s, gpu._watts(gpu.before_max_mhz))
        if now_s > gpu.settled_s:
            gpu = gpu._run(now_s, gpu._watts(gpu.before_max_mhz if now_s < gpu.effect_s else gpu.locked_max_mhz))
        return gpu

    def locked(self, low_mhz: int, high_mhz: int) -> EmulatedGpu:
        if self.deaf:
            return self
        before = (
            (self.before_min_mhz, self.before_max_mhz) if self.early else (self.locked_min_mhz, self.locked_max_mhz)
        )
        return replace(
            self,
            before_min_mhz=before[0],
            before_max_mhz=before[1],
            locked_min_mhz=low_mhz,
            locked_max_mhz=high_mhz,
            effect_s=self.settled_s + self.delay_s,
        )

    def _run(self, until_s: float, watts: float) -> EmulatedGpu:
        seconds = until_s - self.settled_s
        target_c = 30 + 45 * watts / self.tdp_w
        return replace(
            self,
            energy_j=self.energy_j + watts * seconds,
            average_w=self.average_w + (watts - self.average_w) * min(seconds / AVERAGE_S, 1.0),
            temperature_c=self.temperature_c + (target_c - self.temperature_c) * min(seconds / WARM_S, 1.0),
            settled_s=until_s,
        )

    def _watts(self, top_mhz: int) -> float:
        return self.given_w if self.given_w >= 0 else self._watts_at(self._loaded(top_mhz)[0])

    def _watts_at(self, mhz: int) -> float:
        return self.idle_w + self.load * (self.tdp_w - self.idle_w) * (mhz / self.max_mhz) ** 2

    def _loaded(self, top_mhz: int) -> tuple[int, int]:
        mhz, reasons = self._bin(top_mhz) if top_mhz else self.max_mhz, 0
        if 0 < self.throttle_mhz < mhz:
            mhz, reasons = self.throttle_mhz, self.throttle_reasons
        while self.given_w < 0 and mhz > self.min_mhz and self._watts_at(mhz) > self.limit_w:
            mhz, reasons = mhz - self.step_mhz, reasons | SW_POWER_CAP
        return mhz, reasons

    def _bin(self, mhz: int) -> int:
        step = self.bin_mhz or self.step_mhz
        up = step - 1 if self.bin_mhz else 0
        above = max(mhz, self.min_mhz) - self.min_mhz
        return min(self.max_mhz, self.min_mhz + (above + up) // step * step)


@dataclass(frozen=True, slots=True)
class Driver:
    """What is true of all GPUs of the file."""

    generation: int = 1
    init_error: int = 0
    hand_s: float = 0.0  # above 0: the time, set by hand
    version: str = "570.00-fake"


# Clock tables: A100 from nvidia-smi (210 to 1410 MHz in steps of 15), H100 and H200 SXM as the engine models use them.
KINDS: Mapping[str, EmulatedGpu] = {
    "h100": EmulatedGpu("", "NVIDIA H100 80GB HBM3 (emulated)", 9, 345, 1980, 15, 2619),
    "h200": EmulatedGpu("", "NVIDIA H200 (emulated)", 9, 345, 1980, 15, 3201, idle_w=75.0),
    "a100": EmulatedGpu(
        "", "NVIDIA A100-SXM4-80GB (emulated)", 7, 210, 1410, 15, 1593,
        idle_w=55.0, limit_w=400.0, tdp_w=400.0, min_limit_w=100.0,
    ),
}  # fmt: skip


def uuids_of(kind: str, count: int) -> list[str]:
    return [f"GPU-{kind}-{index:04d}" for index in range(count)]


class GpuState:
    """The file. ValueError where it is none of ours, KeyError for a UUID that is not in it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock

    @classmethod
    def create(cls, path: Path, clock: Clock, gpus: Sequence[EmulatedGpu], driver: Driver | None = None) -> GpuState:
        """A new file in the place of an old one. A library that had the old one open keeps none of it."""
        now_s = (driver and driver.hand_s) or clock.now_s()
        body = b"".join(_pack(replace(gpu, settled_s=now_s, average_w=gpu.idle_w)) for gpu in gpus)
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_name(f"{path.name}.new")
        half.write_bytes(_pack_driver(driver or Driver(), len(gpus)) + body)
        half.replace(path)
        return cls(path, clock)

    @classmethod
    def of_kind(cls, path: Path, clock: Clock, kind: str, count: int) -> GpuState:
        if kind not in KINDS or not 1 <= count <= 64:
            raise ValueError(f"emulated GPUs are 1 to 64 of {', '.join(KINDS)}, not {count} of {kind!r}")
        return cls.create(path, clock, [replace(KINDS[kind], uuid=uuid) for uuid in uuids_of(kind, count)])

    def driver(self) -> Driver:
        with self._open() as (file, _):
            return _unpack_driver(os.pread(file, HEADER.size, 0))[0]

    def gpus(self) -> list[EmulatedGpu]:
        """All of them, now."""
        with self._open() as (file, now_s):
            return [gpu.settled(now_s) for gpu in _records(file)]

    def gpu(self, uuid: str) -> EmulatedGpu:
        return next(gpu for gpu in self.group([uuid]))

    def group(self, uuids: Sequence[str]) -> list[EmulatedGpu]:
        found = {gpu.uuid: gpu for gpu in self.gpus()}
        return [found[uuid] for uuid in uuids]

    def put(self, uuids: Sequence[str], **changes: object) -> None:
        """Changes fields, from now on; what was until now is settled first."""
        self.edit(uuids, lambda gpu: replace(gpu, **changes))  # type: ignore[arg-type]

    def edit(self, uuids: Sequence[str], change: Callable[[EmulatedGpu], EmulatedGpu]) -> None:
        with self._open() as (file, now_s):
            places = {gpu.uuid: (place, gpu) for place, gpu in enumerate(_records(file))}
            for uuid in uuids:
                place, gpu = places[uuid]
                changed = _pack(change(gpu.settled(now_s)))
                os.pwrite(file, changed, HEADER.size + place * RECORD.size)

    def set_driver(self, **changes: object) -> None:
        with self._open() as (file, _):
            driver, count = _unpack_driver(os.pread(file, HEADER.size, 0))
            os.pwrite(file, _pack_driver(replace(driver, **changes), count), 0)  # type: ignore[arg-type]

    def reload_driver(self) -> None:
        """Handles go stale, locks and limits are forgotten, energy counters begin anew."""
        everyone = [gpu.uuid for gpu in self.gpus()]
        self.edit(everyone, lambda gpu: replace(gpu.locked(0, 0), limit_w=gpu.tdp_w, energy_j=0.0))
        self.set_driver(generation=self.driver().generation + 1)

    @contextmanager
    def _open(self) -> Iterator[tuple[int, float]]:
        file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            head = os.pread(file, HEADER.size, 0)
            if len(head) < HEADER.size or not head.startswith(MAGIC):
                raise ValueError(f"{self.path} holds no emulated GPUs")
            yield file, _unpack_driver(head)[0].hand_s or self._clock.now_s()
        finally:
            os.close(file)


def _records(file: int) -> list[EmulatedGpu]:
    count = _unpack_driver(os.pread(file, HEADER.size, 0))[1]
    return [_unpack(os.pread(file, RECORD.size, HEADER.size + place * RECORD.size)) for place in range(count)]


def _pack(gpu: EmulatedGpu) -> bytes:
    return RECORD.pack(*(value.encode() if isinstance(value, str) else value for value in astuple(gpu)))


def _unpack(data: bytes) -> EmulatedGpu:
    values: list[Any] = [v.rstrip(b"\0").decode() if isinstance(v, bytes) else v for v in RECORD.unpack(data)]
    return EmulatedGpu(*values)


def _pack_driver(driver: Driver, count: int) -> bytes:
    return HEADER.pack(MAGIC, count, driver.generation, driver.init_error, driver.hand_s, driver.version.encode())


def _unpack_driver(data: bytes) -> tuple[Driver, int]:
    _, count, generation, init_error, hand_s, version = HEADER.unpack(data)
    return Driver(generation, init_error, hand_s, version.rstrip(b"\0").decode()), count
