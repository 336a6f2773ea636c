"""The frontier against brute force, and its lookups: least energy under a deadline, one more GPU, one looser ms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.frontier import Frontier, frontier, frontiers, merit
from profiles.profile import UNKNOWN, Point
from profiles.query import Limits, NotFeasible
from tests.profile_samples import row, sample

FEW = st.sampled_from([0.01, 0.02, 0.03, 0.05, 0.08])  # few values, so that ties are common
ROWS = st.lists(
    st.builds(
        lambda n, tp, ttft, tbt, j, lost: row(
            offered_rps=1.0 + n, tp=tp, ttft_p99_s=ttft, tbt_p99_s=tbt, j_per_output_token=j, saturated=lost
        ),
        st.integers(0, 50),
        st.sampled_from([1, 2, 4, 8]),
        st.one_of(FEW, st.just(UNKNOWN)),
        FEW,
        st.one_of(FEW, st.floats(0.01, 1), st.just(UNKNOWN)),
        st.just(False),
    ),
    max_size=14,
    unique_by=lambda p: (p.tp, p.offered_rps),
)
LIMITS = st.builds(Limits, st.one_of(FEW, st.just(math.inf)), st.one_of(FEW, st.just(math.inf)))
GPUS = st.sampled_from([1, 2, 4, 8, math.inf])


def beats(a: Point, b: Point) -> bool:
    return all(x <= y for x, y in zip(merit(a), merit(b), strict=True)) and merit(a) != merit(b)


def within(point: Point, limits: Limits, gpus: float) -> bool:
    return point.ttft_p99_s <= limits.ttft_s and point.tbt_p99_s <= limits.tbt_s and point.tp <= gpus


def least(points: list[Point], limits: Limits, gpus: float = math.inf) -> float:
    return min((p.j_per_output_token for p in points if within(p, limits, gpus)), default=math.inf)


def cost(front: Frontier, limits: Limits, gpus: float = math.inf) -> float:
    found = front.cheapest(limits, gpus)
    return math.inf if isinstance(found, NotFeasible) else found.j_per_output_token


@settings(max_examples=300, deadline=None)
@given(points=ROWS)
def test_it_is_the_pareto_set(points: list[Point]) -> None:
    priced = [p for p in points if p.j_per_output_token < UNKNOWN]
    front = frontier(points, "LL")
    assert set(front.points) == {p for p in priced if not any(beats(q, p) for q in priced)}
    assert [p.j_per_output_token for p in front.points] == sorted(p.j_per_output_token for p in front.points)
    assert front.of == len(priced)


@settings(max_examples=300, deadline=None)
@given(points=ROWS, limits=LIMITS, gpus=GPUS)
def test_the_least_energy_under_a_deadline_is_that_of_all_points(
    points: list[Point], limits: Limits, gpus: float
) -> None:
    priced = [p for p in points if p.j_per_output_token < UNKNOWN]
    front = frontier(points, "LL")
    assert cost(front, limits, gpus) == least(priced, limits, gpus)
    found = front.cheapest(limits, gpus)
    if isinstance(found, NotFeasible):
        assert found.reason
    else:
        assert within(found, limits, gpus)


@settings(max_examples=300, deadline=None)
@given(points=ROWS, limits=LIMITS, gpus=GPUS, deadline=st.sampled_from(["ttft", "tbt"]))
def test_the_staircase_and_the_next_looser_deadline(
    points: list[Point], limits: Limits, gpus: float, deadline: str
) -> None:
    front = frontier(points, "LL")

    def at(deadline_s: float) -> float:
        other = Limits(deadline_s, limits.tbt_s) if deadline == "ttft" else Limits(limits.ttft_s, deadline_s)
        return cost(front, other, gpus)

    steps = front.staircase(deadline, limits, gpus)
    for before, after in zip(steps, steps[1:], strict=False):
        assert before.deadline_s < after.deadline_s
        assert before.point.j_per_output_token > after.point.j_per_output_token
    for step in steps:
        assert at(step.deadline_s) == step.point.j_per_output_token
        assert at(step.deadline_s * (1 - 1e-9)) > step.point.j_per_output_token
    now_s = limits.ttft_s if deadline == "ttft" else limits.tbt_s
    looser = front.looser(deadline, limits, gpus)
    if looser is not None:
        assert at(now_s + looser.extra_s * 0.999) == at(now_s)
        assert at(now_s) - at(now_s + looser.extra_s * 1.001) == pytest.approx(looser.saved_j)
        assert looser.j_per_ms == pytest.approx(looser.saved_j / looser.extra_s / 1e3)
    elif at(now_s) < math.inf and now_s < math.inf:
        assert at(1e6) == at(now_s) or at(math.inf) == at(now_s)


@settings(max_examples=200, deadline=None)
@given(points=ROWS, limits=LIMITS)
def test_what_one_more_gpu_saves(points: list[Point], limits: Limits) -> None:
    front = frontier(points, "LL")
    steps = front.by_gpus(limits)
    for gpus in (1, 2, 4, 8):
        known = [step.point.j_per_output_token for step in steps if step.gpus <= gpus]
        assert (known[-1] if known else math.inf) == cost(front, limits, gpus)
    for before, after in zip(steps, steps[1:], strict=False):
        assert after.saved_j == before.point.j_per_output_token - after.point.j_per_output_token
        assert after.j_per_gpu == after.saved_j / (after.gpus - before.gpus)


def test_points_past_a_cliff_do_not_count() -> None:
    lucky = row(offered_rps=3.0, watts=1.0)
    points = [row(), row(offered_rps=2.0, saturated=True, watts=1.0), lucky]
    assert frontier(points, "LL").points == (points[0],)


def test_a_refusal_says_what_stands_in_the_way() -> None:
    points = [row(ttft_p99_s=0.6, tbt_p99_s=0.03), row(offered_rps=2.0, ttft_p99_s=0.4, ttft_p50_s=0.2, tbt_p99_s=0.05)]
    front = frontier(points, "LL")
    cases = {
        front.cheapest(Limits(0.1, 1.0)): "the least TTFT p99 of LL is 400 ms, above 100 ms",
        front.cheapest(Limits(1.0, 0.01)): "the least TBT p99 of LL is 30 ms, above 10 ms",
        front.cheapest(Limits(0.4, 0.03)): "each limit can be kept for LL, but no point keeps both",
        front.cheapest(Limits(), 2): "no point of LL runs on 2 GPUs",
        frontier([], "LL").cheapest(Limits()): "no point of LL held",
        frontier([row(ttft_p99_s=UNKNOWN)], "LL").cheapest(
            Limits(1.0)
        ): "TTFT p99 of LL is not in the profile, so it can have no limit",
    }
    for found, told in cases.items():
        assert isinstance(found, NotFeasible)
        assert found.reason == told


def test_one_frontier_for_each_load() -> None:
    found = frontiers(sample().points)
    assert list(found) == ["SS", "LL"]
    assert all(p.load == load for load, front in found.items() for p in front.points)
