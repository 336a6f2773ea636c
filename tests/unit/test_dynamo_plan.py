"""DynamoLLM's decisions: whole nodes and what is passed on, the least-watt mix, the least-watt clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.service import CLASSES
from profiles.engine_model import load_engine_model
from simulator.baselines.dynamo_plan import Table, best_clock, best_mix, mix_watts, nodes, table_of
from simulator.baselines.dynamollm import Passing
from simulator.baselines.load import work_of
from simulator.case import make_case, shipped_service
from simulator.trace import Arrival

LL = CLASSES.index("LL")


def table(service: str = "llama-2-70b") -> Table:
    arrivals = [Arrival(float(n), 900, 200) for n in range(100)]
    case = make_case(shipped_service(service), load_engine_model(service), lambda: iter(arrivals))
    return table_of(case, work_of(case, case.tp, case.clock_mhz))


def test_only_the_largest_class_is_rounded_up() -> None:
    found = nodes([0.5, 2.25, 0, 0, 0, 0, 0, 0, 1.0], 99)
    assert found.count == (0, 2, 0, 0, 0, 0, 0, 0, 2)
    assert found.passed[0] == 1 and found.passed[1] == pytest.approx(0.75 / 2.75)
    assert sum(found.load([0.5, 2.25, 0, 0, 0, 0, 0, 0, 1.0])) == pytest.approx(3.75)


@given(st.lists(st.floats(0, 20), min_size=9, max_size=9), st.integers(1, 40))
def test_nodes_stay_within_what_there_is_and_hold_the_load_if_it_can_be_held(needs: list[float], most: int) -> None:
    found = nodes(needs, most)
    assert 1 <= sum(found.count) <= most
    assert all(0 <= share <= 1 for share in found.passed)
    if sum(needs) + 1 <= most:
        assert all(load <= count + 1e-6 for load, count in zip(found.load(needs), found.count, strict=True))


def test_requests_are_passed_on_evenly() -> None:
    passing, spec = Passing(), shipped_service("llama-2-70b")
    passing.shares = (0.25, 1.0, *([0.0] * 7))
    places = [passing(spec, Arrival(0.0, 100, 50), "S") for _ in range(100)]
    assert places.count(0) == 75 and places.count(2) == 25  # SM has no pool of its own


def test_a_mix_holds_its_load_with_the_least_watts() -> None:
    whole = table()
    for rps in (0.3, 1.0, 3.0, 6.0):
        mix = best_mix(whole, LL, rps, 64)
        watts = mix_watts(whole, LL, rps, mix)
        assert watts is not None and sum(tp * count for tp, count in mix.items()) <= 64
        others = ({8: n8, 4: n4} for n8 in range(9) for n4 in range(17) if 8 * n8 + 4 * n4 <= 64)
        assert all((mix_watts(whole, LL, rps, other) or 1e9) >= watts - 1e-6 for other in others)


def test_a_load_that_nothing_holds_gets_the_mix_that_holds_most() -> None:
    whole = table()
    mix = best_mix(whole, LL, 1e6, 16)
    clock = whole.case.clock_mhz

    def held(tp: int, count: int) -> float:
        return whole.capacity.get((LL, tp, clock), 0.0) * count

    assert sum(held(tp, count) for tp, count in mix.items()) >= max(held(8, 2), held(4, 4))


def test_a_clock_holds_the_load_with_the_least_watts() -> None:
    whole = table()
    for rps in (0.0, 0.4, 0.9, 1.2):
        clock = best_clock(whole, LL, 8, rps)
        assert whole.capacity[LL, 8, clock] >= rps
        assert all(
            whole.watts(LL, 8, clock, rps) <= whole.watts(LL, 8, other, rps)
            for other in whole.clocks(LL, 8) if whole.capacity[LL, 8, other] >= rps
        )  # fmt: skip
    assert best_clock(whole, LL, 8, 1e6) == 1980


def test_shorter_answers_never_take_more_and_a_model_without_a_profile_has_a_table_too() -> None:
    for service in ("llama-2-70b", "qwen3-32b"):
        whole = table(service)
        tp, clock = whole.case.tp, whole.case.clock_mhz
        for first in range(0, 9, 3):
            row = [whole.capacity.get((place, tp, clock), 0.0) for place in range(first, first + 3)]
            assert row == sorted(row, reverse=True)
        assert 0 < whole.watts(LL, tp, clock, 0.0) < whole.watts(LL, tp, clock, whole.capacity[LL, tp, clock])
