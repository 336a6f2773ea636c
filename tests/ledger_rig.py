"""The ledger on a simulated cluster whose physics it does not know: requests come, instances die, park, restart, answers
move, counters restart, and what is booked can be compared with what was spent.

Simulated time, the router and instances that serve, and the real ledger; only the engines and their counters are stood in
for. The truth is the cluster's own integral of watts, which the ledger never sees."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import SimpleNamespace
from typing import Any

from core.errors import Overloaded
from core.request import Outcome
from core.service import InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from gateway.ledger import Ledger
from gateway.ledger_store import JOULES, WINDOW_S, Batch
from pools.counters import Counted
from pools.instance import Instance
from pools.stints import Bill, Ended, Stint
from profiles.engine_model import EngineModel, load_engine_model
from simulator.cluster import SimCluster, costs_of
from simulator.lengths import Oracle
from simulator.member import Member
from simulator.request_life import Door, Flight, RequestLife
from simulator.sequence import Seq
from simulator.step_costs import CostBook
from simulator.tally import Tally
from simulator.trace import Arrival
from simulator.world import SimulationOver, World

WALL_S = 1_800_000_000.0
EDGE_S = 2.0


def perturbed(model: EngineModel, share: float, rng: random.Random) -> EngineModel:
    """Every constant of power and time off by up to `share`, each by its own draw of plus or minus."""

    def off() -> float:
        return 1 + share * rng.choice((-1, 1))

    points = {}
    for tp, point in model.points.items():
        power, pace, prompt = off(), off(), off()
        points[tp] = replace(
            point, watts_base_w=point.watts_base_w * power, watts_per_doubling_w=point.watts_per_doubling_w * off(),
            watts_cap_w=point.watts_cap_w * power, decode_knots_s=tuple(s * pace for s in point.decode_knots_s),
            prefill_per_token_s=point.prefill_per_token_s * prompt, prefill_base_s=point.prefill_base_s * prompt,
        )  # fmt: skip
    return replace(
        model, points=points, idle_w=model.idle_w * off(), parked_w=model.parked_w * off(),
        prefill_watts_base_w=model.prefill_watts_base_w * off(),
    )  # fmt: skip


class SimTime:
    def __init__(self, world: World) -> None:
        self.world = world

    def now_s(self) -> float:
        return self.world.now_s

    def wall_s(self) -> float:
        return WALL_S + self.world.now_s


class SimCounters:
    """An energy counter per instance, as an engine has one: it begins at zero with it, and now and then restarts."""

    quality: Any = "measured"
    from_zero = True

    def __init__(self, cluster: SimCluster, world: World) -> None:
        self.cluster = cluster
        self.world = world
        self.zero_at: dict[str, tuple[float, float]] = {}  # by instance: joules and moment of its last restart
        self.silent_until_s = 0.0

    def covers(self, instance: Instance) -> bool:
        return True

    def reset(self, instance_id: str) -> None:
        joules = self.cluster.members[instance_id].energy(self.world.now_s).total_j
        self.zero_at[instance_id] = (joules, self.world.now_s)

    async def read(self, instances: Sequence[Instance]) -> dict[str, Counted]:
        now_s, found = self.world.now_s, {}
        for one in instances if now_s >= self.silent_until_s else ():
            member = self.cluster.members.get(one.id)
            if member is None or member.held_from_s is None or one.state.value in ("failed", "stopped"):
                continue
            joules, since_s = self.zero_at.get(one.id, (0.0, member.held_from_s))
            spent_j = member.energy(now_s).total_j - joules
            found[one.id] = Counted(now_s, {f"engine {one.id}": spent_j}, 1.0, now_s - since_s)
        return found


class Life(RequestLife):
    """Requests with bills. An answer whose instance dies goes on elsewhere, on the same bill."""

    def attach(self, ledger: Ledger, fleet: Any, rng: random.Random) -> None:
        self.ledger = ledger
        self.fleet = fleet
        self.rng = rng
        self.stints: dict[Flight, Stint] = {}
        self.bills: dict[Flight, Bill] = {}
        self.done: list[Bill] = []
        self.moved: set[str] = set()

    def _runs(self, flight: Flight, slot: Any) -> None:
        super()._runs(flight, slot)
        bill = self.bills.setdefault(flight, Bill(flight.ask.request_id, self.rng.choice("abc"), "svc", "MM"))
        tokens = flight.arrival.input_tokens
        self.stints[flight] = self.ledger.begin(bill, self.fleet, slot.instance, tokens, 1, self._world.now_s)

    def progressed(self, member: Member, firsts: list[Seq], finished: list[Seq]) -> None:
        for seq in firsts:
            assert isinstance(seq.owner, Flight)
            self.stints[seq.owner].first_s = self._world.now_s
        super().progressed(member, firsts, finished)

    def _leaves(self, flight: Flight) -> None:
        seq = flight.seq
        assert seq is not None
        self._over(flight, seq.end, attained=True)
        super()._leaves(flight)

    def _over(self, flight: Flight, tokens: int, *, attained: bool) -> None:
        self.stints.pop(flight).end_s = self._world.now_s
        bill = self.bills.pop(flight)
        outcome = Outcome.COMPLETED.value if attained else Outcome.CUT.value
        ended = Ended(WALL_S + self._world.now_s, "all", outcome, flight.arrival.input_tokens, tokens, attained)
        self.ledger.finished(bill, ended)
        self.done.append(bill)

    def _lost(self, flight: Flight, member: Member) -> None:
        """As the gateway: whatever is lost goes on elsewhere with what was said before as its prompt."""
        seq, slot = flight.seq, flight.slot
        assert seq is not None and slot is not None
        out = member.engine.generated(seq, self._world.now_s) if member.engine is not None else seq.generated
        slot.release()
        bill = self.bills.pop(flight)
        self.moved.add(bill.request_id)
        self.stints.pop(flight).end_s = self._world.now_s
        del self.flights[flight]
        rest = Arrival(self._world.now_s, flight.arrival.input_tokens + out, max(1, flight.arrival.output_tokens - out))
        ask, _, length = self._ask(rest, flight.size_class, self._world.now_s)
        again = Flight(rest, flight.size_class, flight.predicted, ask, length)
        self.flights[again] = None
        self.bills[again] = bill
        try:
            self._submit(again, {member.instance.id: inf})
        except Overloaded:
            raise AssertionError("the rig has room for everybody") from None


@dataclass
class Told:
    """What a run came to. Joules as spent, by second, and as booked, by WINDOW_S; `bills` of finished requests."""

    seconds: int
    spent_j: list[float]
    booked: list[list[float]]  # as JOULES
    bills: list[Bill]
    moved: int
    resets: int
    starts: int
    factors: dict[tuple[str, int, int], tuple[float, float, float]]
    accounts_j: float
    rows_j: float

    def shares(self, window_s: int = 600) -> list[float]:
        """Of every whole window: booked on lines that are not the residual / spent - 1."""
        columns = [JOULES.index(name) for name in JOULES[2:8]]
        lines = [sum(row[at] for at in columns) for row in self.booked]
        found = []
        rows, width = window_s // int(WINDOW_S), int(WINDOW_S)
        for begin in range(self.seconds // width - rows + 1):
            spent = sum(self.spent_j[begin * width : begin * width + window_s])
            found.append(sum(lines[begin : begin + rows]) / spent - 1)
        return found

    def total(self, name: str) -> float:
        at = JOULES.index(name)
        return sum(row[at] for row in self.booked)

    def foretold(self, from_s: int) -> float:
        """Error of the unscaled model after `from_s` seconds of learning."""
        expected, judged = (JOULES.index(name) for name in ("expected_j", "judged_j"))
        rows = self.booked[int(from_s / WINDOW_S) :]
        return sum(row[expected] for row in rows) / sum(row[judged] for row in rows) - 1


@dataclass
class Rig:
    seed: int
    seconds: int = 1800
    share: float = 0.1
    rps: float = 4.0
    instances: int = 3
    faults: bool = True
    booked: list[list[float]] = field(default_factory=list)

    def run(self) -> Told:
        rng = random.Random(self.seed)
        self.booked = [[0.0] * len(JOULES) for _ in range(int(self.seconds / WINDOW_S) + 2)]
        model = load_engine_model("llama-3.1-8b")
        physics = perturbed(model, self.share, rng)
        world = World()
        pool = PoolSpec("all", ("S", "M", "L"), self.instances, 1, 1980, InstanceLimits(64, 0, 2048))
        spec = ServiceSpec(
            "svc", "m", 16_384, Slo(), _edges(), (pool,), LauncherSpec("emulated"), profile="llama-3.1-8b"
        )
        tally = Tally(spec)
        life = Life(spec, world, tally, Oracle(spec.edges), Door(max_queue=100_000, max_wait_s=1e6), self.seed)
        costs = replace(costs_of(physics, spec.slo.tbt_s), start_s=20.0, back_after_s=5.0)
        cluster = SimCluster(
            spec, life.router, CostBook(physics), tally.gaps, world, 8, costs, life.progressed, life.lost
        )  # fmt: skip
        counters = SimCounters(cluster, world)
        fleet: Any = SimpleNamespace(members=cluster.members, spec=spec, model=model)
        rows: list[tuple[Any, ...]] = []
        accounts: list[float] = []
        store: Any = SimpleNamespace(write=lambda batch, wall_s: self._take(batch, rows, accounts))
        ledger = Ledger(lambda: [fleet], [counters], SimTime(world), store)  # type: ignore[arg-type]
        life.attach(ledger, fleet, rng)
        cluster.start_ready({})
        self._schedule(world, cluster, counters, ledger, rng)
        life.begin(iter(self._trace(rng)), cluster)
        try:
            world.run_until(self.seconds + EDGE_S, lambda: False)
        except SimulationOver:
            raise AssertionError("the trace ended before the run") from None
        cluster.meter.until(world.now_s)
        closed = [bill for bill in life.done if bill.open == 0]
        return Told(
            self.seconds, list(cluster.meter.per_bin_j), self.booked, closed, len(life.moved), ledger.odometers.resets,
            cluster.switches.starts, ledger.factors(), sum(accounts), sum(row[9] + row[10] for row in rows),
        )  # fmt: skip

    def _take(self, batch: Batch, rows: list[tuple[Any, ...]], accounts: list[float]) -> None:
        rows += batch.requests
        accounts += [sums[0] + sums[1] for sums in batch.accounts.values()]
        for (begin_s, *_), row in batch.windows.items():
            place = round((begin_s - WALL_S) / WINDOW_S)
            self.booked[place] = [a + b for a, b in zip(self.booked[place], row, strict=True)]

    def _trace(self, rng: random.Random) -> list[Arrival]:
        found, at_s = [], 0.0
        while at_s < self.seconds + 60:
            busy = 1.0 + 0.8 * ((at_s // 300) % 2)  # five quiet minutes, five busy ones
            at_s += rng.expovariate(self.rps * busy)
            found.append(Arrival(at_s, rng.randint(20, 3000), rng.randint(1, 500)))
        return found

    def _schedule(
        self, world: World, cluster: SimCluster, counters: SimCounters, ledger: Ledger, rng: random.Random
    ) -> None:
        def read() -> None:
            _finish(ledger.read())
            ledger.flush(WALL_S + world.now_s)
            cluster.end_drained()
            world.at(world.now_s + 1.0, read)

        def fault() -> None:
            live = [one for one in cluster.members.values() if one.instance.state.value == "ready"]
            if len(live) > 1:
                self._harm(
                    rng.choice(("kill", "drain", "reset", "park", "silence")),
                    rng.choice(live),
                    world,
                    cluster,
                    counters,
                )
            world.at(world.now_s + rng.uniform(20, 60), fault)

        world.at(1.0, read)
        if self.faults:
            world.at(30.0, fault)

    def _harm(self, what: str, member: Member, world: World, cluster: SimCluster, counters: SimCounters) -> None:
        one = member.instance
        if what == "reset":
            counters.reset(one.id)
        elif what == "silence":
            counters.silent_until_s = world.now_s + 12.0
        elif what == "park" and not one.requests:
            cluster.park(one.id, "a story")
            world.at(world.now_s + 25.0, lambda: cluster.wake(one.id, "a story"))
        elif what == "kill":
            cluster.fail(one.id, "a story")
            world.at(world.now_s + 3.0, lambda: cluster.forget(one.id))
            cluster.start("all")
        elif what == "drain":
            cluster.drain(one.id, "a story")
            cluster.start("all")


def _edges() -> Any:
    from core.service import Edges

    return Edges()


def _finish(work: Any) -> None:
    """Runs a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits for something")
