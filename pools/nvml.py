"""GPUs through NVML: the one file that imports pynvml, and the one place where NVML's errors get our names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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


class NvmlGpu:
    """`with NvmlGpu() as gpu:`; NVML is loaded on entry and given back on exit. One thread at a time."""

    def __init__(self) -> None:
        import pynvml  # a file of 330 kB: what measures no GPU does not load it

        self._nvml: Any = pynvml
        self._handles: dict[str, Any] = {}

    def __enter__(self) -> NvmlGpu:
        with self._named():
            self._nvml.nvmlInit()
        return self

    def __exit__(self, *_: object) -> None:
        self._handles.clear()
        with self._named():
            self._nvml.nvmlShutdown()

    def reopen(self) -> None:
        with contextlib.suppress(GpuError):
            self.__exit__()
        self.__enter__()

    def devices(self) -> list[Device]:
        nvml = self._nvml
        with self._named():
            driver = str(nvml.nvmlSystemGetDriverVersion())
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            return [Device(str(nvml.nvmlDeviceGetUUID(h)), str(nvml.nvmlDeviceGetName(h)), driver) for h in handles]

    def energy_j(self, uuid: str) -> float:
        return float(self._call(uuid, self._nvml.nvmlDeviceGetTotalEnergyConsumption)) / 1e3

    def watts(self, uuid: str) -> Watts:
        nvml = self._nvml
        wanted = [nvml.NVML_FI_DEV_POWER_INSTANT, nvml.NVML_FI_DEV_POWER_AVERAGE]
        fields = self._call(uuid, lambda handle: nvml.nvmlDeviceGetFieldValues(handle, wanted))
        instant_w, average_w = (f.value.uiVal / 1e3 if f.nvmlReturn == nvml.NVML_SUCCESS else None for f in fields)
        if instant_w is not None or average_w is not None:
            return Watts(instant_w, average_w)
        name = self._call(uuid, nvml.nvmlDeviceGetName)
        architecture = self._call(uuid, nvml.nvmlDeviceGetArchitecture)
        return told_apart(str(name), int(architecture), self._call(uuid, nvml.nvmlDeviceGetPowerUsage) / 1e3)

    def temperature_c(self, uuid: str) -> float:
        nvml = self._nvml
        try:
            read = self._call(uuid, lambda handle: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))
        except NotSupported:
            # Drivers before 570 have only the call that CUDA 14 drops.
            read = self._call(uuid, lambda handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        return float(read)

    def clock_mhz(self, uuid: str) -> int:
        nvml = self._nvml
        return int(self._call(uuid, lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)))

    def supported_clocks_mhz(self, uuid: str) -> list[int]:
        nvml = self._nvml

        def read(handle: Any) -> list[int]:
            memory_mhz = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
            return sorted(int(mhz) for mhz in nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz))

        return list(self._call(uuid, read))

    def throttled(self, uuid: str) -> frozenset[str]:
        nvml = self._nvml
        try:
            bits = self._call(uuid, nvml.nvmlDeviceGetCurrentClocksEventReasons)
        except NotSupported:
            bits = self._call(uuid, nvml.nvmlDeviceGetCurrentClocksThrottleReasons)  # its name before driver 535
        return reasons(int(bits))

    def power_limit(self, uuid: str) -> PowerLimit:
        nvml = self._nvml
        lowest, highest = self._call(uuid, nvml.nvmlDeviceGetPowerManagementLimitConstraints)
        return PowerLimit(self._call(uuid, nvml.nvmlDeviceGetPowerManagementLimit) / 1e3, lowest / 1e3, highest / 1e3)

    def lock_clock(self, uuid: str, low_mhz: int, high_mhz: int) -> None:
        self._call(uuid, lambda handle: self._nvml.nvmlDeviceSetGpuLockedClocks(handle, low_mhz, high_mhz))

    def unlock_clock(self, uuid: str) -> None:
        self._call(uuid, self._nvml.nvmlDeviceResetGpuLockedClocks)

    def set_power_limit_w(self, uuid: str, watts: float) -> None:
        self._call(uuid, lambda handle: self._nvml.nvmlDeviceSetPowerManagementLimit(handle, round(watts * 1e3)))

    def _call(self, uuid: str, call: Callable[[Any], Any]) -> Any:
        with self._named():
            return call(self._handle(uuid))

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            try:
                self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            except self._nvml.NVMLError_InvalidArgument as error:  # some drivers' answer to a UUID that no device has
                raise NoGpu(f"no GPU here has the UUID {uuid}") from error
        return self._handles[uuid]

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except self._nvml.NVMLError as error:
            raise _ours(self._nvml, error) from error


def _ours(nvml: Any, error: Any) -> GpuError:
    kinds: dict[int, type[GpuError]] = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: NoGpu,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: NoGpu,
        nvml.NVML_ERROR_NOT_FOUND: NoGpu,
        nvml.NVML_ERROR_NO_PERMISSION: NotPermitted,
        nvml.NVML_ERROR_NOT_SUPPORTED: NotSupported,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND: NotSupported,
        nvml.NVML_ERROR_GPU_IS_LOST: GpuLost,
        nvml.NVML_ERROR_RESET_REQUIRED: GpuLost,
        nvml.NVML_ERROR_UNINITIALIZED: DriverReloaded,
    }
    return kinds.get(error.value, GpuError)(f"NVML: {error}")
