"""The emulated engine on emulated GPUs: its speed is their clock's, their watts are its own."""

from pathlib import Path

import pytest

from core.clock import SystemClock
from simulator.engine import Ask
from simulator.engine_gpus import EngineGpus
from simulator.server import EngineOptions, build_loop
from simulator.server_loop import EngineLoop
from simulator.tokens import Tokenizer
from tests.gpus import ONE, TWO, Gpus, of

TOKENIZER = Tokenizer()


def on(gpus: Gpus, names: str = f"{ONE},{TWO}") -> EngineLoop:
    options = EngineOptions(0, "llama-3.1-70b", tp=2, nvml_state=str(gpus.state.path), gpus=names)
    loop = build_loop(options, TOKENIZER, SystemClock())
    loop.engine.add(Ask("a", TOKENIZER.encode("some words to think about"), 500, ignore_eos=True), 0.0)
    loop.engine.step(0.0)
    return loop


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    return Gpus(tmp_path / "gpus", [of(ONE), of(TWO)])


def test_a_step_takes_as_long_as_the_clock_says_and_the_gpus_draw_it(gpus: Gpus) -> None:
    loop = on(gpus)
    fast = loop.step(1.0)
    assert sum(gpu.watts for gpu in gpus.state.gpus()) == pytest.approx(fast.watts)
    gpus.state.edit([ONE, TWO], lambda gpu: gpu.locked(345, 990))
    slow = loop.step(2.0)
    assert slow.duration_s > fast.duration_s
    assert slow.watts < fast.watts
    assert sum(gpu.watts for gpu in gpus.state.gpus()) == pytest.approx(slow.watts)
    gpus.pass_s(10)
    assert sum(gpu.energy_j for gpu in gpus.state.gpus()) == pytest.approx(10 * slow.watts)


def test_a_group_runs_at_its_slowest_member(gpus: Gpus) -> None:
    loop = on(gpus)
    gpus.put(TWO, throttle_mhz=900, throttle_reasons=0x40)
    loop.step(1.0)
    assert loop.engine.clock_mhz == 900


def test_gpus_of_an_engine_that_left_are_idle(gpus: Gpus) -> None:
    loop = on(gpus)
    loop.step(1.0)
    assert loop.gpus is not None
    loop.gpus.leave()
    assert [gpu.watts for gpu in gpus.state.gpus()] == [70.0, 70.0]


@pytest.mark.parametrize("names", ["", ONE, f"{ONE},GPU-elsewhere"])
def test_too_few_or_unknown_gpus_are_refused(gpus: Gpus, names: str) -> None:
    with pytest.raises(ValueError, match="GPU"):
        on(gpus, names)


def test_a_file_of_something_else_is_refused(gpus: Gpus, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match="no emulated GPUs"):
        EngineGpus(type(gpus.state)(other, SystemClock()), [ONE])
