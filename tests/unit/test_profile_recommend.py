"""Recommendations against brute force over every TP, clock and count."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.service import Slo
from profiles.profile import UNKNOWN
from profiles.query import Limits, NotFeasible, Operating, ProfileIndex, build_index, limits_of
from profiles.recommend import Recommendation, recommend
from tests.profile_samples import profile, row, sample

INDEX = build_index(sample(), idle_w=110.0)


def brute(index: ProfileIndex, load: str, rps: float, limits: Limits, gpus: float = math.inf) -> float:
    """Least watts over all counts up to the fewest that fit and three more."""
    best = math.inf
    for tp in index.tps:
        for clock in index.clocks_mhz(load, tp):
            fits = 0
            for count in range(1, 2000):
                at = index.at(load, tp, clock, rps / count)
                if count * tp > gpus or fits == 4:
                    break
                if isinstance(at, Operating) and at.within(limits):
                    fits += 1
                    best = min(best, count * at.watts)
    return best


@settings(max_examples=30, deadline=None)
@given(load=st.sampled_from(["SS", "LL"]), rps=st.floats(0.05, 40), gpus=st.sampled_from([8, 24, math.inf]))
def test_nothing_cheaper_holds_the_load(load: str, rps: float, gpus: float) -> None:
    expected = brute(INDEX, load, rps, limits_of(load, Slo()), gpus)
    found = recommend(INDEX, {load: rps}, Slo(), gpus)
    if isinstance(found, NotFeasible):
        assert expected == math.inf
        assert load in found.reason
        return
    assert found.best.watts == pytest.approx(expected)
    limits = limits_of(load, Slo())
    assert found.best.each.within(Limits(limits.ttft_s * (1 + 1e-9), limits.tbt_s * (1 + 1e-9)))
    assert found.best.each.offered_rps * found.best.count == pytest.approx(rps)
    assert found.best.utilisation <= 1 + 1e-9
    assert found.best.gpus <= gpus
    assert all(one.watts >= found.best.watts for one in found.alternatives)


def test_the_saving_is_against_the_largest_tp_at_its_highest_clock() -> None:
    found = recommend(INDEX, {"SS": 20.0}, Slo())
    assert isinstance(found, Recommendation)
    assert found.fastest is not None
    assert (found.fastest.tp, found.fastest.clock_mhz) == (8, 1980)
    capacity = INDEX.capacity("SS", 8, 1980, Slo())
    assert isinstance(capacity, float)
    assert found.fastest.count == math.ceil(20.0 / capacity)
    assert found.saving == pytest.approx(1 - found.best.watts / found.fastest.watts)
    assert found.saving is not None
    assert found.saving > 0
    assert found.spread is not None
    assert found.spread.count == found.best.count + 1
    assert found.spread.watts > found.best.watts  # consolidating pays


def test_whole_shares_need_no_spare_instance() -> None:
    index = build_index(profile([row(offered_rps=0.1), row(offered_rps=0.3)]))
    found = recommend(index, {"LL": 0.9}, Limits())
    assert isinstance(found, Recommendation)
    assert found.best.count == 3
    assert found.best.utilisation == pytest.approx(1)


def test_a_mix_is_served_by_instances_of_one_kind() -> None:
    mix = {"SS": 6.0, "LL": 1.0}
    found = recommend(INDEX, mix, Slo())
    assert isinstance(found, Recommendation)
    best = found.best
    used = INDEX.utilisation({k: v / best.count for k, v in mix.items()}, best.tp, best.clock_mhz, Slo())
    assert used == pytest.approx(best.utilisation)
    assert best.utilisation <= 1
    assert found.rps == 7.0
    assert best.each.origin == "derived"


def test_refusals_say_why() -> None:
    def told(*arguments: object) -> str:
        found = recommend(*arguments)  # type: ignore[arg-type]
        assert isinstance(found, NotFeasible)
        return found.reason

    assert "no load" not in told(INDEX, {"SS": 1.0}, Limits(1e-4, 0.1))
    assert "TTFT p99 is" in told(INDEX, {"SS": 1.0}, Limits(1e-4, 0.1))
    assert "needs" in told(INDEX, {"SS": 500.0}, Slo(), 8)
    assert "XX is not in the profile, which has SS, LL" in told(INDEX, {"XX": 1.0}, Slo())
    assert "more than 0" in told(INDEX, {"SS": 0.0}, Slo())
    bare = build_index(sample())
    assert "below the lowest measured load" in told(bare, {"SS": 1e-4}, Slo())
    dark = build_index(profile([row(watts=UNKNOWN), row(offered_rps=2.0)]))
    assert "watts of LL TP4 at 1200 MHz are not in the profile" in told(dark, {"LL": 1.5}, Limits())


def test_a_baseline_that_cannot_be_priced_is_named() -> None:
    rows = [row(), row(offered_rps=2.0), row(tp=8, clock_mhz=1980, offered_rps=5.0)]
    found = recommend(build_index(profile(rows)), {"LL": 1.0}, Limits())
    assert isinstance(found, Recommendation)
    assert found.fastest is None
    assert found.saving is None
    assert "below the lowest measured load 5 rps" in found.no_fastest
    assert (8, 1980) in found.rejected
