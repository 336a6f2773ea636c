"""The Gpu seam on emulated GPUs without NVML: for machines without a C compiler. It answers as `fake_nvml.c` does
through pynvml; one contract suite runs on both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pools.gpu import (
    Device,
    DriverReloaded,
    GpuError,
    GpuLost,
    NoGpu,
    NotPermitted,
    NotSupported,
    PowerLimit,
    Watts,
    reasons,
    told_apart,
)
from simulator.gpu_state import EmulatedGpu, GpuState

# nvmlReturn_t
ERRORS: dict[int, type[GpuError]] = {3: NotSupported, 4: NotPermitted, 6: NoGpu, 9: NoGpu, 15: GpuLost}


class FakeGpu:
    """Opened on a state file, as NvmlGpu is on a driver. A write does not take `call_s` here."""

    def __init__(self, state: GpuState) -> None:
        self._state = state
        self._generation = -1

    def __enter__(self) -> FakeGpu:
        driver = self._state.driver()
        _refuse(driver.init_error)
        self._generation = driver.generation
        return self

    def __exit__(self, *_: object) -> None:
        self._generation = -1

    def reopen(self) -> None:
        self.__enter__()

    def devices(self) -> list[Device]:
        self._check_driver()
        version = self._state.driver().version
        return [Device(gpu.uuid, gpu.name, version) for gpu in self._state.gpus()]

    def energy_j(self, uuid: str) -> float:
        return int(self._read(uuid).energy_j * 1e3) / 1e3

    def watts(self, uuid: str) -> Watts:
        gpu = self._read(uuid)
        if gpu.old_driver:
            one_w = told_apart(gpu.name, gpu.architecture, 0.0)
            return Watts(gpu.watts, None) if one_w.average_w is None else Watts(None, gpu.average_w)
        return Watts(gpu.watts, gpu.average_w)

    def temperature_c(self, uuid: str) -> float:
        return float(int(self._read(uuid).temperature_c + 0.5))

    def clock_mhz(self, uuid: str) -> int:
        return self._read(uuid).clock_mhz

    def supported_clocks_mhz(self, uuid: str) -> list[int]:
        gpu = self._read(uuid)
        return list(range(gpu.min_mhz, gpu.max_mhz + 1, gpu.step_mhz))

    def throttled(self, uuid: str) -> frozenset[str]:
        return reasons(self._read(uuid).reasons)

    def power_limit(self, uuid: str) -> PowerLimit:
        gpu = self._read(uuid)
        return PowerLimit(gpu.limit_w, gpu.min_limit_w, gpu.tdp_w)

    def lock_clock(self, uuid: str, low_mhz: int, high_mhz: int) -> None:
        if not 0 < high_mhz >= low_mhz:
            raise GpuError(f"no range of clocks: {low_mhz} to {high_mhz} MHz")
        self._write(uuid, lambda gpu: gpu.locked(low_mhz, high_mhz))

    def unlock_clock(self, uuid: str) -> None:
        self._write(uuid, lambda gpu: gpu.locked(0, 0))

    def set_power_limit_w(self, uuid: str, watts: float) -> None:
        gpu = self._read(uuid)
        if not gpu.min_limit_w <= watts <= gpu.tdp_w:
            raise GpuError(f"{watts} W is not between {gpu.min_limit_w} and {gpu.tdp_w} W")
        self._write(uuid, lambda gpu: replace(gpu, limit_w=watts))

    def _read(self, uuid: str) -> EmulatedGpu:
        self._check_driver()
        try:
            gpu = self._state.gpu(uuid)
        except KeyError:
            raise NoGpu(f"no GPU here has the UUID {uuid}") from None
        _refuse(gpu.read_error)
        return gpu

    def _write(self, uuid: str, change: Callable[[EmulatedGpu], EmulatedGpu]) -> None:
        _refuse(self._read(uuid).write_error)
        self._state.edit([uuid], lambda gpu: replace(change(gpu), writes=gpu.writes + 1))

    def _check_driver(self) -> None:
        if self._state.driver().generation != self._generation:
            raise DriverReloaded("the driver was loaded anew")


def _refuse(code: int) -> None:
    if code:
        raise ERRORS.get(code, GpuError)(f"fake error {code}")
