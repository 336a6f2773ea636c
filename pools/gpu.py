"""GPUs of a node: a protocol, its values and its errors. Devices are named by UUID: NVML's index is not CUDA's.

Two implementations: `pools/nvml.py` on NVML, `simulator/fake_gpu.py` on emulated GPUs where no C compiler can make a
stand-in for NVML's library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from core.errors import JoulegateError

AMPERE = 7  # NVML's number of the architecture


class GpuError(JoulegateError):
    """Base of what can go wrong with a GPU."""

    status = 503
    code = "gpu_error"


class NoGpu(GpuError):
    """No NVIDIA driver, no GPU, or none with that UUID."""

    code = "no_gpu"


class NotPermitted(GpuError):
    """Reads are anybody's, writes are root's."""

    code = "gpu_not_permitted"


class NotSupported(GpuError):
    """This GPU, or the machine that lends it, has no such reading or setting."""

    code = "gpu_not_supported"


class GpuLost(GpuError):
    """It fell off the bus or needs a reset."""

    code = "gpu_lost"


class DriverReloaded(GpuError):
    """What was opened is stale, locks are gone and counters restarted; `reopen` may bring the GPUs back."""

    code = "gpu_driver_reloaded"


@dataclass(frozen=True, slots=True)
class Device:
    uuid: str
    name: str
    driver: str


@dataclass(frozen=True, slots=True)
class Watts:
    """Of this moment, and a mean over about a second; None where the GPU has no such reading."""

    instant_w: float | None
    average_w: float | None


@dataclass(frozen=True, slots=True)
class PowerLimit:
    limit_w: float
    lowest_w: float
    highest_w: float


class Gpu(Protocol):
    """Reads. Every call may raise a GpuError."""

    def devices(self) -> list[Device]: ...

    def energy_j(self, uuid: str) -> float:
        """Since the driver was loaded."""
        ...

    def watts(self, uuid: str) -> Watts: ...

    def temperature_c(self, uuid: str) -> float: ...

    def clock_mhz(self, uuid: str) -> int:
        """The SM clock now; an idle GPU's is low."""
        ...

    def supported_clocks_mhz(self, uuid: str) -> list[int]:
        """SM clocks that go with the highest memory clock, ascending."""
        ...

    def throttled(self, uuid: str) -> frozenset[str]:
        """Why the clock is lower than asked; "gpu_idle" is one of the reasons."""
        ...

    def power_limit(self, uuid: str) -> PowerLimit: ...


class GpuControl(Gpu, Protocol):
    """Writes too. The node agent and its watchdog alone may hold one. Every call may raise a GpuError."""

    def lock_clock(self, uuid: str, low_mhz: int, high_mhz: int) -> None:
        """A value between two clocks of the table becomes one of them, silently."""
        ...

    def unlock_clock(self, uuid: str) -> None: ...

    def set_power_limit_w(self, uuid: str, watts: float) -> None: ...

    def reopen(self) -> None:
        """After DriverReloaded."""
        ...


# NVML's bits (nvmlClocksEventReason*).
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display",
}


def reasons(bits: int) -> frozenset[str]:
    return frozenset(name for bit, name in REASONS.items() if bits & bit)


def told_apart(name: str, architecture: int, watts: float) -> Watts:
    """What the one power reading of older drivers means: a mean over a second on Ampere and newer, but on GA100 (A100,
    A800, A30) and everything older this moment's (NVIDIA's documentation of nvmlDeviceGetPowerUsage)."""
    of_ga100 = any(card in name for card in ("A100", "A800", "A30 "))
    if architecture >= AMPERE and not of_ga100:
        return Watts(None, watts)
    return Watts(watts, None)
