"""One pool at the highest clock whose number of instances follows the load, as a HorizontalPodAutoscaler does it.

Source: Kubernetes documentation, Horizontal Pod Autoscaling (algorithm details and default behaviour): every 15 s
replicas = ceil(replicas x metric / target), nothing within 10 % of the target, at most doubled (or 4 more) in 15 s,
and down only to the highest recommendation of the last 300 s. It leaves open: the metric, here the work that arrives,
in instances (queries per second weighted by their tokens); its target and window; whether GPUs of ended instances are
held, the TP. Target, GPUs and TP are swept (docs/baselines.md); the window and the 300 s are not.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from core.instances import ClassCount
from simulator.baselines.load import first_work, work_done, work_of
from simulator.baselines.plant import Plant, run_plant
from simulator.case import Case
from simulator.policies import Say
from simulator.run import Ran

SYNC_S = 15.0
TOLERANCE = 0.1
CALM_S = 300.0  # before a lower recommendation is followed


@dataclass(frozen=True, slots=True)
class Options:
    tp: int = 8
    target: float = 0.5  # of an instance's work
    window_s: float = 60.0  # over which the metric is averaged
    hold_s: float = 600.0


def recommended(replicas: int, work: float, target: float, most: int) -> int:
    """`work` in instances, over all replicas."""
    ratio = work / replicas / target
    if abs(ratio - 1) <= TOLERANCE:
        return replicas
    return max(1, min(most, max(2 * replicas, replicas + 4), math.ceil(work / target)))


class Calm:
    """Follows the highest recommendation of the last CALM_S, the `first` count being one."""

    def __init__(self, first: int) -> None:
        self._said: deque[tuple[float, int]] = deque([(0.0, first)])

    def after(self, now_s: float, count: int) -> int:
        while self._said and self._said[0][0] < now_s - CALM_S:
            self._said.popleft()
        self._said.append((now_s, count))
        return max(said for _, said in self._said)


class Scaler:
    """How many instances of one pool at the highest clock; `options` is an autoscaler's."""

    def __init__(self, case: Case, gpus: int, options: Options) -> None:
        tp = case.known_tp(options.tp)
        self.most = max(1, gpus // tp)
        self.options = options
        self._work = work_of(case, tp, case.clock_mhz)
        first = math.ceil(first_work(case, self._work, options.window_s) / options.target)
        self.count = max(1, min(self.most, first))
        self._calm = Calm(self.count)
        self._seen: deque[tuple[float, float]] = deque()

    def after(self, now_s: float, counts: tuple[ClassCount, ...]) -> int:
        """May be asked at any time; what it says changes every SYNC_S."""
        if self._seen and now_s < self._seen[-1][0] + SYNC_S:
            return self.count
        window_s = self.options.window_s
        self._seen.append((now_s, work_done(self._work, counts)))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - window_s:
            self._seen.popleft()
        (since_s, before), (_, here) = self._seen[0], self._seen[-1]
        if now_s - since_s >= window_s:
            wanted = recommended(self.count, (here - before) / (now_s - since_s), self.options.target, self.most)
            self.count = max(wanted, min(self.count, self._calm.after(now_s, wanted)))
        return self.count


class Autoscaled(Plant):
    def __init__(self, case: Case, gpus: int, options: Options) -> None:
        tp = case.known_tp(options.tp)
        shape = case.shape(tp, case.clock_mhz)
        self._scaler = Scaler(case, gpus, options)
        self._key = ("all", tp)
        super().__init__({self._key: self._scaler.count}, lambda pool, size: shape, hold_s=options.hold_s)

    def decide(self, now_s: float) -> None:
        self.wanted[self._key] = self._scaler.after(now_s, self.cluster.counts.seen())


def run(case: Case, gpus: int, say: Say, options: Options = Options()) -> Ran:
    return run_plant(case, gpus, Autoscaled(case, gpus, options))
