"""The clairvoyant bounds: by hand, against enumeration, over the whole lattice of points, and under simulated policies."""

import itertools
import math
import random

import numpy as np
import pytest

from core.service import InstanceLimits, PoolSpec, Slo
from profiles.engine_model import EngineModel, load_engine_model
from simulator.bound_frame import units_of
from simulator.bound_integer import Integer, Switching
from simulator.bound_load import Alike, Load, load_of
from simulator.bound_points import Points, points_of
from simulator.bounds import bounds
from simulator.case import Case, make_case, shipped_service
from simulator.cluster import costs_of
from simulator.trace import Arrival

MODEL = load_engine_model("llama-2-70b")
LOOSE = Slo({"S": 2.0, "M": 2.0, "L": 6.0}, 0.2)


def trace(seed: int, rps: float, seconds: float) -> list[Arrival]:
    rng, at_s, out = random.Random(seed), 0.0, []
    while at_s < seconds:
        out.append(Arrival(at_s, rng.choice([60, 200, 500, 900, 2500]), rng.choice([20, 80, 150, 300, 500])))
        at_s += rng.expovariate(rps)
    return out


def case(arrivals: list[Arrival], slo: Slo | None = None, model: EngineModel = MODEL, seed: int = 0) -> Case:
    return make_case(shipped_service("llama-2-70b", slo), model, lambda: iter(arrivals), predictor="oracle", seed=seed)


def joules_of(case: Case, **knobs: int) -> tuple[float, bool]:
    """One static pool of `count` instances: its joules, and whether it kept every promise."""
    limits = InstanceLimits(knobs["slots"], MODEL.kv_tokens(knobs["tp"]))
    pool = PoolSpec("all", ("S", "M", "L"), knobs["count"], knobs["tp"], knobs["clock_mhz"], limits)
    ran = case.run(case.setup((pool,), knobs["count"] * knobs["tp"]))
    kept = all(one.missed <= 0.01 * one.arrived for one in ran.tally.classes)
    return ran.joules, kept and not ran.in_flight


def test_the_load_by_hand() -> None:
    spec = shipped_service("llama-2-70b")
    load = load_of([Arrival(0.0, 100, 11), Arrival(59.9, 300, 1), Arrival(70.0, 9, 3)], spec)
    assert load.released.tolist() == [[10, 99 + 299, 1000 + 55], [2, 8, 18 + 3]]
    assert load.slack.tolist() == [[0, 299, 0], [0, 0, 0]]  # the second may have its first token at 60.3 s
    assert load.late_gaps == 2 and load.shed.tolist() == [0, 0, 0] and load.running == (1, 1)
    assert load.contexts == (9, 300)


def test_one_missed_request_in_a_hundred_is_let_off() -> None:
    arrivals = [Arrival(float(n), 100, 50 if n else 90) for n in range(200)]
    load = load_of(arrivals, shipped_service("llama-2-70b"))
    assert load.shed.tolist() == [89 + 49, 2 * 99, 89 * 100 + 89 * 45 + 49 * 100 + 49 * 25]


def test_one_request_by_hand() -> None:
    """One sequence at a time: prefill at the best step, then decode steps at the best TP and clock, context read."""
    one = case([Arrival(0.0, 400, 101)])
    least_j = min(
        MODEL.watts(tp, mhz, 1) * MODEL.decode_steps_s(tp, mhz, 1, 401, 100)
        for tp in MODEL.points
        for mhz in MODEL.clocks_mhz
    )
    found = bounds(one)
    assert found.fluid_j is not None and found.integer_j is not None
    assert found.fluid_j >= least_j * 0.98  # decode alone; its prompt may ride along
    real_j = min(
        joules_of(one, tp=tp, clock_mhz=mhz, slots=8, count=1)[0] for tp in MODEL.points for mhz in (1000, 1200, 1400)
    )
    assert found.fluid_j <= found.integer_j <= real_j
    assert real_j <= 1.25 * found.fluid_j


SECONDS = [(90.0, 10.0, 90.0), (30.0, 0.0, 70.0), (50.0, 61.0, 5.0)]


@pytest.mark.parametrize("busy_s", SECONDS)
@pytest.mark.parametrize("start_s", [5.0, 40.0, 90.0])
def test_whole_instances_against_enumeration(busy_s: tuple[float, ...], start_s: float) -> None:
    """One TP with one point, work that cannot wait: every number of instances at every edge, and of starts between."""
    per_s, watts, idle_w = 1000.0, 2000.0, 8 * 115.0
    released = np.array([[0.0, per_s * s, 0.0] for s in busy_s])
    alike = (Alike(released.sum(axis=0), (0.0, math.inf), (1.0, 2.0)),)
    load = Load(released, np.zeros((3, 3)), np.zeros(3), 0.0, (1, 1, 1), (1, 2), alike)
    point = Points(8, np.array([[0.0, per_s, 0.0, 0.0]]), np.array([watts]), np.array([[1980.0, 0.0, 100.0, 0.0]]))
    integer = Integer(load, [point], None, units_of(load), Switching(115.0, start_s, {}))

    def extra_j(before: int, after: int, busy: float) -> float:
        least = max(0, after - before, math.ceil(busy / 60) - before)
        return min(
            idle_w * (start_s * starts + max(0.0, 60 * (after - starts) - busy)) for starts in range(least, least + 4)
        )

    plans = itertools.product(range(3), repeat=4)
    least_j = min(sum(map(extra_j, plan, plan[1:], busy_s)) for plan in plans)
    whole = integer.bound()
    assert whole is not None and whole.joules == pytest.approx(watts * sum(busy_s) + least_j, rel=2.1e-3)
    assert whole.joules <= (watts * sum(busy_s) + least_j) * (1 + 1e-6)


