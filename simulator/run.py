"""One simulated run: builds the world, lets the controller's own loop drive it to the end, and checks the books.

Owns the wiring and what must balance at the end; the figures made of it are the report's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from controller.knowledge import Knowledge
from controller.loop import Answers, Controller
from controller.planning import Ask, ServicePlan, make_plan
from controller.state import planned_state
from core.instances import Shape
from core.recorder import NullRecorder, Recorder
from core.request import Outcome
from core.service import ServiceSpec
from profiles.engine_model import EngineModel
from simulator.clock import SimClock, run_simulated
from simulator.cluster import Costs, SimCluster, Switches
from simulator.faults import NO_FAULTS, Blurred, Faults, Luck, Met, PlanLost
from simulator.lengths import Lengths
from simulator.member import EnergyOfInstance
from simulator.power import GpuSeconds, PowerMeter
from simulator.request_life import MOVES_OFF, Door, PoolOf, RequestLife, pool_by_output
from simulator.sequence import EngineCounters
from simulator.step_costs import CostBook
from simulator.tally import Tally
from simulator.timeline import Timeline
from simulator.trace import Arrival
from simulator.world import World

Disturb = Callable[[World, SimCluster], None]  # schedules faults and whatever else a story needs
Driver = Callable[[World, SimCluster, Tally], None]  # schedules its own ticks; what it does not change stays
TICK_S = 5.0


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a run depends on besides its trace; the same setup and trace give the same run. `driver` decides
    instead of the controller that serves. `first`: as what the instances of a pool are READY at second 0."""

    spec: ServiceSpec
    model: EngineModel
    gpus: int
    costs: Costs
    lengths: Callable[[], Lengths]
    door: Door = field(default_factory=Door)
    pool_of: PoolOf = pool_by_output
    seed: int = 0
    tick_s: float = TICK_S
    driver: Driver | None = None
    first: Mapping[str, Sequence[Shape]] = field(default_factory=dict)
    knowledge: Knowledge | None = None  # None: the controller holds every pool at its configured number of instances
    first_plan: ServicePlan | None = None  # READY at second 0, as history would have it
    faults: Faults = NO_FAULTS
    moves: str = MOVES_OFF  # which answers go on at another instance (request_life.MOVES)
    plan: Callable[[Ask], Answers] = make_plan  # for experiments: a plan made otherwise than the controller makes it
    weighs: bool = False  # the output size is chosen by expected joules, as live; baselines take the likely one


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that has ended. Seconds count from the first arrival."""

    setup: Setup
    duration_s: float
    tally: Tally
    energy: tuple[EnergyOfInstance, ...]
    meter: PowerMeter
    gpu_s: GpuSeconds
    switches: Switches
    counters: EngineCounters
    in_flight: int
    happened: int
    timeline: Timeline | None = None
    met: Met = field(default_factory=Met)

    @property
    def bare_j(self) -> float:
        return self.gpu_s.bare * self.setup.costs.bare_w

    @property
    def joules(self) -> float:
        """What instances and bare GPUs drew; given-back GPUs draw nothing here."""
        return sum(one.total_j for one in self.energy) + self.bare_j

    @property
    def owned_joules(self) -> float:
        """As if the operator owned every GPU: given-back ones draw as bare ones."""
        return self.joules + self.gpu_s.given_back * self.setup.costs.bare_w

    def by_cause(self) -> dict[str, float]:
        return {
            "prefill": sum(one.prefill_j for one in self.energy),
            "decode": sum(one.decode_j for one in self.energy),
            "idle": sum(one.idle_j for one in self.energy) + self.bare_j,
            "switching": sum(one.switching_j for one in self.energy),
        }


@dataclass(slots=True)
class Failures:
    """Passes rows on, and keeps the first failure that was not injected: a later one never hides it."""

    told: Recorder
    first: str = ""

    def record(self, row: Mapping[str, object]) -> None:
        error = str(row.get("error", ""))
        if row["kind"] in ("tick_failed", "plan_failed") and not error.startswith(PlanLost.__name__):
            self.first = self.first or error
        self.told.record(row)


class BooksDoNotBalance(AssertionError):
    """A simulated quantity appeared or vanished: a fault of the simulator, never of what it simulates."""


def simulate(
    setup: Setup,
    trace: Iterable[Arrival],
    *,
    disturb: Disturb = lambda world, cluster: None,
    hopeless: Callable[[Tally], bool] | None = None,
    recorder: Recorder | None = None,
    timeline: Timeline | None = None,
) -> Ran:
    """Runs to the last completion. `hopeless` is asked after each miss and ends the run early when it says so."""
    world = World()

    def missed(size_class: int) -> None:
        if hopeless is not None and hopeless(tally):
            world.over = True

    tally, luck = Tally(setup.spec, missed), Luck(setup.faults, setup.seed)
    life = RequestLife(
        setup.spec, world, tally, setup.lengths(), setup.door, setup.seed, setup.pool_of, setup.weighs,
        setup.model.front_s, setup.moves,
    )  # fmt: skip
    cluster = SimCluster(
        setup.spec, life.router, CostBook(setup.model), tally.gaps, world, setup.gpus, setup.costs,
        life.progressed, life.lost, luck,
    )  # fmt: skip
    clock = SimClock(world)
    knowledge, failures = setup.knowledge or Knowledge(), Failures(recorder or NullRecorder())

    async def solved(ask: Ask) -> Answers:
        if not luck.plan_comes():
            raise PlanLost("no plan in time")
        return setup.plan(ask)

    controller = Controller(
        Blurred(cluster, luck), clock, failures, interval_s=setup.tick_s, knowledge=lambda: knowledge,
        solve=solved, inline=True, taped=recorder is not None,
    )  # fmt: skip
    if setup.first_plan is not None:
        controller.state = planned_state(setup.spec.name, setup.first_plan)
    cluster.start_ready(setup.first)
    if timeline is not None:
        timeline.attach(world, cluster)
    disturb(world, cluster)
    luck.kill(world, cluster)
    if setup.driver is not None:
        setup.driver(world, cluster, tally)
    life.begin(iter(trace), cluster)
    run_simulated(controller.run() if setup.driver is None else clock.sleep_until(math.inf))
    if failures.first:
        raise RuntimeError(f"a tick failed: {failures.first}")
    cluster.meter.until(world.now_s)
    cluster.stock.until(world.now_s)
    ran = Ran(
        setup, world.now_s, tally, tuple(cluster.energy()), cluster.meter, cluster.stock.seconds, cluster.switches,
        cluster.counters(), len(life.flights), world.happened, timeline, luck.met,
    )  # fmt: skip
    if not ran.in_flight:
        check_books(ran)
    return ran


def check_books(ran: Ran) -> None:
    """One outcome per request, every token accounted for, energy by cause = by instance = the integral of watts."""
    wrong = list(_wrong(ran))
    if wrong:
        raise BooksDoNotBalance("; ".join(wrong))


def _wrong(ran: Ran) -> Iterator[str]:
    tally, counters = ran.tally, ran.counters
    if sum(tally.outcomes.values()) != tally.total_arrived:
        yield f"{tally.total_arrived} requests arrived, {sum(tally.outcomes.values())} ended"
    if sum(one.attained + one.missed for one in tally.classes) != tally.total_arrived:
        yield "a request is neither attained nor missed, or both"
    out = tally.output_tokens + tally.cut_tokens
    if counters.generation_tokens != out:
        yield f"engines generated {counters.generation_tokens} tokens, requests got {out}"
    if counters.prompt_tokens != tally.prompt_tokens:
        yield f"engines took {counters.prompt_tokens} prompt tokens, requests brought {tally.prompt_tokens}"
    gaps, firsts = tally.gaps.pooled().count, tally.ttft().count
    if not tally.outcomes[Outcome.CUT] and gaps != counters.generation_tokens - firsts:
        yield f"{counters.generation_tokens} tokens and {firsts} first ones, but {gaps} gaps"
    by_cause = sum(ran.by_cause().values())
    for name, joules in (
        ("by cause", by_cause),
        ("integral of watts", ran.meter.joules),
        ("bins", sum(ran.meter.per_bin_j)),
    ):
        if abs(joules - ran.joules) > 1e-6 * max(1.0, ran.joules):
            yield f"energy {name} is {joules:.3f} J, by instance {ran.joules:.3f} J"
