"""Columns from an engine model: inside the SLO, monotone where physics says so, and what a mix of nothing gives."""

from dataclasses import replace

import pytest

from controller.loads import Load, mixes, rate, scaled
from controller.measured_columns import columns_of_profile
from controller.pricing import Cell, capacity_for, columns_of, sequence_w
from core.service import Edges, Slo
from profiles.engine_model import load_engine_model
from profiles.query import build_index
from tests.profile_samples import sample

MODEL = load_engine_model("llama-2-70b")
TBT_S = 0.1
STEPS = {2: 256, 4: 512, 8: 1024}
SHORT = (Load("MS", 4.0, 450, 60, 0.4), Load("SS", 2.0, 180, 60, 0.25))
LONG = (Load("ML", 2.0, 900, 420, 0.4, longest_tokens=1024), Load("LL", 1.0, 1100, 430, 2.0, longest_tokens=4000))


def cell(tp: int = 4, clock_mhz: int = 1980, mix: tuple[Load, ...] = LONG, tbt_s: float = TBT_S) -> Cell:
    return Cell(MODEL, tp, clock_mhz, mix, tbt_s, STEPS[tp], 256)


def test_a_full_mixed_step_stays_within_the_tbt_limit_and_one_more_would_not() -> None:
    one = cell(clock_mhz=1200)
    context = one.context

    def step_s(running: int) -> float:
        return MODEL.step_s(4, 1200, STEPS[4] - running, running, round(running * context))

    assert 0 < one.slots < 256
    assert step_s(one.slots) <= TBT_S < step_s(one.slots + 1)


def test_tokens_balance_in_the_steady_state() -> None:
    one = cell()
    batch = one.batch(2.0)
    assert batch is not None
    busy = 2.0 * one.input_tokens * (MODEL.prefill_s(4, 1980, 8192) - MODEL.prefill_s(4, 1980, 4096)) / 4096
    step_s = MODEL.decode_step_s(4, 1980, round(batch.running), round(batch.running * one.context))
    assert batch.running * (1 - busy) / step_s == pytest.approx(2.0 * one.decoded, rel=0.03)


def test_watts_and_running_rise_with_the_rate_up_to_the_peak() -> None:
    one = cell()
    states = [one.at(rps) for rps in (0.01, 0.2, 0.8, 1.6, 2.4)]
    watts = [state.watts for state in states if state]
    assert len(watts) == 5
    assert watts == sorted(watts)
    assert MODEL.idle_w * 4 < watts[0] and watts[-1] < one.peak_w
    assert one.at(1000.0) is None


def test_more_instances_behind_one_router_carry_more_each() -> None:
    one = cell()
    each = [one.capacity(n) for n in (1, 2, 4, 8, 16)]
    assert each == sorted(each)
    assert each[0] < each[-1]


def test_a_higher_clock_never_carries_less_and_a_stricter_promise_never_more() -> None:
    by_clock = [cell(clock_mhz=mhz).capacity(4) for mhz in MODEL.clocks_mhz]
    assert by_clock == pytest.approx(sorted(by_clock), rel=2e-3)
    assert cell(tbt_s=0.07).capacity(4) <= cell().capacity(4)
    strict = tuple(replace(load, ttft_s=load.ttft_s * 0.8) for load in LONG)
    assert cell(mix=strict).capacity(4) < cell().capacity(4)


def test_what_can_not_be_promised_has_no_column() -> None:
    hopeless = (Load("LL", 1.0, 6000, 400, 0.05),)
    assert cell(mix=hopeless).capacity(4) == 0.0
    assert columns_of("s", [("long", hopeless)], MODEL, TBT_S, STEPS) == ()
    assert cell(tbt_s=0.001).slots == 0


