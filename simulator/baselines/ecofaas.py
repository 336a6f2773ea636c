"""Pools of one clock each: requests move between clocks, and pools grow and shrink by whole instances.

Source: Stojkovic et al., EcoFaaS (ISCA 2024): cores are split into elastic pools that each run at one clock; a function
goes to the slowest pool that meets its deadline, and pools are resized to the load. Adapted: cores are instances,
functions are requests, and the deadline is the first token's and the TBT of every step; a request tries the pools from
the slowest clock on, for the router takes the first pool that keeps every objective. Moving an instance is one clock
write: a free one goes to the next faster pool when that has fewer than `spare` free ones, back when it has more than
one above them. Left open and swept: TP and number of instances, the clocks, the number kept free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.baselines.plant import Plant, run_plant
from simulator.case import Case
from simulator.member import Member
from simulator.policies import Say
from simulator.run import Ran


@dataclass(frozen=True, slots=True)
class Options:
    clocks_mhz: tuple[int, ...] = (1400, 1980)
    spare: int = 1
    period_s: float = 1.0
    tp: int = 8
    share: float = 1.0
    per_step: int = 0


def shift(free: Sequence[int], sizes: Sequence[int], spare: int) -> tuple[int, int] | None:
    """(from, to) of one instance between neighbouring pools, slowest first; None when the sizes are right. The fastest
    pool comes first, for it takes whatever the others cannot."""
    for faster in range(len(sizes) - 1, 0, -1):
        slower = faster - 1
        if free[faster] < spare and sizes[slower] > (1 if slower == 0 else 0):
            return slower, faster
        if free[faster] > spare + 1:
            return faster, slower
    return None


class EcoFaas(Plant):
    def __init__(self, case: Case, gpus: int, options: Options) -> None:
        # One step size for all, since instances change clocks: that of the slowest.
        tp = case.known_tp(options.tp)
        per_step = options.per_step or case.shape(tp, min(options.clocks_mhz)).step_tokens
        count, names = (
            max(1, int(gpus * options.share + 1e-9) // tp),
            [f"{clock}mhz" for clock in options.clocks_mhz],
        )
        shapes = {
            name: case.shape(tp, clock, per_step)
            for name, clock in zip(names, options.clocks_mhz, strict=True)
        }  # fmt: skip
        plan = {(name, tp): 0 for name in names}
        for index in range(count):
            plan[names[-1 - index % len(names)], tp] += 1
        super().__init__(plan, lambda pool, size: shapes[pool], tick_s=options.period_s)
        self.names, self.clocks_mhz, self.spare = (
            names,
            dict(zip(names, options.clocks_mhz, strict=True)),
            options.spare,
        )

    def decide(self, now_s: float) -> None:
        for _ in range(len(self.names)):
            members = [[m for m in self.ready() if m.instance.pool == name] for name in self.names]
            free = [sum(1 for member in pool if not member.instance.sequences) for pool in members]
            found = shift(free, [len(pool) for pool in members], self.spare)
            if found is None:
                return
            self._move(members[found[0]], self.names[found[0]], self.names[found[1]])

    def _move(self, members: list[Member], source: str, target: str) -> None:
        """The emptiest one; its requests go with it. Only free ones are ever slowed."""
        instance = min((member.instance for member in members), key=lambda one: (one.sequences, one.id))
        tp = instance.tp
        self.wanted[source, tp] -= 1
        self.wanted[target, tp] += 1
        instance.pool = target
        self.set_clocks({instance.id: self.clocks_mhz[target]})


def run(case: Case, gpus: int, say: Say, options: Options = Options()) -> Ran:
    plant = EcoFaas(case, gpus, options)
    return run_plant(case, gpus, plant, plant.names)
