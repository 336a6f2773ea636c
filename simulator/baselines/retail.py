"""Per-request deadlines set the clock: the lowest one at which every request that has come still meets its own.

Source: Chen et al., ReTail (HPCA 2022): a linear model foretells each request's service time from a few features; the
lowest clock is chosen at which every queued request meets its deadline. It serves requests one at a time and knows no
tokens; adapted: the service time of a request that waits is its chunked prefill behind those ahead of it, and once it
decodes its deadline is the TBT objective of every step. Requests are not reordered. Left open and swept: TP and number
of instances, the lowest clock. At their defaults: the share of the time left that the model may use up, and whether the
next prompt's chunk is reckoned with before it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pools.instance import Instance
from simulator.baselines.clocks import Clocked, Due, Ladder, dues, first_tokens_s, lowest, step_s
from simulator.baselines.plant import run_plant
from simulator.case import Case
from simulator.member import Member
from simulator.policies import Say
from simulator.run import Ran


@dataclass(frozen=True, slots=True)
class Options:
    ladder: Ladder = field(default_factory=Ladder)
    margin: float = 0.9
    ahead: bool = True  # a whole chunk of the next prompt counts beside those who decode


def in_time(
    instance: Instance, clock_mhz: int, prompts: Sequence[Due], now_s: float, options: Options, tbt_s: float
) -> bool:  # fmt: skip
    beside = instance.step_tokens if options.ahead else instance.prefill_tokens
    if instance.sequences > len(prompts) and step_s(instance, clock_mhz, beside) > options.margin * tbt_s:
        return False
    times = first_tokens_s(instance, clock_mhz, prompts)
    return all(time_s <= options.margin * (p.deadline_s - now_s) for time_s, p in zip(times, prompts, strict=True))


class Retail(Clocked):
    def __init__(self, case: Case, gpus: int, options: Options) -> None:
        super().__init__(case, gpus, options.ladder)
        self.options = options

    def choose(self, member: Member, now_s: float) -> int:
        instance, prompts = member.instance, dues(member)
        return lowest(self.clocks, lambda clock: in_time(instance, clock, prompts, now_s, self.options, self.tbt_s))


def run(case: Case, gpus: int, say: Say, options: Options = Options()) -> Ran:
    return run_plant(case, gpus, Retail(case, gpus, options))
