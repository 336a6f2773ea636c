"""What a profile answers: watts, latency and capacity of a (load, TP, clock) at any offered load, or why it cannot.

Frozen and precomputed, so that a controller may ask thousands of times a tick. It interpolates between held loads and
between clocks of the grid, never over a saturation cliff and never outside of what was measured: there the answer is
NotFeasible with the reason. Reads no file, corrects nothing by live traffic (profiles/correction.py does).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from core.service import SIZES, Slo
from profiles.curves import LATENCIES, QUANTITIES, SLIP, Curve, Sheet, sheets
from profiles.profile import UNKNOWN, Profile

Cell = tuple[str, int, int]  # load, TP, clock in MHz
MAX_AGE_DAYS = 180
CLASS = re.compile("[SML][SML]")
NAMES = {"ttft_p99_s": "TTFT p99", "tbt_p99_s": "TBT p99"}


@dataclass(frozen=True, slots=True)
class NotFeasible:
    """The profile has no answer, or no load fits: `reason` is a sentence for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Latency limits of one load, at p99."""

    ttft_s: float = math.inf
    tbt_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Operating:
    """One instance at an offered load. What the profile does not tell is infinite (UNKNOWN) and named in `missing`.

    `origin`: measured, emulated or derived, the weakest of the rows behind the answer; an answer between two clocks,
    between idle and the lowest load, or for a mix of classes is derived.
    """

    load: str
    tp: int
    clock_mhz: float
    offered_rps: float
    watts: float
    ttft_p50_s: float
    ttft_p99_s: float
    tbt_p50_s: float
    tbt_p99_s: float
    running: float
    output_tps: float
    origin: str
    missing: tuple[str, ...] = ()

    @property
    def j_per_output_token(self) -> float:
        return self.watts / self.output_tps if self.output_tps > 0 else UNKNOWN

    @property
    def j_per_request(self) -> float:
        return self.watts / self.offered_rps if self.offered_rps > 0 else UNKNOWN

    def within(self, limits: Limits) -> bool:
        return self.ttft_p99_s <= limits.ttft_s and self.tbt_p99_s <= limits.tbt_s


Promise = Slo | Limits | Mapping[str, Limits]  # of a service, of every load alike, or load by load


def limits_of(load: str, slo: Promise) -> Limits:
    """A class takes the TTFT limit of its input size; a mix that names no class takes the strictest."""
    if isinstance(slo, Limits):
        return slo
    if isinstance(slo, Mapping):
        return slo[load]
    if CLASS.fullmatch(load) and load[0] in slo.ttft_s:
        return Limits(slo.ttft_s[load[0]], slo.tbt_s)
    return Limits(min(slo.ttft_s.values(), default=math.inf), slo.tbt_s)


@dataclass(frozen=True, slots=True)
class ProfileIndex:
    """Make it with build_index. `slack` of a query divides the limits: live latency over profiled, times the margin."""

    profile: Profile
    sheets: Mapping[tuple[str, int], Sheet]

    @property
    def loads(self) -> tuple[str, ...]:
        """Classes in the order SS, SM ... LL, then other names."""
        order = {first + second: i for i, (first, second) in enumerate((a, b) for a in SIZES for b in SIZES)}
        return tuple(sorted({load for load, _ in self.sheets}, key=lambda load: (order.get(load, 99), load)))

    @property
    def tps(self) -> tuple[int, ...]:
        return tuple(sorted({tp for _, tp in self.sheets}))

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every (load, TP, clock) that holds some load."""
        return tuple((*key, clock) for key, sheet in sorted(self.sheets.items()) for clock in sheet.clocks_mhz)

    def clocks_mhz(self, load: str, tp: int) -> tuple[int, ...]:
        sheet = self.sheets.get((load, tp))
        return sheet.clocks_mhz if sheet else ()

    def curve(self, load: str, tp: int, clock_mhz: float) -> Curve | NotFeasible:
        sheet = self.sheets.get((load, tp))
        if sheet is None:
            known = ", ".join(f"{name} TP{size}" for name, size in sorted(self.sheets)) or "nothing"
            return NotFeasible(f"{load} TP{tp} is not in the profile, which has {known}")
        found = sheet.curves.get(int(clock_mhz)) if clock_mhz == int(clock_mhz) else None
        return found or sheet.between(clock_mhz) or self._no_curve(load, tp, clock_mhz, sheet)

    def _no_curve(self, load: str, tp: int, clock_mhz: float, sheet: Sheet) -> NotFeasible:
        where = f"{load} TP{tp} at {clock_mhz:g} MHz"
        if clock_mhz in sheet.saturated_rps:
            return NotFeasible(f"{where} held no load that was tried, from {sheet.saturated_rps[int(clock_mhz)]:g} rps")
        if not sheet.clocks_mhz:
            return NotFeasible(f"{load} TP{tp} held no load that was tried, at any clock")
        low, high = sheet.clocks_mhz[0], sheet.clocks_mhz[-1]
        if low < clock_mhz < high:
            return NotFeasible(f"{where} lies between clocks that hold no load in common")
        return NotFeasible(f"{where} is outside of the profiled clocks, {low} to {high} MHz")

    def at(self, load: str, tp: int, clock_mhz: float, rps: float) -> Operating | NotFeasible:
        """One instance under `rps` requests/s of this load."""
        curve = self.curve(load, tp, clock_mhz)
        if isinstance(curve, NotFeasible):
            return curve
        inside = curve.snapped(rps)
        if inside is None:
            return NotFeasible(f"{load} TP{tp} at {clock_mhz:g} MHz: {_outside(curve, rps)}")
        values = {name: curve.at(name, inside) for name in QUANTITIES}
        missing = tuple(name for name, value in values.items() if value == UNKNOWN)
        below = curve.anchored and inside < curve.rows[0][0]
        origin = "derived" if below else curve.origin(inside)
        return Operating(load, tp, clock_mhz, rps, **values, origin=origin, missing=missing)

    def capacity(self, load: str, tp: int, clock_mhz: float, slo: Promise, slack: float = 1.0) -> float | NotFeasible:
        """The largest load of one instance, in requests/s, within the limits; at most the largest held one."""
        curve = self.curve(load, tp, clock_mhz)
        if isinstance(curve, NotFeasible):
            return curve
        limits = limits_of(load, slo)
        largest = curve.loads[-1]
        for name, limit in (("ttft_p99_s", limits.ttft_s / slack), ("tbt_p99_s", limits.tbt_s / slack)):
            if limit == math.inf:
                continue
            where = f"{load} TP{tp} at {clock_mhz:g} MHz: {NAMES[name]}"
            if curve.values[name][0] == UNKNOWN:
                return NotFeasible(f"{where} is not in the profile, so it can have no limit")
            found = curve.largest(name, limit)
            if found is None:
                told = f"{curve.values[name][0] * 1e3:.4g} ms at the lowest load {curve.rows[0][0]:g} rps"
                return NotFeasible(f"{where} is {told}, above {limit * 1e3:.4g} ms")
            largest = min(largest, found)
        return largest

    def utilisation(
        self, mix_rps: Mapping[str, float], tp: int, clock_mhz: float, slo: Promise, slack: float = 1.0
    ) -> float | NotFeasible:
        """Sum of load / capacity over the classes of a mix on one instance; it holds the mix if this is at most 1."""
        total = 0.0
        for load, rps in mix_rps.items():
            if rps < 0 or math.isnan(rps):
                return NotFeasible(f"{load}: {rps:g} rps is no load")
            if rps > 0:
                capacity = self.capacity(load, tp, clock_mhz, slo, slack)
                if isinstance(capacity, NotFeasible):
                    return capacity
                total += rps / capacity
        return total

    def mix_capacity(
        self, shares: Mapping[str, float], tp: int, clock_mhz: float, slo: Promise, slack: float = 1.0
    ) -> float | NotFeasible:
        """The largest total load of one instance, in requests/s, when each class keeps its share of the requests."""
        total = sum(shares.values())
        if not total > 0:
            return NotFeasible("the mix has no load")
        used = self.utilisation({load: share / total for load, share in shares.items()}, tp, clock_mhz, slo, slack)
        return used if isinstance(used, NotFeasible) else 1 / used

    def mix_at(self, mix_rps: Mapping[str, float], tp: int, clock_mhz: float, slo: Promise) -> Operating | NotFeasible:
        """One instance under a mix: every class's curve at the mix's utilisation, weighted by what the class uses of
        it; latencies are the worst of the classes. One class alone is answered by `at`."""
        loads = {load: rps for load, rps in mix_rps.items() if rps > 0}
        if not loads:
            return NotFeasible("the mix has no load")
        if len(loads) == 1:
            load, rps = next(iter(loads.items()))
            return self.at(load, tp, clock_mhz, rps)
        used = self.utilisation(mix_rps, tp, clock_mhz, slo)
        if isinstance(used, NotFeasible):
            return used
        if used > 1 + SLIP:
            return NotFeasible(f"the mix takes {used:.2f} of what TP{tp} at {clock_mhz:g} MHz holds")
        parts: list[tuple[float, Operating]] = []
        for load, rps in loads.items():
            capacity = self.capacity(load, tp, clock_mhz, slo)
            if isinstance(capacity, NotFeasible):
                return capacity
            alone = self.at(load, tp, clock_mhz, min(1.0, used) * capacity)
            if isinstance(alone, NotFeasible):
                return alone
            parts.append((rps / capacity / used, alone))
        name = "+".join(f"{load}={rps:.4g}" for load, rps in loads.items())
        return _blended(name, sum(loads.values()), parts)


