"""GPUs as NVML sees them: a protocol, its NVML implementation, and the one place where NVML's errors get our names.

Reads only: nothing here sets a clock, a limit or a mode. Devices are named by UUID, because NVML's index is not CUDA's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from core.errors import JoulegateError


class GpuError(JoulegateError):
    """Base of what can go wrong with a GPU."""

    status = 503
    code = "gpu_error"


class NoGpu(GpuError):
    """No NVIDIA driver, no GPU, or none with that UUID."""

    code = "no_gpu"


class NotPermitted(GpuError):
    code = "gpu_not_permitted"


class NotSupported(GpuError):
    """This GPU, or the machine that lends it, has no such reading."""

    code = "gpu_not_supported"


class GpuLost(GpuError):
    """It fell off the bus or needs a reset."""

    code = "gpu_lost"


@dataclass(frozen=True, slots=True)
class Device:
    uuid: str
    name: str
    driver: str


class Gpu(Protocol):
    """Every call may raise a GpuError."""

    def devices(self) -> list[Device]: ...

    def energy_j(self, uuid: str) -> float: ...

    def power_w(self, uuid: str) -> float: ...

    def temperature_c(self, uuid: str) -> float: ...

    def clock_mhz(self, uuid: str) -> int: ...

    def supported_clocks_mhz(self, uuid: str) -> list[int]: ...


class NvmlGpu:
    """`with NvmlGpu() as gpu:`; NVML is loaded on entry and given back on exit."""

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

    def devices(self) -> list[Device]:
        nvml = self._nvml
        with self._named():
            driver = str(nvml.nvmlSystemGetDriverVersion())
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            return [Device(str(nvml.nvmlDeviceGetUUID(h)), str(nvml.nvmlDeviceGetName(h)), driver) for h in handles]

    def energy_j(self, uuid: str) -> float:
        return self._read(uuid, self._nvml.nvmlDeviceGetTotalEnergyConsumption) / 1e3

    def power_w(self, uuid: str) -> float:
        """A mean over one second on H100, of this moment on A100: for watching, never for a profile's watts."""
        return self._read(uuid, self._nvml.nvmlDeviceGetPowerUsage) / 1e3

    def temperature_c(self, uuid: str) -> float:
        nvml = self._nvml
        try:
            return self._read(uuid, lambda handle: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))
        except NotSupported:
            # Drivers before 570 have only the call that CUDA 14 drops.
            return self._read(uuid, lambda handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))

    def clock_mhz(self, uuid: str) -> int:
        nvml = self._nvml
        return int(self._read(uuid, lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)))

    def supported_clocks_mhz(self, uuid: str) -> list[int]:
        """SM clocks that go with the highest memory clock, ascending."""
        nvml = self._nvml
        with self._named():
            handle = self._handle(uuid)
            memory_mhz = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
            return sorted(int(mhz) for mhz in nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz))

    def _read(self, uuid: str, call: Callable[[Any], Any]) -> float:
        with self._named():
            return float(call(self._handle(uuid)))

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
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
        nvml.NVML_ERROR_INVALID_ARGUMENT: NoGpu,  # how a UUID that no device has is answered
        nvml.NVML_ERROR_NO_PERMISSION: NotPermitted,
        nvml.NVML_ERROR_NOT_SUPPORTED: NotSupported,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND: NotSupported,
        nvml.NVML_ERROR_GPU_IS_LOST: GpuLost,
        nvml.NVML_ERROR_RESET_REQUIRED: GpuLost,
        nvml.NVML_ERROR_UNINITIALIZED: GpuError,
    }
    return kinds.get(error.value, GpuError)(f"NVML: {error}")
