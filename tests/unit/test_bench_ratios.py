"""The bench's arithmetic: paired ratios, their interval, what is noise."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.ratios import Ratio, bootstrap, paired, rank, ratio, scatter, tells_apart

values = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=20)


def test_only_rounds_that_both_have_are_paired() -> None:
    assert paired({0: 2.0, 1: 3.0, 2: 8.0}, {1: 1.5, 2: 2.0, 3: 9.0}) == [2.0, 4.0]
    assert paired({0: 0.0, 1: 2.0}, {0: 1.0, 1: 0.0}) == []
    assert ratio({0: 1.0}, {1: 1.0}) is None


def test_drift_that_hits_both_sides_alike_cancels() -> None:
    machine = [1.0, 1.7, 0.8, 1.3, 2.2]
    found = ratio({i: 3.0 * m for i, m in enumerate(machine)}, {i: 2.0 * m for i, m in enumerate(machine)})
    assert found is not None
    assert found.median == pytest.approx(1.5) and found.low == pytest.approx(1.5) and found.high == pytest.approx(1.5)
    assert found.scatter == pytest.approx(0.0, abs=1e-12) and found.n == 5


@given(values)
def test_the_interval_lies_within_the_values_and_is_repeatable(ratios: list[float]) -> None:
    low, high = bootstrap(ratios)
    assert min(ratios) <= low <= high <= max(ratios)
    assert (low, high) == bootstrap(ratios)


def test_one_wild_round_does_not_move_the_median() -> None:
    ours = {i: 1.0 for i in range(9)} | {4: 9.0}
    found = ratio(ours, {i: 1.0 for i in range(9)})
    assert found is not None and found.median == 1.0 and found.high == 1.0


def test_with_two_rounds_the_interval_is_their_range() -> None:
    found = ratio({0: 1.0, 1: 3.0}, {0: 1.0, 1: 1.0})
    assert found is not None and (found.low, found.median, found.high) == (1.0, 2.0, 3.0)


def test_scatter_is_relative() -> None:
    assert scatter([100.0, 110.0]) == pytest.approx(scatter([1.0, 1.1]))
    assert math.isnan(scatter([1.0]))


def test_what_a_self_check_can_tell_apart() -> None:
    assert tells_apart(Ratio(1.0, 0.96, 1.02, 0.05, 10)) == pytest.approx(0.04)
    assert tells_apart(Ratio(1.05, 1.03, 1.08, 0.05, 10)) == pytest.approx(0.08)  # a bias is noise too


def test_nearest_rank() -> None:
    assert rank([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0 and rank([4.0, 1.0, 3.0, 2.0], 0.99) == 4.0
    assert math.isnan(rank([], 0.5))
