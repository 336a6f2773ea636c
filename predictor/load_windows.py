"""The load as it was measured: a fast average, the open minute and the last half hour in minutes.

Owns the shape of a load's vectors and the split of an observation at whole minutes of Unix time. Refuses to predict.
A vector has 27 values: for each of the nine classes, in the order of (input size, output size), requests, input tokens
and output tokens, here all per second."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from core.service import CLASSES
from predictor.load_surge import SURGE_S, excess

CLASS_COUNT = len(CLASSES)
QUANTITIES = 3  # requests, input tokens, output tokens
SERIES = CLASS_COUNT * QUANTITIES
MINUTE_S = 60.0
MINUTES_KEPT = 30
FAST_S = 30.0  # time constant: six ticks of 5 s; a shorter one mostly repeats Poisson noise
GAP_S = 120.0  # after a silence this long nothing says when its requests came
Vector = tuple[float, ...]
Array = NDArray[np.float64]
Counts = Sequence[Sequence[float]]
NOTHING: Vector = (0.0,) * SERIES


class Windows(Struct, frozen=True):
    """`fast`: rates over the last FAST_S or so. `open_counts` of the `open_s` observed seconds of the running minute.
    `minutes`: rates of the last whole minutes, oldest first, of which the last `fresh` came after a jump of the load.
    `at_s` is the end of the last observation, None before the first. `surges`: of the same minutes, prompt tokens/s in
    their busiest ten seconds; `surge` of the running one, of whose last `ten_s` seconds nothing is said yet."""

    at_s: float | None = None
    heard_s: float = 0.0
    fast: Vector = NOTHING
    open_counts: Vector = NOTHING
    open_s: float = 0.0
    minutes: tuple[Vector, ...] = ()
    fresh: int = 0
    surges: tuple[float, ...] = ()
    surge: float = 0.0
    ten_tokens: float = 0.0
    ten_s: float = 0.0

    def add(self, end_s: float, counts: Array) -> Windows:
        """`counts` of the time since `at_s`, all of it in one minute."""
        took_s = end_s - (self.at_s or 0.0)
        heard_s = self.heard_s + took_s
        # The plain mean until FAST_S have passed: the first observation alone is no level.
        weight = max(-math.expm1(-took_s / FAST_S), took_s / heard_s)
        old = np.array(self.fast)
        fast = old + weight * (counts / took_s - old)
        opened = np.array(self.open_counts) + counts
        surge, tokens, ten_s = self.surge, self.ten_tokens + float(counts[1::QUANTITIES].sum()), self.ten_s + took_s
        if ten_s >= SURGE_S - 1e-6:
            surge, tokens, ten_s = max(surge, tokens / ten_s), 0.0, 0.0
        return structs.replace(
            self,
            at_s=end_s,
            heard_s=min(heard_s, 1e6),
            fast=tuple(fast.tolist()),
            open_counts=tuple(opened.tolist()),
            open_s=self.open_s + took_s,
            surge=surge,
            ten_tokens=tokens,
            ten_s=ten_s,
        )

    def close(self) -> Windows:
        """Ends the running minute. One of which less than half was observed says too little and is dropped."""
        if self.open_s < MINUTE_S / 2:
            return structs.replace(self, open_counts=NOTHING, open_s=0.0, surge=0.0, ten_tokens=0.0, ten_s=0.0)
        rates = tuple(count / self.open_s for count in self.open_counts)
        minutes = (*self.minutes, rates)[-MINUTES_KEPT:]
        fresh = min(self.fresh + 1, len(minutes))
        surges = (*self.surges, max(self.surge, sum(rates[1::QUANTITIES])))[-len(minutes) :]
        return structs.replace(
            self, minutes=minutes, fresh=fresh, open_counts=NOTHING, open_s=0.0,
            surges=surges, surge=0.0, ten_tokens=0.0, ten_s=0.0,
        )  # fmt: skip

    def excess(self) -> float:
        """Prompt tokens/s that a surge may bring on top of the mean, by what the kept minutes brought."""
        kept = self.minutes[-len(self.surges) :] if self.surges else ()
        return excess([sum(minute[1::QUANTITIES]) for minute in kept], self.surges)

    def recent(self, minutes: int) -> Array:
        """Mean rates of the last `minutes` whole minutes, or of as many as there are since the last jump."""
        known = self.minutes[-min(minutes, self.fresh) :] if self.fresh else ()
        return np.mean(np.array(known), axis=0) if known else np.array(self.fast)


def as_array(counts: Counts) -> Array:
    """Nine rows of three numbers, finite and not negative; ValueError otherwise."""
    array = np.asarray(counts, dtype=np.float64)
    if array.shape != (CLASS_COUNT, QUANTITIES) or not np.isfinite(array).all() or (array < 0).any():
        raise ValueError(f"counts must be {CLASS_COUNT} rows of {QUANTITIES} finite numbers, none negative")
    return array.reshape(SERIES)


def pieces(start_s: float, end_s: float, counts: Array) -> Iterator[tuple[float, Array, bool]]:
    """An observation cut at whole minutes, counts spread evenly: (end of the piece, counts, whether a minute ends)."""
    at_s = start_s
    while at_s < end_s:
        minute_end_s = (math.floor(at_s / MINUTE_S) + 1) * MINUTE_S
        until_s = min(minute_end_s, end_s)
        share = (until_s - at_s) / (end_s - start_s)
        yield until_s, counts if share == 1 else counts * share, until_s == minute_end_s
        at_s = until_s


def with_total(vector: Array) -> Array:
    """(10, 3): the nine classes and their sum."""
    rows = vector.reshape(CLASS_COUNT, QUANTITIES)
    return np.vstack((rows, rows.sum(axis=0)))
