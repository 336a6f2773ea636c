"""The usual day: one for working days, one for weekends, in slots of five minutes.

Owns the days and how a new one changes them. Refuses to follow the level of today, which is the forecast's part. Each
slot is the mean of its first three days, then a moving one, so that a habit that changes is learnt within a week."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct, structs

from predictor.load_windows import Array, Vector

SLOT_S = 300.0
DAY_S = 86_400.0
SLOTS = int(DAY_S / SLOT_S)
LEAST_WEIGHT = 0.3  # of the newest day: the last five working days make up 83 % of a slot
TRUST_WEIGHT = 1 / 120  # of a forecast, one every five minutes
Day = tuple[Vector | None, ...]
UNKNOWN: Day = (None,) * SLOTS
UNSEEN = (0,) * SLOTS


class Trust(Struct, frozen=True):
    """How much the usual day's shape counts beside a plain recent average: each in inverse proportion to its mean
    square error (Bates and Granger, 1969), relative to the load, over the last ten hours or so. Half each at first."""

    shaped: float = 0.01
    recent: float = 0.01

    @property
    def share(self) -> float:
        return self.recent / (self.shaped + self.recent)

    def learn(self, shaped: float, recent: float, came: float) -> Trust:
        """What either foretold, and what came."""
        off = [((said - came) / max(came, said, 1e-9)) ** 2 for said in (shaped, recent)]
        olds = (self.shaped, self.recent)
        return Trust(*(max(1e-6, old + TRUST_WEIGHT * (new - old)) for old, new in zip(olds, off, strict=True)))


class Template(Struct, frozen=True):
    """`days`: working day, weekend. `seen` counts the days that each slot has learnt of."""

    days: tuple[Day, Day] = (UNKNOWN, UNKNOWN)
    seen: tuple[tuple[int, ...], tuple[int, ...]] = (UNSEEN, UNSEEN)

    def learn(self, start_s: float, rates: Array) -> Template:
        """`start_s`: local time at which the slot began. `rates`: its means."""
        kind, slot = place(start_s)
        old, seen = self.days[kind][slot], self.seen[kind][slot] + 1
        if old is not None:
            known = np.array(old)
            rates = known + max(LEAST_WEIGHT, 1 / seen) * (rates - known)
        day, counts = self.days[kind], self.seen[kind]
        day = (*day[:slot], tuple(rates.tolist()), *day[slot + 1 :])
        counts = (*counts[:slot], min(seen, 1000), *counts[slot + 1 :])
        if kind:
            return structs.replace(self, days=(self.days[0], day), seen=(self.seen[0], counts))
        return structs.replace(self, days=(day, self.days[1]), seen=(counts, self.seen[1]))

    def slot(self, at_s: float) -> Vector | None:
        """The usual rates at a local time. A kind of day never seen borrows the shape of the other."""
        kind, slot = place(at_s)
        own = self.days[kind][slot]
        return self.days[1 - kind][slot] if own is None else own

    def mean(self, start_s: float, length_s: float) -> Array | None:
        """The usual mean rates of [start, start + length); None where a part of it is not known."""
        total, at_s, end_s = None, start_s, start_s + length_s
        while at_s < end_s:
            until_s = min(end_s, (math.floor(at_s / SLOT_S) + 1) * SLOT_S)
            rates = self.slot(at_s)
            if rates is None:
                return None
            part = np.array(rates) * ((until_s - at_s) / length_s)
            total = part if total is None else total + part
            at_s = until_s
        return total


def place(local_s: float) -> tuple[int, int]:
    """(0 for Monday to Friday or 1, slot of the day). Second 0 of Unix time was a Thursday."""
    day = math.floor(local_s / DAY_S)
    return int((day + 3) % 7 >= 5), min(SLOTS - 1, int((local_s - day * DAY_S) / SLOT_S))
