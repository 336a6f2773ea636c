"""The planner on made-up curves whose cliff and bend are known: it finds them, with few points, and says when it is sure."""

import math

import pytest

from pools.measure import Lengths, Measured, Probe
from pools.measure_clocks import NONE, Curve, Effect, effect_of, next_clock, predicted, surprise
from pools.measure_plan import RESOLUTION, Bracket, bend, foretold, next_load
from pools.measure_profile import dense_grid, rows_of
from pools.measure_stats import confident, half_width, nearest_rank, pooled
from pools.measure_sweep import Plan, Space, Sweep
from profiles.profile import Point
from profiles.profile_checks import table_findings

SS, LL = Lengths("SS", 467, 96), Lengths("LL", 4085, 600)
CLOCKS = (800, 1000, 1200, 1400, 1600, 1800, 1980)


def slower(clock_mhz: int) -> float:
    return 0.3 + 0.7 * 1980 / clock_mhz


def point(probe: Probe, cliff: float = 8.0) -> Point:
    """An instance with a known cliff: a clock stretches time, latency bends up like 1 / (1 - utilisation)."""
    stretch = slower(probe.clock_mhz) / probe.tp * 2
    cliff = cliff / stretch * 600 / (probe.lengths.output_tokens + 500)
    u = probe.rps / cliff
    queue = 1 / (1 - min(u, 0.95))
    out = probe.lengths.output_tokens
    gap_s = 0.02 * stretch * (1 + 0.2 * queue)
    tps = min(probe.rps, cliff) * out
    watts = 800 * probe.tp * (probe.clock_mhz / 1980) * (0.5 + 0.5 * u / (u + 0.1)) if u else 230.0 * probe.tp
    return Point(
        tp=probe.tp, clock_mhz=probe.clock_mhz, load=probe.lengths.name, input_tokens=probe.lengths.input_tokens,
        output_tokens=out, offered_rps=probe.rps, prefill_tps=probe.rps * 100, running=tps * gap_s,
        context_tokens=500, ttft_p50_s=0.05 * stretch * queue, ttft_p99_s=0.1 * stretch * queue, tbt_p50_s=gap_s,
        tbt_p99_s=1.2 * gap_s, watts=watts, j_per_output_token=watts / max(1e-9, tps), output_tps=tps,
        kv_share=min(1, u), waiting=0, saturated=u > 1, requests=50, window_s=30,
    )  # fmt: skip


def answer(plan: Plan, cost_s: float = 45.0, most: int = 100_000) -> list[Probe]:
    """Runs a plan on the made-up instance."""
    asked: list[Probe] = []
    probe = next(plan, None)
    while probe is not None and len(asked) < most:
        asked.append(probe)
        try:
            probe = plan.send(Measured(probe, point(probe), cost_s))
        except StopIteration:
            probe = None
    return asked


@pytest.mark.parametrize("cliff", [0.05, 0.3, 1.0, 7.7, 300.0])
@pytest.mark.parametrize("hint", [0.0, 0.5, 1.0, 3.0])
def test_bisection_finds_the_cliff(cliff: float, hint: float) -> None:
    points: list[Point] = []
    tried: list[float] = []
    while (rps := next_load(Bracket.of(points), hint * cliff)) is not None:
        assert rps not in tried
        tried.append(rps)
        seen = point(Probe(2, 1980, Lengths("x", 10, 100), rps), cliff)
        points.append(seen)
    bracket = Bracket.of(points)
    assert bracket.good <= cliff * 1.001 and cliff <= bracket.bad * 1.001
    assert bracket.bad <= bracket.good * RESOLUTION
    assert len(tried) <= (3 if hint == 1.0 else 16)


def test_a_cliff_below_any_use_is_given_up() -> None:
    bracket, tried = Bracket(), 0
    while (rps := next_load(bracket)) is not None:
        bracket, tried = Bracket(0.0, rps), tried + 1
    assert bracket.bad < 0.2 and tried < 12


