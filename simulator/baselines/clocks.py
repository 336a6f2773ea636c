"""What the policies that only set clocks share: one pool of as many instances as singlepool has, a ladder of clocks,
what a batch would take at each of them, and a tick that sets every instance's clock. Which clock, each policy says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.instances import Shape
from pools.instance import Instance
from simulator.baselines.plant import Plan, Plant
from simulator.case import Case
from simulator.cluster import SimCluster
from simulator.member import Member
from simulator.request_life import Flight
from simulator.tally import Tally
from simulator.world import World

Feasible = Callable[[int], bool]  # clock -> whether everything is kept there


@dataclass(frozen=True, slots=True)
class Ladder:
    """What every source of this kind leaves open. `share`: of the GPUs that get an instance. `per_step`: tokens of an
    engine's step; 0: as many as suit the highest clock. `tick_s`: how often it looks, besides at every arrival."""

    tp: int = 8
    share: float = 1.0
    lowest_mhz: int = 1200
    per_step: int = 0
    tick_s: float = 0.1

    def clocks(self, case: Case) -> tuple[int, ...]:
        return tuple(clock for clock in case.model.clocks_mhz if clock >= self.lowest_mhz) or (case.clock_mhz,)

    def shape(self, case: Case) -> Shape:
        return case.shape(case.known_tp(self.tp), case.clock_mhz, self.per_step)

    def plan(self, case: Case, gpus: int) -> Plan:
        tp = case.known_tp(self.tp)
        return {("all", tp): max(1, int(gpus * self.share + 1e-9) // tp)}


def lowest(clocks: Sequence[int], feasible: Feasible) -> int:
    """The first of rising clocks that is feasible; the highest if none is."""
    return next((clock for clock in clocks[:-1] if feasible(clock)), clocks[-1])


@dataclass(frozen=True, slots=True)
class Due:
    """A prompt, or what is left of it, whose first token is due."""

    tokens: int
    deadline_s: float


def dues(member: Member) -> list[Due]:
    """Of one instance, in the order in which they are prefilled."""
    if member.engine is None or not member.instance.prefill_tokens:
        return []
    found = []
    for seq in member.engine.before_first():
        assert isinstance(seq.owner, Flight)
        found.append(Due(max(1, seq.prompt - seq.computed), seq.owner.ask.deadline_s))
    return found


def step_s(instance: Instance, clock_mhz: int, prefill_tokens: int) -> float:
    """The longest step of what it holds now, with as many of `prefill_tokens` as fit into one."""
    assert instance.model is not None
    chunk = min(max(1, instance.step_tokens - instance.sequences), prefill_tokens)
    return instance.model.step_s(instance.tp, clock_mhz, chunk, instance.sequences, instance.kv_tokens)


def first_tokens_s(instance: Instance, clock_mhz: int, prompts: Sequence[Due]) -> list[float]:
    """Seconds from now to each first token: prompts are prefilled in chunks, in order, beside those who decode. The
    step under way is over first, a whole one at worst."""
    model = instance.model
    assert model is not None
    tp, beside = instance.tp, max(0, instance.sequences - len(prompts))
    room = max(1, instance.step_tokens - beside)
    wait_s = model.decode_step_s(tp, clock_mhz, beside, instance.kv_tokens)
    full_s = model.step_s(tp, clock_mhz, room, beside, instance.kv_tokens)
    times, ahead = [], 0
    for prompt in prompts:
        ahead += prompt.tokens
        whole, rest = divmod(ahead, room)
        rest_s = model.step_s(tp, clock_mhz, rest, beside, instance.kv_tokens) if rest else 0.0
        times.append(wait_s + whole * full_s + rest_s)
    return times


class Clocked(Plant):
    """`choose` says the clock of a READY instance: when a request comes to it, which may only raise it, and at every
    tick. The router reckons with the highest clock, for that is what an instance runs at as soon as it must."""

    def __init__(self, case: Case, gpus: int, ladder: Ladder) -> None:
        shape = ladder.shape(case)
        super().__init__(ladder.plan(case, gpus), lambda pool, tp: shape, tick_s=ladder.tick_s)
        self.clocks = ladder.clocks(case)
        self.tbt_s = case.spec.slo.tbt_s

    def __call__(self, world: World, cluster: SimCluster, tally: Tally) -> None:
        super().__call__(world, cluster, tally)
        cluster.on_placed = self._placed

    def choose(self, member: Member, now_s: float) -> int:
        raise NotImplementedError

    def decide(self, now_s: float) -> None:
        crowded = self.cluster.router.queued() > 0
        for member in self.ready():
            clock_mhz = self.clocks[-1] if crowded else self.choose(member, now_s)
            self.cluster.throttle(member.instance.id, clock_mhz)

    def _placed(self, member: Member) -> None:
        if member.written_mhz < self.clocks[-1]:
            clock_mhz = self.choose(member, self.world.now_s)
            if clock_mhz > member.written_mhz:
                self.cluster.throttle(member.instance.id, clock_mhz)
