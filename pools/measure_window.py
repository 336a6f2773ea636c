"""When a window opens and closes, and whether its load was more than the instance holds. Pure: it is told the time.

ML.ENERGY's rule for closed-loop batches opens once the batch is full and closes before it drains. An open-loop load has
no full batch; what it has is Little's law: with forced lengths the number in flight stops climbing one residence time
after the load began. The same code cuts windows of the simulated and of the live target.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from pools.measure import Probe, Rule, Sample

BLOCK_S = 10.0
BLOCK_REQUESTS = 5
CLIMB_SHARE = 0.15
GROWTH_SHARE = 0.1
NOISE_SIGMAS = 2.5


def block_of(rps: float) -> tuple[int, float]:
    """(requests, seconds) of one block of arrivals, about 10 s. Doublings only: near loads share their draws."""
    doublings = max(0, round(math.log2(BLOCK_S * rps / BLOCK_REQUESTS)))
    requests = BLOCK_REQUESTS * 2**doublings
    return requests, requests / rps


def arrivals(rps: float, seed: int) -> Iterator[float]:
    """Seconds from the start, without end. Inside a block they are uniform, which is Poisson given their number.

    Fixing the number takes the noise of the rate itself out of watts and throughput (14 % of 50 requests) and keeps
    the clusters that make queues.
    """
    draw = random.Random(seed)
    requests, block_s = block_of(rps)
    start_s = 0.0
    while True:
        yield from sorted(start_s + draw.random() * block_s for _ in range(requests))
        start_s += block_s


def window_length_s(rps: float, rule: Rule) -> float:
    _, block_s = block_of(rps)
    wanted_s = max(rule.window_s, min(rule.window_max_s, rule.requests / rps))
    return max(1, round(wanted_s / block_s)) * block_s


class Watch:
    """Follows one load. The target tells it every sample and every finished request; it answers when to read the meter.

    `opened_s` and `closed_s` are set once. After the close the target still waits for the first tokens of what arrived
    inside, with the load going on."""

    def __init__(self, probe: Probe, rule: Rule, started_s: float) -> None:
        self._rule = rule
        self._rps = probe.rps
        self._window_s = window_length_s(probe.rps, rule)
        self._started_s = started_s
        self._residence_s = 0.0
        self._finished = 0
        self._samples: list[Sample] = []
        self.opened_s: float | None = None
        self.closed_s: float | None = None
        self.saturated = False
        self.reason = ""

    def finished(self, arrived_s: float, now_s: float) -> None:
        self._residence_s = now_s - arrived_s
        self._finished += 1

    def sample(self, sample: Sample, hold: bool = False) -> None:
        """`hold` keeps the window shut, up to the longest warm-up: a GPU that is still warming."""
        self._samples.append(sample)
        rule = self._rule
        if not self.saturated and sample.waiting >= max(rule.overload_waiting, rule.overload_share * sample.running):
            self._overflow(f"{sample.waiting} waiting, {sample.running} running")
        if self.opened_s is None:
            self._maybe_open(sample.at_s, hold)
        elif self.closed_s is None:
            self._maybe_close(sample.at_s)

    def inside(self) -> list[Sample]:
        opened_s, closed_s = self.opened_s or 0.0, self.closed_s or math.inf
        return [s for s in self._samples if opened_s <= s.at_s <= closed_s]

    def judge_output(self, output_tokens: int, output_length: int) -> None:
        """Throughput below the offered load: the second sign of saturation, known once the window is over."""
        if self.saturated or self.opened_s is None or self.closed_s is None:
            return
        inside = self.inside()
        offered = self._rps * (self.closed_s - self.opened_s)
        done = output_tokens / output_length
        in_flight = _mean([s.running + s.waiting for s in inside])
        behind = offered - done > max(GROWTH_SHARE * offered, NOISE_SIGMAS * math.sqrt(in_flight), 3.0)
        if behind and _mean([s.waiting for s in inside]) >= 1:
            self._overflow(f"output of {done:.1f} requests against {offered:.1f} offered")

    def _overflow(self, reason: str) -> None:
        self.saturated, self.reason = True, reason

    def _maybe_open(self, now_s: float, hold: bool) -> None:
        rule, elapsed_s = self._rule, now_s - self._started_s
        steady = (
            self._finished >= 1
            and elapsed_s >= max(rule.warm_s, rule.residences * self._residence_s)
            and not self._climbing(now_s)
        )
        if self.saturated or (steady and (not hold or elapsed_s >= rule.warm_max_s)):
            self.opened_s = now_s
        elif not steady and elapsed_s >= max(rule.warm_max_s, 2 * self._window_s):
            self._overflow(f"still climbing after {elapsed_s:.0f} s")
            self.opened_s = now_s

    def _climbing(self, now_s: float) -> bool:
        span_s = max(self._residence_s / 4, 2 * self._rule.sample_s)
        late = [s.running + s.waiting for s in self._samples if s.at_s > now_s - span_s]
        early = [s.running + s.waiting for s in self._samples if now_s - 2 * span_s < s.at_s <= now_s - span_s]
        if not early:
            return True
        before = _mean(early)
        return _mean(late) - before > max(2.0, CLIMB_SHARE * before, NOISE_SIGMAS * math.sqrt(before))

    def _maybe_close(self, now_s: float) -> None:
        elapsed_s = now_s - (self.opened_s or 0.0)
        if self.saturated and elapsed_s >= self._rule.overload_s:
            self.closed_s = now_s
        elif elapsed_s >= self._window_s - 1e-9:
            self.closed_s = now_s
            if not self.saturated:
                self._judge_queue(elapsed_s)

    def _judge_queue(self, elapsed_s: float) -> None:
        inside = self.inside()
        counts = [float(s.running + s.waiting) for s in inside]
        if self._queues(inside):
            self._overflow(f"{_mean([s.waiting for s in inside]):.1f} waiting on average")
            return
        growth = _slope([s.at_s for s in inside], counts) * elapsed_s
        allowed = max(4.0, GROWTH_SHARE * self._rps * elapsed_s, NOISE_SIGMAS * math.sqrt(_mean(counts)))
        if growth > allowed and self._queues(inside[-len(inside) // 3 :]):
            self._overflow(f"{growth:.0f} more in flight after {elapsed_s:.0f} s")

    def _queues(self, samples: list[Sample]) -> bool:
        """Whether so many wait that a little more load, or a little more time, makes a queue without end."""
        running = _mean([s.running for s in samples])
        return _mean([s.waiting for s in samples]) > max(2.0, self._rule.waiting_share * running)


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _slope(xs: list[float], ys: list[float]) -> float:
    """Least squares."""
    x0, y0 = _mean(xs), _mean(ys)
    spread = sum((x - x0) ** 2 for x in xs)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
