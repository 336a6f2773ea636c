"""What a run's requests came to, by class. Owns the definitions of docs/figures.md for simulated requests: TTFT, TBT,
attained, good tokens. Memory does not grow with the trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from core.request import Outcome
from core.service import CLASSES, SIZES, ServiceSpec
from simulator.sequence import Seq
from simulator.sketch import GapSketches, Sketch
from simulator.trace import Arrival

JUDGED_FROM = 100  # requests of a class below which its attainment says nothing
PROMISED = 0.99


@dataclass(slots=True)
class ClassTally:
    arrived: int = 0
    attained: int = 0
    missed: int = 0
    good_tokens: int = 0
    ttft: Sketch = field(default_factory=Sketch)

    @property
    def attainment(self) -> float | None:
        return self.attained / self.arrived if self.arrived else None


class Tally:
    """`gaps` is filled by the engines, by class. `on_missed` is told the class's index after every miss."""

    def __init__(self, spec: ServiceSpec, on_missed: Callable[[int], None] = lambda size_class: None) -> None:
        self.classes = [ClassTally() for _ in CLASSES]
        self.gaps = GapSketches(len(CLASSES))
        self.whole = Sketch()  # seconds from arrival to the last token, of complete answers
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.prompt_tokens = 0  # of requests that were started
        self.output_tokens = 0  # of completed requests
        self.cut_tokens = 0  # generated for requests that did not complete
        self.retried = 0
        self.late_served = 0  # complete, and known to be late when an instance got them
        self.late_unforeseen = 0  # complete and missed, and an instance got them to be in time
        self.migrations = 0  # running answers that were moved to another instance
        self._edges = spec.edges
        self._ttft_limit_s = [spec.slo.ttft_s[size] for size in SIZES]
        self._on_missed = on_missed

    def class_of(self, arrival: Arrival) -> int:
        edges = self._edges
        low, high = edges.input[0], edges.input[1]
        size = 0 if arrival.input_tokens <= low else 1 if arrival.input_tokens <= high else 2
        tokens = arrival.output_tokens
        return 3 * size + (0 if tokens <= edges.output[0] else 1 if tokens <= edges.output[1] else 2)

    def ttft_limit_s(self, size_class: int) -> float:
        return self._ttft_limit_s[size_class // 3]

    def arrived(self, size_class: int) -> None:
        self.classes[size_class].arrived += 1

    def first_token(self, size_class: int, ttft_s: float) -> None:
        self.classes[size_class].ttft.add(ttft_s)

    def completed(self, size_class: int, seq: Seq, arrival: Arrival, ttft_s: float, took_s: float) -> bool:
        """Attained: the first token in time, and at most ceil(1 %) of its gaps late. A truncated answer is missed."""
        self.outcomes[Outcome.COMPLETED] += 1
        self.output_tokens += seq.end
        self.whole.add(took_s)
        tally = self.classes[size_class]
        whole = seq.end == arrival.output_tokens
        in_time = ttft_s <= self._ttft_limit_s[size_class // 3]
        attained = whole and in_time and seq.gaps_late <= math.ceil(0.01 * seq.gaps)
        if attained:
            tally.attained += 1
            tally.good_tokens += seq.end
        else:
            self._miss(size_class)
        return attained

    def not_completed(self, size_class: int, outcome: Outcome) -> None:
        self.outcomes[outcome] += 1
        self._miss(size_class)

    def _miss(self, size_class: int) -> None:
        self.classes[size_class].missed += 1
        self._on_missed(size_class)

    @property
    def good_tokens(self) -> int:
        return sum(tally.good_tokens for tally in self.classes)

    @property
    def total_arrived(self) -> int:
        return sum(tally.arrived for tally in self.classes)

    @property
    def attainment_all(self) -> float | None:
        arrived = self.total_arrived
        return sum(tally.attained for tally in self.classes) / arrived if arrived else None

    def ttft(self) -> Sketch:
        whole = Sketch()
        for tally in self.classes:
            whole.merge(tally.ttft)
        return whole

    def keeps_promise(self) -> bool:
        """Every class with at least 100 requests reaches 99 %."""
        return all(tally.attained >= PROMISED * tally.arrived for tally in self.classes if tally.arrived >= JUDGED_FROM)
