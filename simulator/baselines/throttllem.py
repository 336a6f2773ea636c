"""The lowest clock at which the batch, its KV cache projected to the end of its answers, keeps every objective.

Source: Kakolyris et al., throttLL'eM (HPCA 2025, arXiv 2408.05235): answer lengths are predicted, KV use and batch are
projected over the coming iterations, a model of iterations per second is asked for the lowest clock that keeps the
SLOs, requests are admitted if the highest clock would keep them, and the engine's size follows the load. Adapted: the
engine model stands for the gradient-boosted one; KV is projected with the 90th percentile of each predicted length;
its TTFT objective is the class's; the size of the service is its number of instances instead of their TP. Left open and
swept: TP, lowest clock, the autoscaler's target and the holding of GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pools.instance import Instance
from simulator.baselines import autoscale
from simulator.baselines.clocks import Clocked, Due, Ladder, dues, first_tokens_s, lowest, step_s
from simulator.baselines.plant import run_plant
from simulator.case import Case
from simulator.member import Member
from simulator.policies import Say
from simulator.run import Ran


@dataclass(frozen=True, slots=True)
class Options:
    ladder: Ladder = field(default_factory=Ladder)
    scaling: autoscale.Options = field(default_factory=autoscale.Options)


def keeps(instance: Instance, clock_mhz: int, prompts: Sequence[Due], now_s: float, tbt_s: float) -> bool:
    """`instance.kv_tokens` is the projection: prompts and answers at their 90th percentile, all held at once. A whole
    chunk is assumed to come beside those who decode, since the next request will bring one."""
    if instance.sequences > len(prompts) and step_s(instance, clock_mhz, instance.step_tokens) > tbt_s:
        return False
    times = first_tokens_s(instance, clock_mhz, prompts)
    return all(time_s <= prompt.deadline_s - now_s for time_s, prompt in zip(times, prompts, strict=True))


class ThrottLLeM(Clocked):
    def __init__(self, case: Case, gpus: int, options: Options) -> None:
        super().__init__(case, gpus, options.ladder)
        self._scaler = autoscale.Scaler(case, gpus, replace(options.scaling, tp=options.ladder.tp))
        self._key = ("all", case.known_tp(options.ladder.tp))
        self.hold_s = options.scaling.hold_s
        self.wanted = {self._key: self._scaler.count}

    def choose(self, member: Member, now_s: float) -> int:
        instance, prompts = member.instance, dues(member)
        return lowest(self.clocks, lambda clock: keeps(instance, clock, prompts, now_s, self.tbt_s))

    def decide(self, now_s: float) -> None:
        super().decide(now_s)
        self.wanted[self._key] = self._scaler.after(now_s, self.cluster.counts.seen())


def run(case: Case, gpus: int, say: Say, options: Options = Options()) -> Ran:
    return run_plant(case, gpus, ThrottLLeM(case, gpus, options))
