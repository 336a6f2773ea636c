"""More or fewer requests than the trace has, and parts of it. Timestamps are never multiplied: that would change the
burstiness that the trace is there to show.

`scaled` by k: k copies of the trace, each shifted whole by a seeded uniform(-30, 30) s; a fraction is one more copy,
thinned.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter

from simulator.trace import Arrival

JITTER_S = 30.0
OpenTrace = Callable[[], Iterable[Arrival]]  # from its start, each time it is called


def scaled(open_trace: OpenTrace, factor: float, seed: int) -> Iterator[Arrival]:
    """Reads the trace once per copy, so that memory does not grow. The first arrival is second 0."""
    if not factor > 0 or math.isinf(factor):
        raise ValueError(f"the scale must be a positive number, not {factor:g}")
    rng = random.Random(f"scale {seed}")
    whole = math.floor(factor + 1e-9)
    copies: list[tuple[Arrival, Iterator[Arrival], float]] = []
    for number in range(math.ceil(factor - 1e-9)):
        shift_s = rng.uniform(-JITTER_S, JITTER_S)
        whole_copy = open_trace()
        copy = iter(whole_copy if number < whole else thinned(whole_copy, factor - whole, seed))
        if (first := next(copy, None)) is not None:
            copies.append((first, copy, shift_s))
    start_s = min((first.at_s + shift_s for first, _, shift_s in copies), default=0.0)
    shifted = [_shifted(chain((first,), copy), shift_s - start_s) for first, copy, shift_s in copies]
    return heapq.merge(*shifted, key=attrgetter("at_s"))


def thinned(arrivals: Iterable[Arrival], share: float, seed: int) -> Iterator[Arrival]:
    """Each request stays with probability `share`."""
    rng = random.Random(f"thin {seed}")
    return (arrival for arrival in arrivals if rng.random() < share)


def sliced(arrivals: Iterable[Arrival], start_s: float, length_s: float) -> Iterator[Arrival]:
    """Those in [start, start + length), counted from its start. Reads no further than it must."""
    for arrival in arrivals:
        if arrival.at_s >= start_s + length_s:
            return
        if arrival.at_s >= start_s:
            yield (
                arrival
                if start_s == 0
                else Arrival(arrival.at_s - start_s, arrival.input_tokens, arrival.output_tokens)
            )


def _shifted(arrivals: Iterable[Arrival], shift_s: float) -> Iterator[Arrival]:
    return (Arrival(a.at_s + shift_s, a.input_tokens, a.output_tokens) for a in arrivals)
