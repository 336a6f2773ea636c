"""The decision rule of each baseline, without a simulation."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.service import CLASSES
from pools.breaker import Breaker
from pools.instance import Instance
from profiles.engine_model import load_engine_model
from simulator.baselines import autoscale, dynamollm, ecofaas, pegasus, retail, static_best, throttllem, voltana
from simulator.baselines.chosen import CHOSEN
from simulator.baselines.clocks import Due, Ladder, first_tokens_s, lowest, step_s
from simulator.baselines.load import Work, classed, epochs, first_work, work_of
from simulator.case import LEAST_BATCH, Case, make_case, shipped_service
from simulator.registry import POLICIES
from simulator.sketch import Sketch
from simulator.trace import Arrival
from simulator.whatif import SWEPT_ON

MODEL = load_engine_model("llama-2-70b")
CLOCKS = MODEL.clocks_mhz


def case(seconds: float = 120.0, predictor: str = "oracle") -> Case:
    rng, at_s, arrivals = random.Random(1), 0.0, []
    while at_s < seconds:
        arrivals.append(Arrival(at_s, rng.choice([60, 500, 2500]), rng.choice([20, 150, 500])))
        at_s += rng.expovariate(4.0)

    def read() -> Iterator[Arrival]:
        return iter(arrivals)

    return make_case(shipped_service("llama-2-70b"), MODEL, read, predictor=predictor)


def instance(sequences: int = 0, kv_tokens: int = 0, prefill_tokens: int = 0, step_tokens: int = 512) -> Instance:
    pool = case().pool("all", ("S", "M", "L"), 1)
    found = Instance(
        "i", "h", 1, replace(pool, limits=replace(pool.limits, step_tokens=step_tokens)), Breaker(3, 1.0, 30.0), MODEL,
        now_s=0.0,
    )  # fmt: skip
    found.sequences, found.kv_tokens, found.prefill_tokens = sequences, kv_tokens, prefill_tokens
    return found


def test_the_lowest_feasible_clock_or_the_highest() -> None:
    assert lowest(CLOCKS, lambda clock: clock >= 1200) == 1200
    assert lowest(CLOCKS, lambda clock: False) == CLOCKS[-1]
    assert Ladder(lowest_mhz=1400).clocks(case())[0] == 1400
    assert Ladder(tp=4, share=0.8).plan(case(), 56) == {("all", 4): 11}
    assert Ladder(tp=8).plan(case(), 4) == {("all", 8): 1}


def test_first_tokens_come_in_order_and_sooner_at_a_higher_clock() -> None:
    prompts = [Due(600, 1.0), Due(100, 1.0), Due(2000, 2.0)]
    slow, fast = (first_tokens_s(instance(20, 20_000), clock, prompts) for clock in (1000, 1980))
    assert slow == sorted(slow) and all(a > b for a, b in zip(slow, fast, strict=True))
    alone = first_tokens_s(instance(1, 0, 300), 1980, [Due(300, 1.0)])
    assert alone == [pytest.approx(MODEL.prefill_s(8, 1980, 300))]


def test_a_step_is_longest_with_a_whole_chunk() -> None:
    busy = instance(32, 40_000)
    assert step_s(busy, 1400, 0) == pytest.approx(MODEL.decode_step_s(8, 1400, 32, 40_000))
    assert step_s(busy, 1400, 10_000) == pytest.approx(MODEL.step_s(8, 1400, 480, 32, 40_000))


def test_retail_heeds_every_deadline_and_not_only_the_first() -> None:
    options, busy = retail.Options(), instance(12, 12_000, 1500)
    relaxed, tight = [Due(500, 3.0), Due(1000, 3.0)], [Due(500, 3.0), Due(1000, 0.2)]
    assert retail.in_time(busy, 1200, relaxed, 0.0, options, 0.1)
    assert not retail.in_time(busy, 1200, tight, 0.0, options, 0.1)
    assert retail.in_time(busy, 1980, tight, 0.0, options, 0.1)


def test_throttllem_reckons_with_the_kv_cache_at_its_end() -> None:
    assert throttllem.keeps(instance(64, 60_000), 1000, [], 0.0, 0.1)
    assert not throttllem.keeps(instance(64, 1_300_000), 1000, [], 0.0, 0.1)


def test_voltana_fills_up_to_a_boundary_before_it_crosses_one() -> None:
    bounds = [40, 80, 120]
    assert [voltana.boundary(bounds, batch) for batch in (0, 40, 41, 500)] == [40, 40, 80, 120]
    assert voltana.caps(bounds, [39, 10], spare=4) == [40, 40]  # 31 places are left beneath the boundaries
    assert voltana.caps(bounds, [40, 38], spare=4) == [40, 80]  # only 2: the emptier one may cross
    assert voltana.caps(bounds, [120, 120], spare=4) == [120, 120]


@given(st.lists(st.integers(0, 120), min_size=1, max_size=12))
def test_voltana_never_takes_places_away_from_what_runs(batches: list[int]) -> None:
    assert all(cap >= batch for cap, batch in zip(voltana.caps([40, 80, 120], batches, 4), batches, strict=True))


def test_pegasus_jumps_up_and_creeps_down() -> None:
    def moved(ratio: float | None) -> int:
        return pegasus.moved(1500, ratio, 800, 1980)

    assert moved(1.1) == 1980 and moved(0.9) == 1500 and moved(None) == 1500
    assert moved(0.8) == 1485 and moved(0.5) == 1455
    assert pegasus.moved(805, 0.1, 800, 1980) == 800


def test_pegasus_reads_only_the_window() -> None:
    sketch = Sketch()
    sketch.add(5.0, 100)
    before = dict(sketch.counts)
    sketch.add(0.1, 10)
    assert pegasus.since(before, sketch.counts).quantile(0.99) == pytest.approx(0.1, rel=0.003)


def test_an_autoscaler_follows_kubernetes_rule() -> None:
    assert autoscale.recommended(10, 5.4, 0.5, 99) == 10  # within 10 % of the target
    assert autoscale.recommended(10, 7.1, 0.5, 99) == 15
    assert autoscale.recommended(2, 30.0, 0.5, 99) == 6 and autoscale.recommended(8, 30.0, 0.5, 99) == 16
    assert autoscale.recommended(8, 30.0, 0.5, 9) == 9 and autoscale.recommended(3, 0.0, 0.5, 9) == 1


def test_an_autoscaler_waits_before_it_follows_down() -> None:
    calm = autoscale.Calm(6)
    assert [calm.after(now_s, 2) for now_s in (15.0, 300.0, 301.0)] == [6, 6, 2]


def test_ecofaas_moves_instances_between_neighbouring_pools() -> None:
    assert ecofaas.shift(free=[3, 0], sizes=[5, 2], spare=1) == (0, 1)
    assert ecofaas.shift(free=[0, 3], sizes=[5, 4], spare=1) == (1, 0)
    assert ecofaas.shift(free=[1, 1], sizes=[4, 3], spare=1) is None
    assert ecofaas.shift(free=[0, 0], sizes=[1, 2], spare=1) is None  # the slowest pool keeps one


def test_static_plans_leave_out_what_holds_no_batch() -> None:
    assert not static_best.fits(case(), 2) and static_best.fits(case(), 4)


def test_work_is_a_share_of_full_batches() -> None:
    whole = case()
    work = work_of(whole, 8, 1980)
    assert 0 < work.prompt_s < work.output_s
    assert work_of(whole, 8, 1200).output_s > work.output_s
    total = sum(work.of(a.input_tokens, a.output_tokens) for a in whole.open_trace())
    assert first_work(whole, work, 120.0) == pytest.approx(total / 120.0, rel=0.02)


def test_epochs_hold_the_peak_of_each_predicted_class() -> None:
    whole, work = case(predictor="0.6"), Work(1.0, 0.0)
    found = epochs(whole, work, 60.0, 10.0)
    assert [epoch.start_s for epoch in found[:2]] == [0.0, 60.0]
    rates = [[0.0] * 9 for _ in range(13)]
    for at_s, place, weight in classed(whole, work):
        rates[int(at_s // 10)][place] += weight / 10
    for place in range(9):
        assert found[0].peak_work[place] == pytest.approx(max(row[place] for row in rates[:6]))


def test_a_shape_leaves_room_for_a_batch() -> None:
    whole = case()
    for tp in (4, 8):
        for clock in CLOCKS[1:]:
            shape = whole.shape(tp, clock)
            assert shape.slots >= LEAST_BATCH or shape.step_tokens == 256
    assert whole.shape(8, 1980, 512).step_tokens == 512


def test_both_traces_chose_settings_for_the_same_baselines() -> None:
    known = {policy.name for policy in POLICIES}
    assert set(CHOSEN) == set(SWEPT_ON) and set(CHOSEN["code"]) == set(CHOSEN["conversation"])
    assert set(CHOSEN["code"]) == known - {"singlepool", "multipool", "static-best", "joulegate"}


def test_a_number_of_pools_ends_with_the_largest_class() -> None:
    assert dynamollm.spread(1) == ("LL",) and dynamollm.spread(3) == ("SL", "ML", "LL")
    assert dynamollm.spread(16) == CLASSES
