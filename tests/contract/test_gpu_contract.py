"""What every implementation of the Gpu seam promises, on GPUs that are emulated: through pynvml and a libnvidia-ml.so.1
of our own, and without either. Time is set by hand."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pools.gpu import DriverReloaded, GpuControl, GpuError, GpuLost, NoGpu, NotPermitted, NotSupported, Watts
from tests.gpus import IMPLEMENTATIONS, ONE, TWO, Gpus, of, opened

Open = Callable[..., tuple[Gpus, GpuControl]]


@pytest.fixture(params=IMPLEMENTATIONS)
def start(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    with ExitStack() as stack:

        def make(*gpus: object, init_error: int = 0) -> tuple[Gpus, GpuControl]:
            made = Gpus(tmp_path / "gpus", list(gpus) or [of(ONE), of(TWO)], init_error)
            return made, stack.enter_context(opened(request.param, made, monkeypatch))

        yield make


def test_devices_and_their_clock_tables(start: Open) -> None:
    _, gpu = start(of(ONE), of(TWO, "a100"))
    assert [(d.uuid, d.driver) for d in gpu.devices()] == [(ONE, "570.00-fake"), (TWO, "570.00-fake")]
    assert ["H100" in gpu.devices()[0].name, "A100" in gpu.devices()[1].name] == [True, True]
    h100, a100 = gpu.supported_clocks_mhz(ONE), gpu.supported_clocks_mhz(TWO)
    assert (h100[0], h100[-1], len(h100)) == (345, 1980, 110)
    assert (a100[0], a100[-1], len(a100)) == (210, 1410, 81)


def test_energy_follows_load_and_clock(start: Open) -> None:
    gpus, gpu = start()
    gpus.pass_s(10)
    assert gpu.energy_j(ONE) == pytest.approx(10 * 70)  # idle
    gpus.put(ONE, load=1.0)
    gpus.pass_s(10)
    assert gpu.energy_j(ONE) == pytest.approx(10 * 70 + 10 * 700)
    gpu.lock_clock(ONE, 345, 1980 // 2)
    gpus.pass_s(10)
    slow_w = 70 + 630 * (990 / 1980) ** 2
    assert gpu.energy_j(ONE) == pytest.approx(10 * 70 + 10 * 700 + 10 * slow_w)
    assert gpu.watts(ONE).instant_w == pytest.approx(slow_w, abs=1e-3)
    assert gpu.energy_j(TWO) == pytest.approx(30 * 70)
    gpu.unlock_clock(ONE)
    assert gpu.clock_mhz(ONE) == 1980


def test_an_engine_says_its_own_watts(start: Open) -> None:
    gpus, gpu = start()
    gpus.put(ONE, load=1.0, given_w=432.5)
    gpus.pass_s(4)
    assert gpu.energy_j(ONE) == pytest.approx(4 * 432.5)
    assert gpu.watts(ONE) == Watts(432.5, 432.5)


def test_the_average_lags_the_instant(start: Open) -> None:
    gpus, gpu = start()
    gpus.put(ONE, load=1.0)
    gpus.pass_s(0.25)
    watts = gpu.watts(ONE)
    assert watts.instant_w == pytest.approx(700)
    assert watts.average_w == pytest.approx(70 + 0.25 * 630, abs=1e-3)


def test_old_drivers_have_one_power_reading_and_the_family_says_which(start: Open) -> None:
    gpus, gpu = start(of(ONE, old_driver=1), of(TWO, "a100", old_driver=1))
    gpus.put(ONE, TWO, load=1.0)
    gpus.pass_s(0.25)
    assert gpu.watts(ONE) == Watts(None, pytest.approx(70 + 0.25 * 630, abs=1e-3))
    assert gpu.watts(TWO) == Watts(pytest.approx(400), None)
    assert gpu.temperature_c(ONE) > 30


def test_an_idle_gpu_is_slow_and_says_so(start: Open) -> None:
    _, gpu = start()
    gpu.lock_clock(ONE, 345, 1200)
    assert gpu.clock_mhz(ONE) == 345
    assert gpu.throttled(ONE) == {"gpu_idle"}


def test_a_lock_snaps_to_the_table(start: Open) -> None:
    gpus, gpu = start()
    gpus.put(ONE, load=1.0)
    gpu.lock_clock(ONE, 345, 1001)
    assert gpu.clock_mhz(ONE) == 990
    gpus.put(ONE, bin_mhz=120)  # a card that obeys in coarse steps, upwards
    assert gpu.clock_mhz(ONE) == 345 + 6 * 120


def test_a_lock_acts_after_its_delay(start: Open) -> None:
    gpus, gpu = start()
    gpus.put(ONE, load=1.0, delay_s=2.0)
    gpu.lock_clock(ONE, 345, 990)
    assert gpu.clock_mhz(ONE) == 1980
    gpus.pass_s(1.5)
    assert gpu.clock_mhz(ONE) == 1980
    gpus.pass_s(1.5)
    assert gpu.clock_mhz(ONE) == 990
    slow_w = 70 + 630 * 0.25
    assert gpu.energy_j(ONE) == pytest.approx(2 * 700 + 1 * slow_w)


def test_a_card_that_is_deaf_agrees_and_does_nothing(start: Open) -> None:
    gpus, gpu = start()
    gpus.put(ONE, load=1.0, deaf=1)
    gpu.lock_clock(ONE, 345, 990)
    assert gpu.clock_mhz(ONE) == 1980


def test_what_slows_a_gpu_is_named(start: Open) -> None:
    gpus, gpu = start()
    gpus.put(ONE, load=1.0, throttle_mhz=900, throttle_reasons=0x20 | 0x40)
    assert (gpu.clock_mhz(ONE), gpu.throttled(ONE)) == (900, {"sw_thermal", "hw_thermal"})
    gpus.put(TWO, load=1.0)
    gpu.set_power_limit_w(TWO, 400)
    assert gpu.power_limit(TWO).limit_w == 400
    assert gpu.throttled(TWO) == {"sw_power_cap"}
    instant_w = gpu.watts(TWO).instant_w
    assert instant_w is not None and 380 < instant_w <= 400
    with pytest.raises(GpuError):
        gpu.set_power_limit_w(TWO, 5000)


def test_a_lock_without_a_range_is_refused(start: Open) -> None:
    _, gpu = start()
    with pytest.raises(GpuError):
        gpu.lock_clock(ONE, 990, 345)


def test_temperature_follows_the_watts(start: Open) -> None:
    gpus, gpu = start()
    gpus.put(ONE, load=1.0)
    gpus.pass_s(60)
    assert gpu.temperature_c(ONE) == 75
    assert gpu.temperature_c(TWO) == pytest.approx(34.5, abs=0.5)


@pytest.mark.parametrize(("code", "error"), [(3, NotSupported), (15, GpuLost), (999, GpuError)])
def test_a_broken_gpu_is_named_and_the_others_work(start: Open, code: int, error: type[GpuError]) -> None:
    gpus, gpu = start()
    gpus.put(ONE, read_error=code)
    for call in (gpu.energy_j, gpu.watts, gpu.clock_mhz, gpu.temperature_c, gpu.throttled, gpu.unlock_clock):
        with pytest.raises(GpuError) as caught:
            call(ONE)
        assert type(caught.value) is error
    assert gpu.energy_j(TWO) == 0.0


def test_without_permission_reads_work_and_writes_do_not(start: Open) -> None:
    gpus, gpu = start()
    gpus.put(ONE, write_error=4, load=1.0)
    for write in (lambda: gpu.lock_clock(ONE, 345, 990), lambda: gpu.unlock_clock(ONE)):
        with pytest.raises(NotPermitted):
            write()
    assert (gpu.clock_mhz(ONE), gpus.state.gpu(ONE).writes) == (1980, 0)


def test_a_reloaded_driver_forgets_and_can_be_opened_again(start: Open) -> None:
    gpus, gpu = start()
    gpus.put(ONE, load=1.0)
    gpu.lock_clock(ONE, 345, 990)
    gpus.pass_s(5)
    gpus.state.reload_driver()
    for _ in range(2):
        with pytest.raises(DriverReloaded):
            gpu.clock_mhz(ONE)
    gpu.reopen()
    assert (gpu.energy_j(ONE), gpu.clock_mhz(ONE)) == (0.0, 1980)


def test_no_driver_and_no_such_gpu_are_no_gpu(start: Open) -> None:
    _, gpu = start()
    with pytest.raises(NoGpu):
        gpu.energy_j("GPU-elsewhere")
    with pytest.raises(NoGpu):
        start(init_error=9)


def test_two_processes_see_one_clock(start: Open) -> None:
    """What an engine reads from the file is what was set through the seam, and the seam sees the engine's load."""
    gpus, gpu = start()
    gpu.lock_clock(ONE, 345, 1200)
    assert gpus.state.gpu(ONE).loaded_mhz == 1200
    gpus.put(ONE, load=0.5)
    assert gpu.clock_mhz(ONE) == 1200
    assert gpus.state.gpu(ONE).writes == 1