def test_columns_name_earlier_pools_and_keep_the_level() -> None:
    columns = columns_of("s", [("short", SHORT), ("empty", ()), ("long", LONG)], MODEL, TBT_S, STEPS, levels=(0.5, 1.0))
    long = [c for c in columns if c.kind.pool == "long"]
    assert {c.kind.pool for c in columns} == {"short", "long"}
    assert all(not c.takes for c in columns if c.kind.pool == "short")
    assert any(one.pool == "short" and one.rps > c.rps for c in long for one in c.takes)
    pairs = {(c.kind, c.clock_mhz): c for c in columns if c.level == 1.0}
    half = next(c for c in columns if c.level == 0.5)
    assert half.rps == pytest.approx(pairs[half.kind, half.clock_mhz].rps / 2)
    assert half.watts < pairs[half.kind, half.clock_mhz].watts


def test_the_number_of_instances_follows_the_demand() -> None:
    few, many = capacity_for(cell(), 1.0), capacity_for(cell(mix=scaled(LONG, 20.0)), 60.0)
    assert few[1] < many[1]
    assert few[0] < many[0]


@pytest.mark.parametrize("demand_rps", [0.3, 2.0, 5.0, 20.0, 60.0])
def test_as_many_together_as_carry_the_demand_and_not_one_more(demand_rps: float) -> None:
    one = cell(clock_mhz=1200)
    capacity, together = capacity_for(one, demand_rps)
    assert capacity == one.capacity(together)
    assert capacity * together >= 0.999 * demand_rps
    assert together == 1 or one.capacity(together - 1) * (together - 1) < demand_rps


def test_a_demand_beyond_all_counting_still_has_a_price() -> None:
    assert capacity_for(cell(mix=(Load("LL", 1.0, 6000, 400, 0.05),)), 1.0)[0] == 0.0


def test_long_prompts_shut_an_instance_and_short_ones_do_not() -> None:
    long, short = (Load("LS", 1.0, 4000, 20, 2.0, input_sq=2e7),), (Load("SS", 1.0, 100, 20, 2.0, input_sq=1.2e4),)
    shut = {}
    for name, mix in (("long", long), ("short", short)):
        one = cell(mix=mix)
        batch = one.batch(0.5)
        assert batch is not None
        shut[name], left_s = one._shut(0.5, batch)
        assert 0 <= left_s < 2.0
    assert shut["short"] < 0.001 < 0.1 < shut["long"] < 0.5 * 4000 / 512 * 0.1


def test_loads_are_read_off_requests() -> None:
    requests = [(100, 50)] * 60 + [(500, 200)] * 30 + [(2000, 400)] * 9 + [(4000, 800)]
    found = mixes(requests, 50.0, Edges(), Slo(), {"quick": ("S",), "rest": ("M", "L")})
    assert rate(found["quick"]) == pytest.approx(1.2)
    assert [(load.size_class, load.ttft_s) for load in found["rest"]] == [("MM", 0.4), ("LL", 2.0)]
    longest = found["rest"][1]
    assert longest.longest_tokens == 4000
    assert longest.input_tokens == pytest.approx(2200)
    assert longest.input_sq > longest.input_tokens**2


def test_a_request_in_flight_has_its_share_of_the_largest_instance() -> None:
    assert sequence_w(MODEL) == pytest.approx(MODEL.watts(8, 1980, 256) / 256)


def test_a_measured_profile_gives_columns_at_what_it_holds() -> None:
    index = build_index(sample())
    mix = (Load("SS", 1.0, 180, 60, 0.25), Load("LL", 0.5, 3000, 600, 2.0))
    columns = columns_of_profile("s", [("all", mix)], index, Slo(), 64, levels=(0.5, 1.0))
    shares = {"SS": 1.0, "LL": 0.5}
    full = [column for column in columns if column.level == 1.0]
    assert full
    for column in full:
        capacity = index.mix_capacity(shares, column.kind.tp, column.clock_mhz, Slo())
        assert column.rps == capacity
        assert column.watts == column.peak_w
    assert columns_of_profile("s", [("all", (Load("XX", 1.0, 1, 1, 1.0),))], index, Slo(), 64) == ()
