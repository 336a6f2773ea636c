"""Loads made to provoke thrash: a rate that jumps or climbs and falls, again and again, around one mean.

Owns the shapes and the arrivals drawn from them: a Poisson process thinned to the rate of the moment (Lewis and Shedler
1979), each arrival with the lengths of a request drawn with replacement."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from simulator.trace import Arrival

Wave = Callable[[float], float]  # of the time in seconds: the rate in times of the mean


def smooth() -> Wave:
    return lambda at_s: 1.0


def square(period_s: float, swing: float) -> Wave:
    """`swing` above the mean for half of the period, as much below it for the other."""
    return lambda at_s: 1 + swing if at_s % period_s < period_s / 2 else 1 - swing


def sawtooth(period_s: float, swing: float) -> Wave:
    """A climb over the whole period, then a fall at once."""
    return lambda at_s: 1 - swing + 2 * swing * (at_s % period_s) / period_s


def arrivals(
    wave: Wave, mean_rps: float, most: float, lengths: Sequence[Arrival], seconds: float, seed: int
) -> Iterator[Arrival]:
    """`most`: no rate of the wave is above so many times the mean."""
    rng, at_s = random.Random(f"wave {seed}"), 0.0
    while at_s < seconds:
        if rng.random() * most < wave(at_s):
            one = rng.choice(lengths)
            yield Arrival(at_s, one.input_tokens, one.output_tokens)
        at_s += rng.expovariate(most * mean_rps)