def test_the_lower_verdict_counts() -> None:
    held = [point(Probe(2, 1980, SS, rps), 8.0) for rps in (1.0, 2.0, 4.0)]
    lucky = point(Probe(2, 1980, SS, 6.0), 100.0)
    lost = point(Probe(2, 1980, SS, 5.0), 3.0)
    assert lost.saturated and not lucky.saturated
    assert Bracket.of([*held, lost, lucky]) == Bracket(4.0, 5.0)


def test_the_next_load_goes_where_the_curve_bends() -> None:
    """Flat, then steep: with the ends and the middle known, the steep half is split, and again, towards the bend."""
    cliff = 10.0
    loads = [1.0, 5.0, 9.5]
    for _ in range(3):
        curve = [point(Probe(2, 1980, Lengths("x", 10, 100), rps), cliff) for rps in sorted(loads)]
        found = bend(curve, 0.01)
        assert found is not None
        loads.append(found[0])
    assert all(load > 5.0 for load in loads[3:])
    assert max(loads[3:]) < 9.5


def test_a_straight_curve_needs_no_more_points() -> None:
    straight = [point(Probe(2, 1980, SS, rps), 1e9) for rps in (1.0, 2.0, 3.0)]
    flat = [p.__class__(**{f: getattr(straight[0], f) for f in p.__slots__} | {"offered_rps": p.offered_rps,
            "running": p.output_tps * 0.02}) for p in straight]  # fmt: skip
    flat = [f.__class__(**{n: getattr(f, n) for n in f.__slots__} | {"output_tps": s.output_tps})
            for f, s in zip(flat, straight, strict=True)]  # fmt: skip
    assert bend(flat, 0.01) is None
    assert bend(flat[:2], 0.01) == (1.5, math.inf)
    assert bend(flat[:1], 0.01) is None


def test_the_cliff_of_a_class_is_foretold_by_the_others() -> None:
    known = [(i, o, 1000 / (i**0.4 * o**0.7)) for i, o in ((467, 96), (467, 600), (4085, 96), (1010, 256))]
    assert foretold(known, 4085, 600) == pytest.approx(1000 / (4085**0.4 * 600**0.7), rel=0.1)
    assert foretold([], 100, 100) == 0.0
    assert foretold([(400, 100, 8.0)], 400, 100) == pytest.approx(8.0)
    assert foretold([(400, 100, 8.0)], 1600, 400) == pytest.approx(2.0, rel=0.3)


def test_a_clock_that_stretches_time_is_recognised() -> None:
    def curve(clock: int, shares: tuple[float, ...]) -> Curve:
        cliff = 8.0 / slower(clock)
        loads = [share * cliff for share in shares]
        return Curve(tuple(point(Probe(2, clock, Lengths("x", 10, 100), rps)) for rps in loads), cliff * 1.1)

    top = curve(1980, (0.15, 0.25, 0.4, 0.55, 0.7, 0.9))
    seen = effect_of(curve(1200, (0.25, 0.55)), top)
    assert math.exp(seen.low["gap_s"]) == pytest.approx(slower(1200), rel=0.02)
    assert math.exp(seen.low["saturation"]) == pytest.approx(1 / slower(1200), rel=0.02)
    assert surprise(seen, seen) == 0.0


def test_between_clocks_the_shape_of_other_classes_is_followed() -> None:
    def same(value: float) -> Effect:
        values = dict.fromkeys(("watts", "gap_s", "ttft_p50_s", "saturation"), value)
        return Effect(values, values)

    shape = {800: same(1.0), 1200: same(0.2), 1980: NONE}
    assert predicted(1200, {1980: NONE}, shape) == same(0.2)
    assert predicted(1200, {1980: NONE, 800: same(1.1)}, shape).low["watts"] == pytest.approx(0.2 + 0.1 * 780 / 1180)
    assert predicted(800, {1980: NONE, 1200: same(0.25)}, shape).high["gap_s"] == pytest.approx(1.05)


