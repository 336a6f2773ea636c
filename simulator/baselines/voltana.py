"""A clock per phase, the lowest feasible one, and routing that does not tip an instance over a step of the clock.

Source: VoltanaLLM (arXiv 2509.04827; code Supercomputing-System-AI-Lab/VoltanaLLM): prefill and decode instances are
apart; every iteration each takes the first clock of a rising list whose predicted latency is within SLO x margin less
the time already waited, the highest while anybody waits for a batch, the lowest when idle; its router picks the decode
instance whose next batch size needs no higher clock. Adapted: one engine serves both phases here, so the clock is the
prefill one while a prompt is there and the decode one otherwise; the router is told of the boundaries as slots, one
more step of the clock when fewer than SPARE places are left beneath them. Left open and swept: TP and number of
instances, the list of clocks (its authors use two). At their defaults: the margin, and whether the next prompt's chunk
counts already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from simulator.baselines.clocks import Clocked, Ladder, dues, first_tokens_s, lowest, step_s
from simulator.baselines.plant import run_plant
from simulator.case import SLOTS_STEP, Case
from simulator.member import Member
from simulator.policies import Say
from simulator.run import Ran

SPARE = 4  # requests that may come within a tick


@dataclass(frozen=True, slots=True)
class Options:
    ladder: Ladder = field(default_factory=Ladder)
    margin: float = 0.9
    ahead: bool = True  # a whole chunk of the next prompt counts beside those who decode


def boundary(boundaries: Sequence[int], sequences: int) -> int:
    """The largest batch that needs no higher clock than `sequences` do."""
    return next((most for most in boundaries if sequences <= most), boundaries[-1])


def caps(boundaries: Sequence[int], batches: Sequence[int], spare: int) -> list[int]:
    """Places of each instance: up to its boundary, and further where that leaves fewer than `spare` free in all, the
    emptiest first."""
    found = [boundary(boundaries, batch) for batch in batches]
    order = sorted(range(len(batches)), key=lambda index: batches[index])
    for index in order:
        while sum(found) - sum(batches) < spare and found[index] < boundaries[-1]:
            found[index] = boundary(boundaries, found[index] + 1)
    return found


class Voltana(Clocked):
    def __init__(self, case: Case, gpus: int, options: Options) -> None:
        ladder = options.ladder
        super().__init__(case, gpus, ladder)
        self.limit_s = options.margin * self.tbt_s
        self.margin, self.ahead = options.margin, options.ahead
        # Batch sizes that each clock decodes in time beside a prompt's chunk, at the trace's mean context.
        shape = ladder.shape(case)
        slots = [min(shape.slots, case.limits(shape.tp, clock, shape.step_tokens).slots) for clock in self.clocks]
        self.boundaries = sorted({max(SLOTS_STEP, count) for count in slots})

    def choose(self, member: Member, now_s: float) -> int:
        instance, prompts = member.instance, dues(member)
        if not instance.sequences:
            return self.clocks[0]
        if not prompts:
            beside = instance.step_tokens if self.ahead else 0
            return lowest(self.clocks, lambda clock: step_s(instance, clock, beside) <= self.limit_s)
        if member.engine is not None and member.engine.waiting_count:
            return self.clocks[-1]

        def prefills(clock_mhz: int) -> bool:
            times = first_tokens_s(instance, clock_mhz, prompts)
            in_time = all(t <= self.margin * (p.deadline_s - now_s) for t, p in zip(times, prompts, strict=True))
            return in_time and step_s(instance, clock_mhz, instance.prefill_tokens) <= self.limit_s

        return lowest(self.clocks, prefills)

    def decide(self, now_s: float) -> None:
        super().decide(now_s)
        ready = self.ready()
        waiting = self.cluster.router.queued()
        places = caps(self.boundaries, [member.instance.sequences for member in ready], SPARE + waiting)
        for member, slots in zip(ready, places, strict=True):
            if member.instance.limits.slots != slots:
                member.instance.limits = replace(member.instance.limits, slots=slots)
        if waiting:
            self.cluster.router.pump(now_s)


def run(case: Case, gpus: int, say: Say, options: Options = Options()) -> Ran:
    return run_plant(case, gpus, Voltana(case, gpus, options))
