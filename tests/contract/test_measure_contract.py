"""What a target of `profile measure` promises, on a live emulated server: windows that add up, agree with simulated
time, and leave the instance as it was found. Windows are short: what is judged is counting, not precision."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from core.clock import SystemClock
from core.errors import UpstreamFailed
from pools.measure import Lengths, Measured, Probe, Rule
from pools.measure_live import LiveOptions, open_target
from pools.measure_stats import measured_of
from pools.ports import free_ports
from profiles.engine_model import load_engine_model
from simulator.engine import EngineLimits
from simulator.measured import SimulatedTarget
from tests.fakes import until

ROOT = Path(__file__).resolve().parents[2]
RULE = Rule(warm_s=1.0, window_s=4.0, requests=10, window_max_s=4.0, sample_s=0.25, idle_s=1.2)
LENGTHS = Lengths("tiny", 200, 30)


def start(*flags: str) -> tuple[subprocess.Popen[bytes], str]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "simulator.serve", "--port", str(port), "--profile", "llama-3.1-8b", *flags]
    child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def up() -> bool:
        try:
            return httpx.get(f"{url}/health", timeout=1).status_code == 200
        except httpx.HTTPError:
            return False

    if not until(up, 30):
        child.kill()
        child.wait()
        raise AssertionError("the emulated engine did not start")
    return child, url


def end(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGTERM)
    child.wait(10)


@pytest.fixture
def url() -> Iterator[str]:
    child, url = start()
    yield url
    end(child)


def live(url: str, probe: Probe) -> Measured:
    async def run() -> Measured:
        async with open_target(LiveOptions(url), SystemClock()) as (target, _):
            await target.configure(probe.tp, probe.clock_mhz)
            return measured_of(await target.run(probe, RULE), "emulated")

    return asyncio.run(run())


def test_a_live_window_agrees_with_simulated_time_and_leaves_nothing(url: str) -> None:
    probe = Probe(1, 1200, LENGTHS, 5.0)
    seen = live(url, probe).point
    target = SimulatedTarget(load_engine_model("llama-3.1-8b"), EngineLimits())
    asyncio.run(target.configure(1, 1200))
    expected = measured_of(target.window(probe, RULE), "emulated").point
    assert not seen.saturated
    assert seen.output_tps == pytest.approx(5.0 * 30, rel=0.35)
    assert seen.requests == pytest.approx(expected.requests, abs=6)
    assert seen.watts == pytest.approx(expected.watts, rel=0.3)
    assert seen.tbt_p50_s >= 0.9 * expected.tbt_p50_s
    assert 0 < seen.ttft_p50_s <= seen.ttft_p99_s
    state = httpx.get(f"{url}/emulated/state").json()
    assert (state["running"], state["waiting"], state["clock_mhz"]) == (0, 0, 1980), "its clock is put back"


def test_idle_is_measured_without_load(url: str) -> None:
    seen = live(url, Probe(1, 1980, LENGTHS, 0.0)).point
    assert seen.watts == pytest.approx(load_engine_model("llama-3.1-8b").watts(1, 1980, 0), rel=0.02)
    assert httpx.get(f"{url}/emulated/state").json()["steps"] == 0


def test_what_cannot_be_measured_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="TP1, not TP2"):
        live(url, Probe(2, 1980, LENGTHS, 1.0))
    with pytest.raises(UpstreamFailed, match="answered 400"):
        live(url, Probe(1, 1980, Lengths("long", 40_000, 10), 5.0))
    with pytest.raises(UpstreamFailed):
        live("http://127.0.0.1:1", Probe(1, 1980, LENGTHS, 1.0))

    async def other() -> None:
        async with open_target(LiveOptions(url, model="nope"), SystemClock()):
            pass

    with pytest.raises(ValueError, match=r"serves llama-3\.1-8b, not nope"):
        asyncio.run(other())


def test_an_engine_whose_time_runs_faster_is_refused() -> None:
    child, url = start("--speed", "4")
    try:
        with pytest.raises(ValueError, match="--speed 1"):
            live(url, Probe(1, 1980, LENGTHS, 1.0))
    finally:
        end(child)