def test_clocks_are_measured_only_until_a_check_point_agrees() -> None:
    known = [1980]
    order = []
    while (clock := next_clock(CLOCKS, known, [], 1200, False)) is not None:
        order.append(clock)
        known.append(clock)
    assert order[:2] == [800, 1200] and sorted(order) == list(CLOCKS[:-1])
    assert next_clock(CLOCKS, [1980, 800, 1200], [(800, 1980)], 1200, False) is None
    assert next_clock(CLOCKS, [1980], [], 1200, True) == 1200
    assert next_clock(CLOCKS, [1980, 1200], [(800, 1980)], 1200, True) is None
    assert next_clock(CLOCKS, [1980, 1200], [], 1200, True) == 800


def test_a_sweep_finds_every_cliff_with_far_fewer_points_than_a_grid() -> None:
    sweep = Sweep(Space((2, 4), CLOCKS, (SS, LL), budget_s=12 * 3600.0))
    asked = answer(sweep.plan())
    grid = dense_grid(sweep)
    assert len(asked) * 2 < grid.points
    for tp in (2, 4):
        for lengths in (SS, LL):
            cliff = 8.0 / 2 * tp * 600 / (lengths.output_tokens + 500)
            assert sweep.cells[tp, lengths.name, 1980].bracket.saturation == pytest.approx(cliff, rel=RESOLUTION - 1)
    rows, left_out = rows_of(sweep)
    assert left_out == 0 and not [f for f in table_findings(rows) if f.error]
    assert {(r.load, r.tp, r.clock_mhz) for r in rows} == {
        (c, t, f) for c in ("SS", "LL") for t in (2, 4) for f in CLOCKS
    }
    for row in rows:
        if row.origin == "derived" and not row.saturated and row.clock_mhz < 1980:
            lengths = SS if row.load == "SS" else LL
            truth = point(Probe(row.tp, row.clock_mhz, lengths, row.offered_rps))
            cliff = truth.offered_rps if truth.saturated else math.inf
            if row.repeats == 0 and row.ttft_p50_s < 0.15 and row.offered_rps < cliff:
                assert row.tbt_p50_s == pytest.approx(truth.tbt_p50_s, rel=0.1)


def test_the_budget_is_kept_and_said_to_have_ended() -> None:
    sweep = Sweep(Space((2, 4), CLOCKS, (SS, LL), budget_s=900.0, setup_s=90.0))
    asked = answer(sweep.plan())
    assert sweep.spent_s <= 900.0
    assert sweep.gpu_s == pytest.approx(sum(45.0 * p.tp for p in asked) + 90.0 * 6)
    assert {p.tp for p in asked} == {2, 4}, "every TP has its share"
    assert sweep.cut_short


def test_an_instance_that_holds_nothing_is_left_soon() -> None:
    """What the highest clock cannot hold, no lower one is asked for."""
    sweep = Sweep(Space((2,), CLOCKS, (SS,)))
    plan = sweep.plan()
    asked = [next(plan)]
    try:
        while True:
            seen = point(asked[-1], 1e-6)
            asked.append(plan.send(Measured(asked[-1], seen, 20.0)))
    except StopIteration:
        pass
    assert {p.clock_mhz for p in asked if p.rps} == {1980}
    rows, _ = rows_of(sweep)
    assert all(r.saturated or r.offered_rps == 0 for r in rows)


def test_repeats_end_with_confidence() -> None:
    one = point(Probe(2, 1980, SS, 2.0))
    alike = [one, one, one]
    assert not confident(pooled([one])) and confident(pooled(alike[:2]))
    assert pooled(alike).repeats == 3 and pooled(alike).requests == 150
    assert half_width([10.0]) == 0.0
    assert half_width([9.0, 11.0]) == pytest.approx(12.706)
    assert half_width([10.0] * 5) == 0.0
    sweep = Sweep(Space((2,), (1980,), (SS,)))
    asked = answer(sweep.plan())
    assert max(p.repeat for p in asked) == 1, "an instance without noise is asked twice, never thrice"


def test_nearest_rank_counts_weights() -> None:
    assert nearest_rank([(1.0, 98), (2.0, 1), (9.0, 1)], 0.99) == 2.0
    assert nearest_rank([(1.0, 98), (2.0, 1), (9.0, 1)], 0.5) == 1.0
    assert nearest_rank([], 0.5) == 0.0
