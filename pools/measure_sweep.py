"""The plan of a sweep over TP x clock x class x load, as a generator: it yields a probe and is sent what was measured.

Pure: same answers, same plan, whatever ran them. That is what makes a sweep resumable: a journal of answers replays it.

Per TP: the curve of every class at the highest clock (cliff by bisection, then the bends); then what lower clocks do,
as ratios to that curve (the lowest clock, the bottom of the U, further ones only where a check point contradicts what
the neighbours and the earlier classes predict); then repeats of the noisiest points with what the TP's share leaves.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pools.measure import Lengths, Measured, Probe
from pools.measure_clocks import (
    HIGH_U,
    LOW_U,
    NONE,
    STEEP_U,
    Curve,
    Effect,
    effect_of,
    mean_effect,
    next_clock,
    predicted,
    surprise,
)
from pools.measure_plan import LOW_SHARE, Bracket, bend, foretold, next_load, rounded
from pools.measure_stats import confident, pooled
from profiles.profile import Point

Plan = Generator[Probe, Measured, None]
Step = Generator[Probe, Measured, Measured | None]
CellKey = tuple[int, str, int]
EXPECTED_S = 60.0
IDLE_S = 15.0
MARGIN = 1.25  # a window takes longer than the one before it, now and then
REPEATS = 3
SHARE_POWER = -0.3  # of a TP: how its share of the budget falls with its size
U_BOTTOM = 0.61  # of the highest clock: where energy is least on H100, A800 and L20; only the order depends on it


@dataclass(frozen=True, slots=True)
class Space:
    """What is swept and what it may cost. `setup_s` is the instance time that a change of TP takes."""

    tps: tuple[int, ...]
    clocks_mhz: tuple[int, ...]  # ascending
    classes: tuple[Lengths, ...]
    tolerance: float = 0.05
    budget_s: float = 4 * 3600.0
    setup_s: float = 0.0
    seed: int = 0
    curve_points: int = 5


@dataclass(frozen=True, slots=True)
class Cell:
    """What is known of one (class, TP, clock). `expected_saturation`: for a clock whose cliff nobody looked for."""

    key: CellKey
    lengths: Lengths
    probes: tuple[Measured, ...] = ()
    expected_saturation: float = 0.0

    @property
    def rows(self) -> list[Point]:
        """One row per load, repeats pooled, ascending."""
        by_load: dict[float, list[Point]] = {}
        for one in self.probes:
            by_load.setdefault(one.probe.rps, []).append(one.point)
        return [pooled(by_load[rps]) for rps in sorted(by_load)]

    @property
    def bracket(self) -> Bracket:
        return Bracket.of(self.rows)

    @property
    def curve(self) -> Curve | None:
        """Without the loads that were held above the cliff, by luck."""
        rows, bracket = self.rows, self.bracket
        held = tuple(row for row in rows if not row.saturated and row.offered_rps <= bracket.good)
        past = tuple(row for row in rows if row.saturated)
        cliff = bracket.saturation
        if self.expected_saturation:
            cliff = min(max(self.expected_saturation, bracket.good), bracket.bad)
        return Curve(held, cliff, past) if held else None

    @property
    def doubtful(self) -> float | None:
        """A load that was not held once, below one that was."""
        rows = self.rows
        held = max((row.offered_rps for row in rows if not row.saturated), default=0.0)
        return next((r.offered_rps for r in rows if r.saturated and r.repeats == 1 and r.offered_rps < held), None)


@dataclass(frozen=True, slots=True)
class Check:
    """A clock that was foretold and then measured: how far the foretelling was off."""

    key: CellKey
    error: float


@dataclass(slots=True)
class Sweep:
    """What a sweep has learnt. Only its own generators write to it."""

    space: Space
    cells: dict[CellKey, Cell] = field(default_factory=dict)
    effects: dict[tuple[int, str], dict[int, Effect]] = field(default_factory=dict)
    shapes: dict[int, dict[int, Effect]] = field(default_factory=dict)
    idle: dict[int, dict[int, float]] = field(default_factory=dict)
    limit_s: float = 0.0
    spent_s: float = 0.0
    gpu_s: float = 0.0
    probes: int = 0
    cut_short: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def plan(self) -> Plan:
        space = self.space
        for index, tp in enumerate(space.tps):
            self._charge(tp, space.setup_s)
            # What a TP leaves of its share goes to those after it.
            left_s = space.budget_s - self.spent_s - space.setup_s * (len(space.tps) - index - 1)
            # Fewer GPUs take longer for an answer, so their windows do.
            shares = [other**SHARE_POWER for other in space.tps[index:]]
            self.limit_s = self.spent_s + left_s * shares[0] / sum(shares)
            yield from self._idle(tp)
            for lengths in space.classes:
                yield from self._top_curve(tp, lengths)
            for lengths in space.classes:
                yield from self._lower_clocks(tp, lengths)
                self._learn_shape(tp)
            yield from self._repeats(tp)

    def idle_watts(self, tp: int, clock_mhz: int) -> float | None:
        """Linear between the clocks whose idle power was measured."""
        known = self.idle.get(tp)
        if not known:
            return None
        return float(np.interp(clock_mhz, sorted(known), [known[clock] for clock in sorted(known)]))

    # --- one probe

    def _charge(self, tp: int, seconds: float) -> None:
        self.spent_s += seconds
        self.gpu_s += seconds * tp

    def _ask(self, tp: int, clock_mhz: int, lengths: Lengths, rps: float) -> Step:
        """None when the TP's share of the budget has no room for one more probe."""
        key = (tp, lengths.name, clock_mhz)
        seen = yield from self._probe(key, lengths, rps)
        # With noise two verdicts can contradict each other; the lower load is tried once more.
        while seen is not None and (again := self.cells[key].doubtful) is not None:
            seen = yield from self._probe(key, lengths, again)
        return seen

    def _probe(self, key: CellKey, lengths: Lengths, rps: float) -> Step:
        tp, _, clock_mhz = key
        cell = self.cells.get(key, Cell(key, lengths))
        repeat = sum(1 for one in cell.probes if one.probe.rps == rps)
        expected_s = max((one.instance_s for one in cell.probes), default=EXPECTED_S)
        if self.spent_s + MARGIN * expected_s > self.limit_s:
            where = f"{lengths.name} TP{tp} {clock_mhz} MHz"
            if not repeat and where not in self.cut_short:
                self.cut_short.append(where)
            return None
        seen = yield Probe(tp, clock_mhz, lengths, rps, repeat, self.space.seed)
        self._charge(tp, seen.instance_s)
        self.probes += 1
        self.cells[key] = replace(cell, probes=(*cell.probes, seen))
        return seen

    def _idle(self, tp: int) -> Plan:
        """The instance with nothing to do, at the lowest and at the highest clock."""
        for clock_mhz in sorted({self.space.clocks_mhz[0], self.space.clocks_mhz[-1]}):
            if self.spent_s + IDLE_S > self.limit_s:
                return
            seen = yield Probe(tp, clock_mhz, self.space.classes[0], 0.0, 0, self.space.seed)
            self._charge(tp, seen.instance_s)
            self.probes += 1
            self.idle.setdefault(tp, {})[clock_mhz] = seen.point.watts

    # --- one curve

    def _find_cliff(self, tp: int, clock_mhz: int, lengths: Lengths, hint: float) -> Generator[Probe, Measured, bool]:
        """Bisection; False if the budget ended it."""
        key = (tp, lengths.name, clock_mhz)
        overloaded = False
        while True:
            bracket = self.cells[key].bracket if key in self.cells else Bracket()
            rps = next_load(bracket, hint)
            if rps is None or (key in self.cells and rps in {one.probe.rps for one in self.cells[key].probes}):
                return True
            seen = yield from self._ask(tp, clock_mhz, lengths, rps)
            if seen is None:
                return False
            if seen.point.saturated and not overloaded and not bracket.good < hint < rps:
                hint = seen.point.output_tps / lengths.output_tokens  # what an overloaded instance still gets done
            overloaded = overloaded or seen.point.saturated

    def _top_curve(self, tp: int, lengths: Lengths) -> Plan:
        clock_mhz = self.space.clocks_mhz[-1]
        if not (yield from self._find_cliff(tp, clock_mhz, lengths, self._hint(tp, lengths))):
            return
        key = (tp, lengths.name, clock_mhz)
        curve = self.cells[key].curve
        if curve is None:
            return
        if curve.points[0].offered_rps > 2 * LOW_SHARE * curve.saturation:
            low = rounded(max(LOW_SHARE * curve.saturation, 0.02))
            if (yield from self._ask(tp, clock_mhz, lengths, low)) is None:
                return
        while True:
            curve = self.cells[key].curve
            if curve is None or len(curve.points) >= self.space.curve_points:
                return
            found = bend(curve.points, self.space.tolerance)
            if found is None or found[0] in {p.offered_rps for p in curve.points}:
                return
            if (yield from self._ask(tp, clock_mhz, lengths, found[0])) is None:
                return

    def _hint(self, tp: int, lengths: Lengths) -> float:
        """Where the cliff should be: the other classes of this TP, else this class at the TP before; 0 = no idea."""
        top = self.space.clocks_mhz[-1]

        def cliffs(of: int) -> dict[str, tuple[int, int, float]]:
            cells = [self.cells[of, c.name, top] for c in self.space.classes if (of, c.name, top) in self.cells]
            found = [(c.lengths, c.bracket.saturation) for c in cells]
            return {c.name: (c.input_tokens, c.output_tokens, cliff) for c, cliff in found if cliff > 0}

        here = cliffs(tp)
        before = self.space.tps.index(tp) - 1
        there = cliffs(self.space.tps[before]) if before >= 0 else {}
        if lengths.name not in there:
            return foretold(list(here.values()), lengths.input_tokens, lengths.output_tokens)
        if not here:
            return there[lengths.name][2] * tp / self.space.tps[before]
        gains = [(i, o, cliff / there[name][2]) for name, (i, o, cliff) in here.items() if name in there]
        return there[lengths.name][2] * (foretold(gains, lengths.input_tokens, lengths.output_tokens) or 1.0)

    # --- clocks

    def _lower_clocks(self, tp: int, lengths: Lengths) -> Plan:
        clocks = self.space.clocks_mhz
        top = self._curve(tp, lengths, clocks[-1])
        if top is None or len(clocks) < 2:
            return  # what the highest clock cannot hold, no lower one can
        known: dict[int, Effect] = {clocks[-1]: NONE}
        self.effects[tp, lengths.name] = known
        shape = self._shape(tp)
        best = min(clocks, key=lambda c: abs(c - U_BOTTOM * clocks[-1]))
        verified: list[tuple[int, int]] = []
        while (clock_mhz := next_clock(clocks, list(known), verified, best, bool(shape))) is not None:
            expected = predicted(clock_mhz, known, shape)
            first_check = bool(shape) and len(known) == 1
            if not (yield from self._clock_points(tp, clock_mhz, lengths, top, expected, bool(shape), first_check)):
                return
            curve = self._curve(tp, lengths, clock_mhz)
            if curve is None:  # infeasible here, so it is at every lower clock
                clocks = tuple(c for c in clocks if c > clock_mhz)
                continue
            seen = effect_of(curve, top)
            error = surprise(seen, expected)
            self.checks.append(Check((tp, lengths.name, clock_mhz), error))
            if error > self.space.tolerance and first_check:
                # It takes a low load as well to say what this class does at this clock.
                if not (yield from self._low_load(tp, clock_mhz, lengths, top)):
                    return
                seen = effect_of(self.cells[tp, lengths.name, clock_mhz].curve or curve, top)
            elif error <= self.space.tolerance and shape and (first_check or clock_mhz == clocks[0]):
                verified.append((clocks[0], clocks[-1]))
            elif error <= self.space.tolerance and clock_mhz != clocks[0]:
                verified.append((max(c for c in known if c < clock_mhz), min(c for c in known if c > clock_mhz)))
            known[clock_mhz] = seen

    def _clock_points(
        self,
        tp: int,
        clock_mhz: int,
        lengths: Lengths,
        top: Curve,
        expected: Effect,
        foretold: bool,
        only_high: bool,
    ) -> Generator[Probe, Measured, bool]:
        """A high and a low load of this clock, and the cliff of the lowest where no earlier class had it looked for;
        False if the budget ended."""
        key = (tp, lengths.name, clock_mhz)
        hint = top.saturation * expected.ratio("saturation", 1.0)
        if clock_mhz == self.space.clocks_mhz[0] and not foretold:
            if not (yield from self._find_cliff(tp, clock_mhz, lengths, hint)):
                return False
        else:
            self.cells[key] = Cell(key, lengths, expected_saturation=hint)
            seen = yield from self._ask(tp, clock_mhz, lengths, rounded(near(top, HIGH_U) * hint))
            if seen is None:
                return False
            if seen.point.saturated:
                self.cells[key] = replace(self.cells[key], expected_saturation=0.0)
                if not (yield from self._find_cliff(tp, clock_mhz, lengths, HIGH_U**2 * hint)):
                    return False
        return True if only_high else (yield from self._low_load(tp, clock_mhz, lengths, top))

    def _low_load(self, tp: int, clock_mhz: int, lengths: Lengths, top: Curve) -> Generator[Probe, Measured, bool]:
        curve = self._curve(tp, lengths, clock_mhz)
        if curve is None or curve.points[0].offered_rps < (LOW_U + HIGH_U) / 2 * curve.saturation:
            return True
        low = rounded(near(top, LOW_U) * curve.saturation)
        return (yield from self._ask(tp, clock_mhz, lengths, low)) is not None

    def _curve(self, tp: int, lengths: Lengths, clock_mhz: int) -> Curve | None:
        cell = self.cells.get((tp, lengths.name, clock_mhz))
        return cell.curve if cell else None

    def _shape(self, tp: int) -> Mapping[int, Effect]:
        """What clocks did to the classes before this one, of this TP if there are any, else of the TP before."""
        if tp in self.shapes:
            return self.shapes[tp]
        return self.shapes[max(self.shapes, key=lambda other: -abs(other - tp))] if self.shapes else {}

    def _learn_shape(self, tp: int) -> None:
        """Means over the classes of this TP; a clock that a class skipped counts as that class predicts it."""
        done = [known for (of, _), known in self.effects.items() if of == tp and len(known) > 1]
        if done:
            prior = self._shape(tp)
            self.shapes[tp] = {
                clock: mean_effect([predicted(clock, known, prior) for known in done])
                for clock in self.space.clocks_mhz
            }

    # --- repeats

    def _repeats(self, tp: int) -> Plan:
        """Again, the loads whose p99 stands on the fewest requests for its spread, until they are sure."""
        skipped: set[tuple[CellKey, float]] = set()
        while True:
            rows = [
                (row, cell)
                for cell in self.cells.values()
                if cell.key[0] == tp
                for row in cell.rows
                if not row.saturated and row.repeats < REPEATS and (cell.key, row.offered_rps) not in skipped
                if not confident(row)
            ]
            if not rows:
                return
            row, cell = max(rows, key=lambda one: (noise(one[0]), one[0].offered_rps))
            seen = yield from self._ask(tp, row.clock_mhz, cell.lengths, row.offered_rps)
            if seen is None:
                skipped.add((cell.key, row.offered_rps))


def near(top: Curve, utilisation: float) -> float:
    """The utilisation nearest to this one at which the top curve was measured: equal arrivals make a sharp ratio."""
    measured = [p.offered_rps / top.saturation for p in top.points]
    return min([u for u in measured if u <= STEEP_U] or measured[:1], key=lambda u: abs(u - utilisation))


def noise(row: Point) -> float:
    """How unsure a row's TTFT p99 is: its spread over the square root of the requests that tell."""
    return row.ttft_p99_s / max(1e-9, row.ttft_p50_s) / math.sqrt(max(1, row.requests))
