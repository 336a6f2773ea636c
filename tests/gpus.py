"""Emulated GPUs for tests, seen through NVML's stand-in or without it. Owns the state file, its clock set by hand."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from core.clock import SystemClock
from pools.gpu import GpuControl
from pools.nvml import NvmlGpu
from simulator.fake_gpu import FakeGpu
from simulator.gpu_library import NAME, NoCompiler, build
from simulator.gpu_state import KINDS, Driver, EmulatedGpu, GpuState

ONE, TWO = "GPU-one", "GPU-two"
IMPLEMENTATIONS = ("fake", "nvml")


def of(uuid: str, kind: str = "h100", **fields: object) -> EmulatedGpu:
    return replace(KINDS[kind], uuid=uuid, **fields)  # type: ignore[arg-type]


class Gpus:
    """The GPUs of a test and the time that they live in."""

    def __init__(self, path: Path, gpus: list[EmulatedGpu], init_error: int = 0) -> None:
        self.now_s = 1000.0
        driver = Driver(hand_s=self.now_s, init_error=init_error)
        self.state = GpuState.create(path, SystemClock(), gpus, driver)

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.state.set_driver(hand_s=self.now_s)

    def put(self, *uuids: str, **changes: object) -> None:
        self.state.put(uuids, **changes)


def library() -> Path:
    try:
        return build()
    except NoCompiler as error:
        pytest.skip(str(error))


@contextmanager
def opened(implementation: str, gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuControl]:
    """In this process: the library is found by its name once something has loaded it from wherever it lies."""
    if implementation == "fake":
        with FakeGpu(gpus.state) as fake:
            yield fake
        return
    ctypes.CDLL(str(library() / NAME))
    monkeypatch.setenv("FAKE_NVML_STATE", str(gpus.state.path))
    with NvmlGpu() as nvml:
        yield nvml
