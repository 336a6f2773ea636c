"""Tells a jump of the load from its noise, minute by minute.

Owns a two-sided CUSUM (Page, 1954) over the requests of all classes: each minute is compared with the average before
it, in units of the noise that minutes have shown. Allowance 0.5 and threshold 6 standard deviations; a jump is also at
least a fifth of the load, so that the slow rise of a busy morning, large against Poisson noise, does not count, and
lasts two minutes, so that a burst does not."""

from __future__ import annotations

import math

from msgspec import Struct

ALLOWANCE = 0.5
THRESHOLD = 6.0
MOST = 2 * THRESHOLD  # a burst is forgotten within a dozen quiet minutes
LEAST_CHANGE = 0.2
DISPERSION = 2.0  # variance / mean of a minute's count before any was seen; a Poisson process has 1
WEIGHT = 0.05  # of a minute in the dispersion, once twenty were seen; before that they count alike
LASTS = 2  # minutes that a jump is seen before it is believed
MOST_SURPRISE = 16.0  # times the dispersion: one jump must not pass for noise ever after


class Drift(Struct, frozen=True):
    up: float = 0.0
    down: float = 0.0
    dispersion: float = DISPERSION
    minutes: int = 1  # in the dispersion, the assumed one among them
    above: int = 0  # minutes in a row that were a fifth above the average; negative: below

    def judge(self, count: float, before: float) -> tuple[Drift, bool]:
        """`count`: requests of the minute; `before`: what the average of the minutes before it lets expect. True: the
        load has jumped, and minutes before the last LASTS say nothing of what comes."""
        expected = max(before, 1.0)
        off = count - before
        square = min(off * off / expected, MOST_SURPRISE * self.dispersion)
        surprise = off / math.sqrt(self.dispersion * expected)
        minutes = min(self.minutes + 1, round(1 / WEIGHT))
        dispersion = max(1.0, self.dispersion + (square - self.dispersion) / minutes)
        side = 0 if abs(off) <= LEAST_CHANGE * expected else 1 if off > 0 else -1
        above = side + (self.above if self.above * side > 0 else 0)
        up = max(0.0, self.up + surprise - ALLOWANCE)
        down = max(0.0, self.down - surprise - ALLOWANCE)
        if abs(above) >= LASTS and (up if above > 0 else down) > THRESHOLD:
            return Drift(dispersion=dispersion, minutes=minutes), True
        return Drift(min(up, MOST), min(down, MOST), dispersion, minutes, above), False
