"""Watts over time and GPUs by what becomes of them. Owns the integral of the cluster's watts, kept apart from what the
instances count themselves, so that the two can be compared at the end.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass


class PowerMeter:
    """Takes changes in order of time. `per_bin_j` are the joules of each bin of `bin_s` from second 0 on."""

    def __init__(self, bin_s: float = 1.0) -> None:
        self.bin_s = bin_s
        self.watts = 0.0
        self.joules = 0.0
        self.per_bin_j = array("d", [0.0])
        self._at_s = 0.0
        self._bin_ends_s = bin_s

    def change(self, now_s: float, added_w: float) -> None:
        self.until(now_s)
        self.watts += added_w

    def until(self, now_s: float) -> None:
        at_s, watts = self._at_s, self.watts
        if now_s <= at_s:
            return
        self.joules += watts * (now_s - at_s)
        while now_s > self._bin_ends_s:
            self.per_bin_j[-1] += watts * (self._bin_ends_s - at_s)
            at_s = self._bin_ends_s
            self.per_bin_j.append(0.0)
            self._bin_ends_s += self.bin_s
        self.per_bin_j[-1] += watts * (now_s - at_s)
        self._at_s = now_s

    def watts_quantile(self, q: float) -> float:
        """Nearest rank over the mean watts of whole bins."""
        whole = sorted(self.per_bin_j[:-1] or self.per_bin_j)
        return whole[max(1, math.ceil(q * len(whole))) - 1] / self.bin_s

    def share_above(self, watts: float) -> float:
        """Of the time: bins whose mean lies above `watts`."""
        return sum(joules > watts * self.bin_s for joules in self.per_bin_j) / len(self.per_bin_j)


@dataclass(slots=True)
class GpuSeconds:
    """Integrals over time. `held` are GPUs in an instance or bare; the rest is given back."""

    held: float = 0.0
    bare: float = 0.0
    given_back: float = 0.0


class GpuStock:
    """GPUs of the cluster: in instances, held bare, or given back, which takes minutes to undo."""

    def __init__(self, total: int, bare_w: float, meter: PowerMeter) -> None:
        self.total = total
        self.bare_w = bare_w  # of one GPU without a context
        self.used = 0
        self.bare = 0
        self.reserved = 0  # spoken for by instances that will start
        self.seconds = GpuSeconds()
        self._meter = meter
        self._at_s = 0.0

    def reserve(self, gpus: int) -> bool:
        """False: the cluster has not that many left."""
        if self.used + self.reserved + gpus > self.total:
            return False
        self.reserved += gpus
        return True

    def at_hand(self, gpus: int) -> bool:
        """Whether `gpus` are held bare; otherwise some have to come back first."""
        return self.bare >= gpus

    def unreserve(self, gpus: int) -> None:
        self.reserved -= gpus

    def use(self, gpus: int, now_s: float) -> None:
        """Reserved ones become an instance's."""
        self.until(now_s)
        self.reserved -= gpus
        self.used += gpus
        self._hold(max(0, self.bare - gpus), now_s)

    def put(self, gpus: int, now_s: float, *, keep: bool) -> None:
        """From an instance that ended: kept bare or given back."""
        self.until(now_s)
        self.used -= gpus
        if keep:
            self._hold(self.bare + gpus, now_s)

    def give_back(self, gpus: int, now_s: float) -> None:
        """As many of the bare ones as there are."""
        self.until(now_s)
        self._hold(max(0, self.bare - gpus), now_s)

    def until(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        if passed_s > 0:
            self.seconds.held += (self.used + self.bare) * passed_s
            self.seconds.bare += self.bare * passed_s
            self.seconds.given_back += (self.total - self.used - self.bare) * passed_s
            self._at_s = now_s

    def _hold(self, bare: int, now_s: float) -> None:
        self._meter.change(now_s, (bare - self.bare) * self.bare_w)
        self.bare = bare
