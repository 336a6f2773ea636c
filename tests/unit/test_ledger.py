"""The ledger's books: what a counter that is older than its instance is worth, counters that fall silent, bare GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from core.instances import State
from gateway.ledger import Ledger
from gateway.ledger_store import JOULES, Batch
from pools.clocks import ClockRefused
from pools.counters import BARE, Counted, GpuCounters
from pools.stints import Bill, Ended
from profiles.engine_model import load_engine_model

MODEL = load_engine_model("llama-3.1-8b")


class Hand:
    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return 1_800_000_000.0 + self.at_s


class Told:
    """Counters that say what the test says; None: they cannot be read."""

    quality: Any = "measured"

    def __init__(self, hand: Hand, *, from_zero: bool = True) -> None:
        self.from_zero = from_zero
        self.hand = hand
        self.says: dict[str, Counted] | None = {}

    def covers(self, instance: Any) -> bool:
        return True

    async def read(self, instances: Sequence[Any]) -> dict[str, Counted]:
        return self.says or {}


class World:
    def __init__(self, state: State = State.READY, since_s: float = 0.0) -> None:
        self.hand = Hand()
        self.told = Told(self.hand)
        self.rows = Batch()
        self.instance = SimpleNamespace(
            id="i", pool="all", tp=1, clock_mhz=1980, step_tokens=2048, state=state, since_s=since_s, sequences=1,
            adopted=False,
        )  # fmt: skip
        pool = SimpleNamespace(tp=1, clock_mhz=1980)
        spec = SimpleNamespace(name="svc", pools=(pool,))
        self.fleet: Any = SimpleNamespace(
            members={"i": SimpleNamespace(instance=self.instance)}, spec=spec, model=MODEL
        )
        store: Any = SimpleNamespace(write=lambda batch, wall_s: self.rows.take(batch))
        self.ledger = Ledger(lambda: [self.fleet], [self.told], self.hand, store)  # type: ignore[arg-type]

    def read(self, joules: float | None, age_s: float = 1e9, seconds: float = 1.0) -> None:
        self.hand.at_s += seconds
        counted = None if joules is None else {"i": Counted(self.hand.at_s, {"engine i": joules}, 1.0, age_s)}
        self.told.says = counted
        work = self.ledger.read()
        with pytest.raises(StopIteration):
            work.send(None)
        self.ledger.flush(0.0)

    def sums(self) -> dict[str, float]:
        return {name: sum(row[at] for row in self.rows.windows.values()) for at, name in enumerate(JOULES)}


def test_a_counter_older_than_the_instance_is_known_begins_with_its_first_reading() -> None:
    world = World()
    world.read(5e6, age_s=40_000.0)
    assert world.sums()["meter_j"] == 0
    world.read(5e6 + MODEL.idle_w, age_s=40_001.0)
    assert world.sums()["meter_j"] == pytest.approx(MODEL.idle_w) and world.sums()["residual_j"] == pytest.approx(0)


def test_a_counter_that_began_with_its_instance_tells_what_the_start_has_cost() -> None:
    world = World(State.STARTING, since_s=995.0)
    world.read(300.0, age_s=4.0)
    assert world.sums()["meter_j"] == 300 and world.sums()["starting_j"] == pytest.approx(300)


def test_a_start_that_was_guessed_is_told_by_the_counter_that_began_with_it() -> None:
    """Nobody can read it while weights load: the model stands in after half a minute, and is taken out again."""
    world = World(State.STARTING, since_s=1000.0)
    for _ in range(4):
        world.read(None, seconds=20.0)
    guessed_j = world.sums()["filled_j"]
    assert guessed_j == pytest.approx(80 * MODEL.idle_w)
    world.instance.state, world.instance.since_s = State.READY, 1085.0
    world.read(9000.0, age_s=89.0, seconds=10.0)
    sums = world.sums()
    assert sums["meter_j"] == 9000 and sums["filled_j"] == pytest.approx(0, abs=1e-6)
    assert sums["starting_j"] == pytest.approx(9000) and sums["residual_j"] == 0


def test_a_request_before_the_first_reading_is_not_billed_what_the_start_was_guessed_to_cost() -> None:
    world = World(State.STARTING, since_s=1000.0)
    for _ in range(4):
        world.read(None, seconds=20.0)
    world.instance.state, world.instance.since_s = State.READY, 1085.0
    stint = world.ledger.begin(Bill("r", "ann", "svc", "SS"), world.fleet, world.instance, 100, 1, 1086.0)  # type: ignore[arg-type]
    stint.first_s = 1087.0
    world.read(89 * MODEL.idle_w + 1000.0, age_s=89.0, seconds=10.0)
    sums = world.sums()
    assert sums["filled_j"] == pytest.approx(0, abs=1e-6) and 0 < sums["prefill_j"] + sums["decode_j"] < 2000
    assert sums["residual_j"] == pytest.approx(0, abs=1e-6)
    assert sums["starting_j"] == pytest.approx(sums["meter_j"] - sums["prefill_j"] - sums["decode_j"])


def test_what_a_counter_cannot_tell_stays_as_it_was_guessed() -> None:
    """It began before the instance was known here, so that its first value says nothing of the time until then."""
    world = World()
    world.read(None)
    world.read(None, seconds=40.0)
    world.read(5e6, age_s=40_000.0, seconds=10.0)
    world.read(5e6 + MODEL.idle_w, age_s=40_001.0)
    assert world.sums()["filled_j"] == pytest.approx(40 * MODEL.idle_w)
    assert world.sums()["meter_j"] == pytest.approx(MODEL.idle_w) and world.sums()["residual_j"] == pytest.approx(0)


def test_silence_is_waited_out_then_filled_by_the_model_and_taken_out_again() -> None:
    world = World()
    world.read(0.0, age_s=0.0)
    for _ in range(10):
        world.read(None)
    assert world.sums()["filled_j"] == 0  # the counter will tell of this time
    world.read(None, seconds=40.0)
    assert world.sums()["filled_j"] == pytest.approx(50 * MODEL.idle_w)
    world.read(51 * MODEL.idle_w, seconds=1.0)
    assert world.sums()["filled_j"] == pytest.approx(0, abs=1e-6)
    assert world.sums()["idle_j"] == pytest.approx(51 * MODEL.idle_w)


def test_a_bill_closes_when_its_last_stint_is_counted_and_says_how_it_is_known() -> None:
    world, closed = World(), list[Bill]()
    world.ledger.on_settled = closed.append
    world.read(0.0, age_s=0.0)
    bill = Bill("r", "ann", "svc", "SS")
    stint = world.ledger.begin(bill, world.fleet, world.instance, 100, 1, world.hand.at_s)  # type: ignore[arg-type]
    stint.first_s = world.hand.at_s + 0.1
    assert world.ledger.quality(stint) == "attributed"
    assert world.ledger.estimate(stint, world.hand.at_s + 0.5) > 0
    stint.end_s = world.hand.at_s + 0.5
    world.ledger.finished(bill, Ended(1.0, "all", "completed", 100, 20, True))
    assert not closed
    world.read(200.0)
    assert closed == [bill] and bill.open == 0 and 0 < bill.joules < 200 and not bill.modelled
    (row,) = world.rows.requests
    assert row[0] == "r" and row[-1] == "attributed" and row[9] + row[10] == pytest.approx(bill.joules)  # type: ignore[operator]
    assert world.ledger.foretell(world.fleet, 100, 20) > 0


def test_an_instance_that_is_gone_closes_its_bills_by_the_model() -> None:
    world, closed = World(), list[Bill]()
    world.ledger.on_settled = closed.append
    world.read(0.0, age_s=0.0)
    bill = Bill("r", "ann", "svc", "SS")
    stint = world.ledger.begin(bill, world.fleet, world.instance, 100, 1, world.hand.at_s)  # type: ignore[arg-type]
    stint.first_s = world.hand.at_s + 0.1
    stint.end_s = world.hand.at_s + 0.9
    world.ledger.finished(bill, Ended(1.0, "all", "cut", 100, 0, False))
    world.fleet.members.clear()
    world.read(None)
    assert closed == [bill] and bill.modelled and bill.joules > 0 and world.sums()["filled_j"] > 0


class Agent:
    def __init__(self) -> None:
        self.joules = {"gpu-0": 100.0, "gpu-1": 50.0}
        self.gone = False

    async def readings(self, uuids: Sequence[str]) -> dict[str, Any]:
        if self.gone:
            raise ClockRefused("no answer", code="agent_unreachable")
        return {"gpus": [{"uuid": uuid, "energy_j": joules} for uuid, joules in self.joules.items()]}


def counted(counters: GpuCounters, *instances: Any) -> dict[str, Counted]:
    with pytest.raises(StopIteration) as done:
        counters.read(instances).send(None)
    value: dict[str, Counted] = done.value.value
    return value


def test_gpus_of_nobody_are_read_too_and_an_agent_that_is_gone_tells_nothing() -> None:
    agent, one = Agent(), SimpleNamespace(id="i")
    counters = GpuCounters(agent, lambda instance: ("gpu-0",), Hand())  # type: ignore[arg-type]
    found = counted(counters, one)
    assert found["i"].parts == {"gpu-0": 100.0} and found[BARE].parts == {"gpu-1": 50.0}
    assert counters.covers(one)  # type: ignore[arg-type]
    agent.gone = True
    assert counted(counters, one) == {}


def test_watts_tell_how_old_the_oldest_reading_is() -> None:
    world = World()
    world.read(None)
    assert world.ledger.metered("svc") is None, "no counter was ever read"
    world.read(100.0)
    world.read(400.0)
    assert world.ledger.metered("svc") == (pytest.approx(300.0), "measured", 0.0)
    world.read(None, seconds=7.0)
    watts = world.ledger.metered("svc")
    assert watts is not None and watts[2] == 7.0
    assert world.ledger.metered("another") is None