def build_index(profile: Profile, idle_w: float | None = None) -> ProfileIndex:
    """Smooths and freezes. `idle_w`: watts of one GPU with a loaded engine and nothing to do (an engine model's
    idle_w); with it, or with idle rows in the profile, loads below the lowest measured one have an answer too."""
    return ProfileIndex(profile, sheets(profile.points, idle_w))


def stale(
    profile: Profile, gpu: str, engine_version: str, driver: str, today: date, max_age_days: int = MAX_AGE_DAYS
) -> tuple[str, ...]:
    """Why the profile may no longer describe what runs; empty if nothing says so. An empty argument is not compared."""
    of = profile.provenance
    reasons = [
        f"made on {told} {then}, running on {now}"
        for told, then, now in (
            ("GPU", profile.gpu, gpu),
            (of.engine or "engine", of.engine_version, engine_version),
            ("driver", of.driver, driver),
        )
        if then and now and then.casefold() != now.casefold()
    ]
    age_days = (today - date.fromisoformat(of.made_on)).days
    if age_days > max_age_days:
        reasons.append(f"made on {of.made_on}, {age_days} days ago (more than {max_age_days})")
    elif age_days < -1:
        reasons.append(f"made on {of.made_on}, which is in the future")
    return tuple(reasons)


def _outside(curve: Curve, rps: float) -> str:
    low, high = curve.loads[0], curve.loads[-1]
    if rps > high:
        cliff = f"; saturated at {curve.cliff_rps:g}" if curve.cliff_rps < math.inf else ""
        return f"{rps:g} rps is beyond the largest measured load {high:g} rps{cliff}"
    if 0 <= rps < low:
        return f"{rps:g} rps is below the lowest measured load {low:g} rps, and idle watts are not known"
    return f"{rps:g} rps is no load"


def _blended(name: str, rps: float, parts: list[tuple[float, Operating]]) -> Operating:
    shares = [share for share, _ in parts]
    states = [state for _, state in parts]

    def mean(quantity: str) -> float:
        told = [float(getattr(state, quantity)) for state in states]
        return UNKNOWN if UNKNOWN in told else sum(s * v for s, v in zip(shares, told, strict=True))

    worst = {latency: max(getattr(state, latency) for state in states) for latency in LATENCIES}
    means = {quantity: mean(quantity) for quantity in ("watts", "running", "output_tps")}
    missing = tuple(q for q, value in (worst | means).items() if value == UNKNOWN)
    return Operating(
        load=name,
        tp=states[0].tp,
        clock_mhz=states[0].clock_mhz,
        offered_rps=rps,
        **worst,
        **means,
        origin="derived",
        missing=missing,
    )
