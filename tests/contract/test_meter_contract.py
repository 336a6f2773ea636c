"""What every energy meter promises: joules never fall, they are what the counter says, and two reads closer than a
second are no measurement. NVML's errors and readings are the Gpu contract's."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from pools.meters import CpuSecondsMeter, EmulatedMeter, NvmlMeter, Reading, TooClose, spent
from tests.gpus import IMPLEMENTATIONS, ONE, TWO, Gpus, of, opened


class HandClock:
    """Time as the test sets it."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        self.at_s += seconds

    async def sleep_until(self, due_s: float, wake: asyncio.Event | None = None) -> None:
        self.at_s = max(self.at_s, due_s)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_meter_adds_up_the_gpus_of_an_instance(
    implementation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, gpus = HandClock(), Gpus(tmp_path / "gpus", [of(ONE, energy_j=5_000.0), of(TWO, energy_j=1_000.0)])
    with opened(implementation, gpus, monkeypatch) as gpu:
        meter = NvmlMeter(gpu, [ONE, TWO], clock)
        before = asyncio.run(meter.read())
        gpus.put(ONE, energy_j=5_700.0)
        gpus.put(TWO, energy_j=1_400.5)
        clock.at_s = 2.0
        assert spent(before, asyncio.run(meter.read())) == pytest.approx(700 + 400.5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_counter_that_restarts_counts_from_zero(
    implementation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, gpus = HandClock(), Gpus(tmp_path / "gpus", [of(ONE, energy_j=9_000.0)])
    with opened(implementation, gpus, monkeypatch) as gpu:
        meter = NvmlMeter(gpu, [ONE], clock)
        before = asyncio.run(meter.read())
        gpus.put(ONE, energy_j=250.0)
        clock.at_s = 5.0
        assert spent(before, asyncio.run(meter.read())) == pytest.approx(250)


def test_two_reads_within_a_second_are_refused() -> None:
    with pytest.raises(TooClose, match=r"0\.999 s"):
        spent(Reading(10.0, 4.0), Reading(20.0, 4.999))
    assert spent(Reading(10.0, 4.0), Reading(25.0, 5.0)) == 15.0


def test_the_emulated_meter_is_in_the_engines_seconds() -> None:
    states = iter([{"joules": 100.0, "engine_s": 7.0}, {"joules": 400.0, "engine_s": 9.0}])

    async def state() -> dict[str, float]:
        return next(states)

    async def both() -> float:
        meter = EmulatedMeter(state)
        return spent(await meter.read(), await meter.read())

    assert asyncio.run(both()) == 300.0


def test_cpu_seconds_hold_the_children_and_what_they_leave() -> None:
    """A child burns about 0.3 s of CPU under a parent that only waits; after its end nothing of it is lost."""
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint('burnt', flush=True); input()"
    code = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint('ended', flush=True); input()"
    )
    clock = HandClock()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        meter = CpuSecondsMeter(parent.pid, clock)
        assert parent.stdout.readline() == "burnt\n"
        with_child = asyncio.run(meter.read()).joules
        parent.stdin.write("\n")
        assert parent.stdout.readline() == "ended\n"
        after_child = asyncio.run(meter.read()).joules
        parent.stdin.write("\n")
    assert with_child >= 0.3
    assert after_child >= with_child
    with pytest.raises(ValueError, match="has ended"):
        asyncio.run(meter.read())
    with pytest.raises(ValueError, match="no process"):
        CpuSecondsMeter(2**22 + 1, clock)