def test_more_load_costs_more_and_fewer_gpus_never_less() -> None:
    few, many = trace(3, 0.3, 60.0), trace(3, 0.3, 60.0) + [Arrival(60.0, 900, 300)] * 6
    low, high = bounds(case(few)), bounds(case(many))
    assert low.fluid_j and high.fluid_j and low.integer_j and high.integer_j
    assert low.fluid_j < high.fluid_j and low.integer_j < high.integer_j
    assert low.fluid_j <= low.integer_j and high.fluid_j <= high.integer_j
    tight = bounds(case(few), 8)
    assert tight.fluid_j is not None and tight.fluid_j >= low.fluid_j * (1 - 1e-3)


def test_the_same_case_has_the_same_bounds() -> None:
    assert bounds(case(trace(1, 0.1, 60.0))) == bounds(case(trace(1, 0.1, 60.0)))


def test_too_few_gpus_are_told() -> None:
    found = bounds(case([Arrival(0.01 * n, 2000, 300) for n in range(2000)]), 4)
    assert found.status == "impossible" and found.fluid_j is None and found.integer_j is None


@pytest.mark.parametrize(
    ("name", "tp"), [("llama-2-70b", 8), ("llama-2-70b", 2), ("llama-3.1-70b", 4), ("qwen3-32b", 2)]
)
def test_grid_points_stand_for_the_whole_lattice(name: str, tp: int) -> None:
    """At any prices no step of the lattice earns more for its joules than the best grid point, COVER included."""
    model, tbt_s = load_engine_model(name), 0.1
    budget, ends = costs_of(model, tbt_s).step_tokens[tp], (50, 9000)
    points: Points = points_of(model, tp, budget, tbt_s, ends, 256)
    rng = np.random.default_rng(1)
    count = 6_000
    running = np.minimum(np.floor(2 ** rng.uniform(0, 8.01, count)), 256).astype(int) * (rng.random(count) > 0.1)
    prefill = np.floor(rng.random(count) ** 2 * (budget - running + 1)).astype(int)
    prefill = np.where(running == 0, np.maximum(1, prefill), prefill) * ((rng.random(count) > 0.1) | (running == 0))
    room = np.minimum(running * ends[1], model.kv_tokens(tp))
    context = np.floor(running * ends[0] + rng.random(count) ** 3 * np.maximum(0, room - running * ends[0])).astype(int)
    fits = context <= model.kv_tokens(tp)
    running, prefill, context = running[fits], prefill[fits], context[fits]
    prices = [np.array([10.0**a, 10.0**b, 10.0**c, 10.0**d]) for a, b, c, d in rng.uniform(-3, 1, (40, 4))]
    for mhz in (model.clocks_mhz[0], model.clocks_mhz[2]):
        steps = zip(prefill.tolist(), running.tolist(), context.tolist(), strict=True)
        seconds = np.array([model.step_s(tp, mhz, p, b, c) for p, b, c in steps])
        watts = np.array([model.watts(tp, mhz, b, p) for p, b in zip(prefill.tolist(), running.tolist(), strict=True)])
        late = np.where((seconds > tbt_s) & (running > 0), running, 0)
        for price in prices:
            work = np.array([1.0, 0.1, 0.0003]) * price[:3]
            earned = (np.stack([running, prefill, context], axis=1) @ work) / (seconds * watts + price[3] * late)
            best = np.max((points.rates[:, :3] @ work) / (points.watts + price[3] * points.rates[:, 3]))
            assert earned.max() <= best * (1 + 1e-12)


KNOBS = [
    {"tp": 8, "clock_mhz": 1980, "slots": 64, "count": 1},
    {"tp": 8, "clock_mhz": 1200, "slots": 128, "count": 1},
    {"tp": 4, "clock_mhz": 1200, "slots": 128, "count": 2},
    {"tp": 4, "clock_mhz": 1400, "slots": 32, "count": 2},
    {"tp": 2, "clock_mhz": 1200, "slots": 12, "count": 4},
]


@pytest.mark.parametrize(("rps", "slo"), [(1.0, None), (3.0, LOOSE)])
def test_no_policy_falls_below(rps: float, slo: Slo | None) -> None:
    kept = 0
    for seed in (1, 2):
        one = case(trace(seed, rps, 90.0), slo, seed=seed)
        found = bounds(one)
        assert found.fluid_j is not None and found.integer_j is not None
        for knobs in KNOBS:
            joules, keeps = joules_of(one, **knobs)
            kept += keeps
            assert not keeps or joules >= found.integer_j >= found.fluid_j
            assert joules >= found.fluid_j  # here even those that break promises, for all of them serve everything
    assert kept >= 2
