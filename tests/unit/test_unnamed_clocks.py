"""Clocks of instances that no plan names, or that drain: the cheapest for what they carry, like everybody's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.clock_prices import Alone, ClockPrice, alone
from controller.clocking import set_clocks
from controller.clocks import finishing_mhz
from controller.knowledge import Settings
from controller.loads import Load, from_each_on
from controller.planning import ServicePlan, Target, make_plan
from controller.pressure import Standing
from controller.problem import Kind
from controller.state import ServiceState
from controller.trust import Doubt
from core.instances import Seen, SeenInstance, SeenPool, SetClock, State
from tests.unit.test_planning import NAME, SPEC, ask, asked

KNOWN = asked(5.0).knowledge
PRICES = tuple(
    ClockPrice(mhz, needs, (0.5, 1.0), (watts, 1.3 * watts), 100.0)
    for mhz, needs, watts in ((800, 4.0, 300.0), (1200, 2.0, 400.0), (1980, 1.0, 900.0))
)
TARGET = Target(Kind(NAME, "long", "H100", 4), 2, 1200, PRICES)
PLAN = ServicePlan(0.0, (TARGET,), (0.0, 0.0, 0.0), 1.0, 1.0, 1.0, "dp", alone=(Alone(2, PRICES), Alone(4, PRICES)))
POOLS = tuple(SeenPool(NAME, pool.name, 1, 2, 0, True) for pool in SPEC.pools)
SURE = Doubt({})
FULL = {pool.name: 1 << 20 for pool in SPEC.pools}  # KV tokens at the last look: more than now
START = ServiceState(plan=PLAN, kv_tokens=FULL)


def instance(name: str, pool: str, tp: int, mhz: int, sequences: int = 0, state: State = State.READY) -> SeenInstance:
    return SeenInstance(name, NAME, pool, tp, state, sequences, 0.0, clock_mhz=mhz, sequences=sequences,
                        kv_tokens=500 * sequences, clock_knob=True)  # fmt: skip


def turned(*there: SeenInstance, one: ServiceState = START, doubt: Doubt = SURE) -> dict[str, int]:
    seen = Seen(1000.0, POOLS, there, wall_s=1000.0)
    _, actions = set_clocks(one, seen, KNOWN, Settings(), doubt)
    return {a.instance_id: a.clock_mhz for a in actions if isinstance(a, SetClock)}


NAMED = (instance("a", "long", 4, 1200, 20), instance("b", "long", 4, 1200, 20))


def test_who_is_not_in_the_plan_slows_down_to_what_it_carries() -> None:
    """Where nothing was planned, what there is counts as what was planned."""
    beside = instance("x", "short", 2, 1980)
    assert turned(*NAMED, beside)["x"] == 1200, "a third of the instances carries a third: one step down"
    assert turned(*NAMED, replace(beside, clock_mhz=1200)).get("x", 1200) == 1200
    assert "x" not in turned(*NAMED, beside, doubt=Doubt({"queue of short": 99.0}, pools=frozenset({"short"})))


def test_who_carries_everything_runs_as_fast_as_that_needs() -> None:
    idle = tuple(replace(i, sequences=0) for i in NAMED)
    assert turned(*idle, instance("x", "short", 2, 1200, 30))["x"] == 1980, "all sequences are its own"
    assert turned(instance("x", "short", 2, 1200, 30))["x"] == 1980, "what the plan names has not come yet"
    two = (instance("x", "short", 2, 1980, 9), instance("y", "short", 2, 1980, 9))
    assert turned(*idle, *two) == {"x": 1200, "y": 1200}


def test_a_boost_reaches_who_serves_the_pool() -> None:
    late = replace(START, standings={"short": Standing(1, 0.0, 1e9, "late")}, clocks_s=1000.0)
    there = (*NAMED, instance("x", "short", 2, 800), instance("y", "medium", 2, 800))
    assert turned(*there, one=late) == {"x": 1980}
    later = replace(late, standings={"short": Standing(2, 0.0, 1e9, "late")})
    assert turned(*there, one=later) == {"a": 1980, "b": 1980, "x": 1980}, "from spill on also where its requests go"
    assert turned(*there, one=replace(late, standings={})) == {}, "it is not time yet"


def test_a_tp_without_a_price_keeps_its_clock() -> None:
    assert "x" not in turned(*NAMED, instance("x", "short", 8, 1980))


def test_one_that_drains_ends_with_the_fewest_joules() -> None:
    model = KNOWN.model
    assert model is not None
    leaving = instance("x", "short", 2, max(model.clocks_mhz), 12, State.DRAINING)
    costs = {
        mhz: model.decode_step_s(2, mhz, 12, 6000) * model.watts(2, mhz, 12) for mhz in model.clocks_mhz
    }  # fmt: skip
    best = min(costs, key=costs.__getitem__)
    assert best < max(model.clocks_mhz)
    assert turned(*NAMED, leaving)["x"] == best
    assert "x" not in turned(*NAMED, replace(leaving, prefill_tokens=100)), "somebody waits for a first token"
    assert "x" not in turned(*NAMED, replace(leaving, sequences=0))
    harmed = replace(START, standings={"short": Standing(1, 0.0, 1e9, "late")})
    assert turned(*NAMED, replace(leaving, clock_mhz=best), one=harmed)["x"] == max(model.clocks_mhz)


def test_an_end_is_no_slower_than_its_requests_bear() -> None:
    model = KNOWN.model
    assert model is not None
    leaving = instance("x", "short", 2, max(model.clocks_mhz), 12, State.DRAINING)
    between = model.decode_step_s(2, 1800, 12, 6000)
    assert finishing_mhz(model, replace(leaving, tbt_limit_s=between)) >= 1800
    assert finishing_mhz(model, replace(leaving, tbt_limit_s=1e-9)) == max(model.clocks_mhz)


def test_a_plan_prices_what_it_does_not_name() -> None:
    found = make_plan(ask(8.0, 8, 8))[NAME]
    tps = {one.tp for one in found.alone}
    assert tps >= {target.kind.tp for target in found.targets}
    model = KNOWN.model
    assert model is not None and len(tps) > 1 and tps <= set(model.points)
    for one in found.alone:
        needs = [price.needs for price in one.clocks]
        assert needs == sorted(needs, reverse=True), "the faster the fewer"
        assert one.part == 1 / needs[-1]
    assert alone((), 1.0, 100.0) == ()
    assert [pool for pool, _ in found.from_pool] == ["short", "medium", "long"]
    assert found.from_pool[0][1] == 1.0 and found.from_pool[1][1] == pytest.approx(2 / 3), "all classes alike"


def test_longer_pools_are_asked_for_what_they_bring_most_of() -> None:
    few = Load("SS", 8.0, 10.0, 5.0, 1.0), Load("LL", 2.0, 90.0, 500.0, 1.0)
    assert from_each_on({"short": few[:1], "long": few[1:]}, ["short", "medium", "long"]) == (
        ("short", 1.0), ("medium", pytest.approx(1000 / 1040)), ("long", pytest.approx(1000 / 1040)),
    )  # fmt: skip
    assert from_each_on({}, ["short"]) == (("short", 0.0),)
