"""When a window opens and closes and what counts as saturated, on hand-made samples; and the arrivals."""

from itertools import islice, takewhile

import pytest

from pools.gpu import Device
from pools.measure import Lengths, Probe, Rule, Sample
from pools.measure_thermal import Thermal
from pools.measure_window import Watch, arrivals, block_of, window_length_s

RULE = Rule()
LENGTHS = Lengths("MM", 1000, 250)


def follow(watch: Watch, running: list[int], waiting: list[int], residence_s: float, hold: bool = False) -> None:
    for step, (run, wait) in enumerate(zip(running, waiting, strict=True)):
        now_s = (step + 1) * RULE.sample_s
        if now_s > residence_s:
            watch.finished(now_s - residence_s, now_s)
        watch.sample(Sample(now_s, run, wait, 0.1), hold)
        if watch.closed_s is not None:
            return


def watch(rps: float = 1.0) -> Watch:
    return Watch(Probe(2, 1980, LENGTHS, rps), RULE, 0.0)


def test_the_window_opens_after_the_climb_and_closes_after_whole_blocks() -> None:
    one = watch()
    follow(one, [min(20, i) for i in range(400)], [0] * 400, residence_s=10.0)
    assert one.opened_s == pytest.approx(RULE.residences * 10.0, abs=1.0)
    assert one.closed_s is not None and one.closed_s - one.opened_s == window_length_s(1.0, RULE)
    assert not one.saturated
    inside = one.inside()
    assert inside[0].at_s == one.opened_s and inside[-1].at_s == one.closed_s


def test_a_climbing_batch_keeps_it_shut_until_the_limit() -> None:
    one = watch()
    follow(one, [int(5 * 1.04**i) for i in range(600)], [0] * 600, residence_s=40.0)
    assert one.saturated and "climbing" in one.reason
    assert one.opened_s == RULE.warm_max_s


def test_a_warming_gpu_keeps_it_shut() -> None:
    one = watch()
    follow(one, [10] * 600, [0] * 600, residence_s=4.0, hold=True)
    assert one.opened_s == RULE.warm_max_s and not one.saturated


def test_a_growing_queue_is_saturation_at_once() -> None:
    one = watch()
    follow(one, [20] * 400, [i // 4 for i in range(400)], residence_s=10.0)
    assert one.saturated and "waiting" in one.reason
    assert one.closed_s is not None and one.closed_s < 40


def test_a_standing_queue_is_saturation_too() -> None:
    one = watch()
    follow(one, [20] * 400, [6] * 400, residence_s=5.0)
    assert one.saturated and one.reason == "6.0 waiting on average"


def test_a_short_burst_is_none() -> None:
    one = watch()
    follow(one, [20] * 400, [8 if 60 <= i < 70 else 0 for i in range(400)], residence_s=5.0)
    assert one.closed_s is not None and not one.saturated


@pytest.mark.parametrize(
    ("waiting", "tokens", "saturated"), [(2, 15 * 250, True), (0, 15 * 250, False), (2, 29 * 250, False)]
)
def test_output_below_the_load_counts_only_with_a_queue(waiting: int, tokens: int, saturated: bool) -> None:
    one = watch()
    follow(one, [20] * 400, [waiting] * 400, residence_s=5.0)
    one.judge_output(tokens, 250)
    assert one.saturated is saturated


@pytest.mark.parametrize("rps", [0.05, 0.3, 1.0, 4.4, 30.0])
def test_arrivals_keep_their_number_per_block_and_scale_with_the_load(rps: float) -> None:
    requests, block_s = block_of(rps)
    assert requests / block_s == pytest.approx(rps)
    times = list(takewhile(lambda at_s: at_s < 7 * block_s, arrivals(rps, 3)))
    assert len(times) == 7 * requests and times == sorted(times)
    other = list(islice(arrivals(rps, 4), len(times)))
    assert times != other
    near = list(islice(arrivals(rps * 1.01, 3), len(times)))
    if block_of(rps * 1.01)[0] == requests:
        assert near == pytest.approx([at_s / 1.01 for at_s in times])


class WarmingGpu:
    """A GPU whose temperature the test gives."""

    def __init__(self, celsius: list[float]) -> None:
        self._celsius = celsius

    def devices(self) -> list[Device]:
        return []

    def temperature_c(self, uuid: str) -> float:
        return self._celsius.pop(0)

    def energy_j(self, uuid: str) -> float:
        raise NotImplementedError

    power_w = energy_j

    def clock_mhz(self, uuid: str) -> int:
        raise NotImplementedError

    def supported_clocks_mhz(self, uuid: str) -> list[int]:
        raise NotImplementedError


def test_thermal_settles_when_the_slope_is_flat() -> None:
    celsius = [min(60.0, 30.0 + second / 2) for second in range(120)]
    thermal = Thermal(WarmingGpu(celsius), ["GPU-0"])
    settled = []
    for second in range(120):
        thermal.sample(float(second))
        settled.append(thermal.settled)
    first = settled.index(True)
    assert 60 < first < 85 and all(settled[first:])
