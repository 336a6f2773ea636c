"""What every energy meter promises: joules never fall, they are what the counter says, and two reads closer than a
second are no measurement. NVML runs against a small libnvidia-ml.so.1 made here, in a process of its own, because
pynvml keeps the first library it loads."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pools.meters import CpuSecondsMeter, EmulatedMeter, Reading, TooClose, spent

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PRELUDE = """
import asyncio, json, sys
from pathlib import Path
from pools.gpu import NvmlGpu
from pools.meters import NvmlMeter, spent
state = Path(sys.argv[1])
class Hand:
    now = 0.0
    def now_s(self): return self.now
hand = Hand()
def put(*gpus): state.write_text("".join(" ".join(map(str, gpu)) + "\\n" for gpu in gpus))
def say(**values): print(json.dumps(values))
"""


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


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the library."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here, which makes the fake libnvidia-ml.so.1")
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library)]
    subprocess.run([*command, str(HERE / "fake_nvml.c")], check=True)
    return folder


def run(nvml: Path, tmp_path: Path, code: str, **environment: str) -> dict:
    state = tmp_path / "state"
    env = os.environ | {"LD_LIBRARY_PATH": str(nvml), "FAKE_NVML_STATE": str(state)} | environment
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, str(state)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_nvml_adds_up_the_gpus_of_an_instance(nvml: Path, tmp_path: Path) -> None:
    seen = run(nvml, tmp_path, """
with NvmlGpu() as gpu:
    meter = NvmlMeter(gpu, ["GPU-fake-0", "GPU-fake-1"], hand)
    put((5_000_000, 300_000, 50, 1980, 0), (1_000_000, 310_000, 61, 1200, 0))
    before = asyncio.run(meter.read())
    put((5_700_000, 300_000, 50, 1980, 0), (1_400_500, 310_000, 61, 1200, 0))
    hand.now = 2.0
    say(joules=spent(before, asyncio.run(meter.read())), devices=[d.uuid for d in gpu.devices()],
        name=gpu.devices()[0].name, driver=gpu.devices()[0].driver, power=gpu.power_w("GPU-fake-1"),
        celsius=gpu.temperature_c("GPU-fake-1"), mhz=gpu.clock_mhz("GPU-fake-1"),
        clocks=gpu.supported_clocks_mhz("GPU-fake-0"))
""")  # fmt: skip
    assert seen["joules"] == pytest.approx(700 + 400.5)
    assert seen["devices"] == ["GPU-fake-0", "GPU-fake-1"]
    assert (seen["name"], seen["driver"]) == ("Fake H100", "570.00-fake")
    assert (seen["power"], seen["celsius"], seen["mhz"]) == (310, 61, 1200)
    assert seen["clocks"] == [345, 1965, 1980]


def test_a_counter_that_restarts_counts_from_zero(nvml: Path, tmp_path: Path) -> None:
    seen = run(nvml, tmp_path, """
with NvmlGpu() as gpu:
    meter = NvmlMeter(gpu, ["GPU-fake-0"], hand)
    put((9_000_000, 0, 50, 1980, 0))
    before = asyncio.run(meter.read())
    put((250_000, 0, 50, 1980, 0))
    hand.now = 5.0
    say(joules=spent(before, asyncio.run(meter.read())))
""")  # fmt: skip
    assert seen["joules"] == pytest.approx(250)


@pytest.mark.parametrize(
    ("code", "name"), [(4, "NotPermitted"), (3, "NotSupported"), (15, "GpuLost"), (999, "GpuError")]
)
def test_nvml_errors_have_our_names(nvml: Path, tmp_path: Path, code: int, name: str) -> None:
    seen = run(nvml, tmp_path, f"""
put((1, 1, 1, 1, {code}), (1, 1, 1, 1, 0))
with NvmlGpu() as gpu:
    try:
        gpu.energy_j("GPU-fake-0")
    except Exception as error:
        say(name=type(error).__name__, other=gpu.energy_j("GPU-fake-1"))
""")  # fmt: skip
    assert seen == {"name": name, "other": 0.001}


def test_no_driver_and_no_such_gpu_are_no_gpu(nvml: Path, tmp_path: Path) -> None:
    unknown = run(nvml, tmp_path, """
put((1, 1, 1, 1, 0), (1, 1, 1, 1, 0))
with NvmlGpu() as gpu:
    try:
        gpu.energy_j("GPU-elsewhere")
    except Exception as error:
        say(name=type(error).__name__)
""")  # fmt: skip
    absent = """
try:
    NvmlGpu().__enter__()
except Exception as error:
    say(name=type(error).__name__)
"""
    assert unknown == {"name": "NoGpu"}
    assert run(nvml, tmp_path, absent, FAKE_NVML_INIT="9") == {"name": "NoGpu"}


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
