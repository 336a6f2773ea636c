"""Demand: what arrives now and what will, for each class and in total, with room for the peaks.

Owns the state of a service's load and its forecasts at three horizons. Pure: `observed` gives a new state, nothing
reads a clock. Refuses to guess where it has seen nothing: a load never observed is forecast as zero.

    5 s      the measured rate: an average over half a minute
    5 min    persistence: the mean of the last five minutes
    30 min   the usual day's shape x the level of the last half hour, blended with the mean of the last ten minutes by
             what either was worth of late; without a usual day, the latter alone

The averages forget what came before a jump (load_drift.py). The state holds at most two days of 288 slots, thirty
minutes and a dozen open forecasts, whatever is observed."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, structs

from predictor.load_drift import LASTS, Drift
from predictor.load_headroom import COVERAGES, ROWS, HeadRoom, fresh
from predictor.load_template import SLOT_S, SLOTS, Template, Trust
from predictor.load_windows import (
    CLASS_COUNT,
    GAP_S,
    MINUTE_S,
    MINUTES_KEPT,
    NOTHING,
    QUANTITIES,
    SERIES,
    Array,
    Counts,
    Vector,
    Windows,
    as_array,
    pieces,
    with_total,
)

SCHEMA = 1
HORIZONS_S = (5.0, 300.0, 1800.0)
SOON_S, LATER_S, LATEST_S = HORIZONS_S
RECENT_MINUTES = 10
SHRINK_REQUESTS = 10.0  # a class that saw no more than these in half an hour follows the level of all classes
LEVELS = (1 / 8, 8.0)


class Rates(Struct, frozen=True):
    """Per second."""

    requests_rps: float
    input_tokens_per_s: float
    output_tokens_per_s: float


class Forecast(Struct, frozen=True):
    """Of the `horizon_s` seconds after `at_s`, by class in the order of (input size, output size).

    `upper`: what the busiest minute (for 5 s: those seconds) stays within, with probability `coverage`, each class for
    itself; together they are more than `total_upper`, because classes do not peak at once. `age_s`: how long ago the
    last observation ended, infinite where there is none."""

    at_s: float
    horizon_s: float
    coverage: float
    age_s: float
    mean: tuple[Rates, ...]
    upper: tuple[Rates, ...]
    total_mean: Rates
    total_upper: Rates

    def shared(self) -> tuple[Rates, ...]:
        """Bounds by class that add up to `total_upper`: the total's room, shared out in proportion to the classes' own.
        For capacity that classes can borrow from each other."""
        mean, upper = _table(self.mean), _table(self.upper)
        room = upper - mean
        spare = _table((self.total_upper,))[0] - mean.sum(axis=0)
        whole = room.sum(axis=0)
        part = np.divide(spare, whole, out=np.zeros(QUANTITIES), where=whole > 0)
        return _rates(mean + room * part)


class Bet(Struct, frozen=True):
    """A forecast whose window has not ended. `upper` flat; `counts` since it was made, at 5 s only; `parts`: requests/s
    foretold by the usual day and by the recent average, at 30 min only."""

    made_s: float
    horizon_s: float
    upper: Vector
    counts: Vector = NOTHING
    parts: tuple[float, float] | None = None


class Load(Struct, frozen=True):
    """`utc_offset_s` says where the usual day begins and which days are weekends. All times are Unix time."""

    schema: int = SCHEMA
    utc_offset_s: float = 0.0
    windows: Windows = Windows()
    template: Template = Template()
    trust: Trust = Trust()
    drift: Drift = Drift()
    rooms: tuple[HeadRoom, ...] = tuple(fresh(horizon_s) for horizon_s in HORIZONS_S)
    bets: tuple[Bet, ...] = ()
    soon: Bet | None = None
    jumps: int = 0

    def observed(self, wall_s: float, counts: Counts) -> Load:
        """`counts` of the time since the last call: nine rows of (requests, input tokens, output tokens). The first
        call, one after a silence of more than GAP_S and one after a clock set back only start the measuring anew."""
        array, since_s = as_array(counts), self.windows.at_s
        if since_s is None or not since_s - GAP_S < wall_s <= since_s + GAP_S:
            return structs.replace(self, windows=Windows(at_s=wall_s), drift=Drift(), bets=(), soon=None)
        load = self
        if wall_s <= since_s:  # no time has passed: the counts belong to what follows
            return structs.replace(self, windows=_late(self.windows, array))
        for end_s, part, minute_ends in pieces(since_s, wall_s, array):
            load = structs.replace(load, windows=load.windows.add(end_s, part))._judge_soon(end_s, part)
            if minute_ends:
                load = load._minute(end_s)
        return load

    def forecast(self, wall_s: float, horizon_s: float, coverage: float = COVERAGES[0]) -> Forecast:
        """ValueError for a horizon or a coverage that nothing is learnt for."""
        if horizon_s not in HORIZONS_S or coverage not in COVERAGES:
            raise ValueError(f"forecasts are for {HORIZONS_S} s at coverages {COVERAGES}, not {horizon_s}, {coverage}")
        mean = with_total(self.mean(wall_s, horizon_s))
        upper = self.rooms[HORIZONS_S.index(horizon_s)].upper(mean)[:, :, COVERAGES.index(coverage)]
        means, uppers = _rates(mean), _rates(upper)
        age_s = float("inf") if self.windows.at_s is None else max(0.0, wall_s - self.windows.at_s)
        return Forecast(
            wall_s, horizon_s, coverage, age_s, means[:-1], uppers[:-1], total_mean=means[-1], total_upper=uppers[-1]
        )

    def mean(self, wall_s: float, horizon_s: float) -> Array:
        """Mean rates of the next `horizon_s` seconds, flat."""
        windows = self.windows
        if horizon_s == SOON_S:
            return np.array(windows.fast)
        if horizon_s == LATER_S:
            return windows.recent(int(LATER_S / MINUTE_S))
        recent = windows.recent(RECENT_MINUTES)
        shaped = self._shaped(wall_s, horizon_s)
        return recent if shaped is None else recent + self.trust.share * (shaped - recent)

    def _shaped(self, wall_s: float, horizon_s: float) -> Array | None:
        """The usual day at today's level, which is learnt of the last half hour at most."""
        minutes = max(1, min(MINUTES_KEPT, self.windows.fresh))
        local_s = wall_s + self.utc_offset_s
        usual = self.template.mean(local_s - minutes * MINUTE_S, minutes * MINUTE_S)
        ahead = self.template.mean(local_s, horizon_s)
        if usual is None or ahead is None:
            return None
        usual_sums, sums = with_total(usual)[-1], with_total(self.windows.recent(minutes))[-1]
        if not usual_sums.all():
            return None
        level = np.clip(sums / usual_sums, *LEVELS)
        shrink = SHRINK_REQUESTS / (minutes * MINUTE_S) * usual_sums / usual_sums[0]
        rows = (CLASS_COUNT, QUANTITIES)
        levels = (self.windows.recent(minutes).reshape(rows) + shrink * level) / (usual.reshape(rows) + shrink)
        shaped: Array = ahead * np.clip(levels, *LEVELS).reshape(SERIES)
        return shaped

    def _judge_soon(self, end_s: float, counts: Array) -> Load:
        """The 5 s forecast is judged by what is measured next, over 5 s at least."""
        bet, rooms = self.soon, self.rooms
        if bet is not None:
            counts = counts + np.array(bet.counts)
            took_s = end_s - bet.made_s
            if took_s < SOON_S - 1e-6:
                return structs.replace(self, soon=structs.replace(bet, counts=tuple(counts.tolist())))
            rooms = (rooms[0].learn(_unflat(bet.upper), with_total(counts / took_s)), *rooms[1:])
        load = structs.replace(self, rooms=rooms)
        return structs.replace(load, soon=load._bet(end_s, SOON_S))

    def _minute(self, end_s: float) -> Load:
        """A minute has ended: judge it, learn of it, bet anew."""
        before = _requests(self.windows.recent(int(LATER_S / MINUTE_S)))
        known = self.windows.fresh
        windows = self.windows.close()
        drift, jumped = self.drift, False
        if known and windows.fresh:
            drift, jumped = drift.judge(sum(windows.minutes[-1][::QUANTITIES]) * MINUTE_S, before * MINUTE_S)
        if jumped:
            windows = structs.replace(windows, fresh=min(LASTS, len(windows.minutes)))
        load = structs.replace(self, windows=windows, drift=drift, jumps=self.jumps + jumped)._settle(end_s)
        whole_slot = end_s % SLOT_S == 0
        slot_minutes = int(SLOT_S / MINUTE_S)
        if whole_slot and len(windows.minutes) >= slot_minutes:
            rates = np.mean(np.array(windows.minutes[-slot_minutes:]), axis=0)
            learnt = load.template.learn(end_s - SLOT_S + self.utc_offset_s, rates)
            load = structs.replace(load, template=learnt)
        bets = (*load.bets, load._bet(end_s, LATER_S))
        return structs.replace(load, bets=(*bets, load._bet(end_s, LATEST_S)) if whole_slot else bets)

    def _settle(self, end_s: float) -> Load:
        """Judges the forecasts whose window has ended by the minutes within it."""
        rooms, still_open, trust = list(self.rooms), [], self.trust
        for bet in self.bets:
            if bet.made_s + bet.horizon_s > end_s:
                still_open.append(bet)
                continue
            minutes = int(bet.horizon_s / MINUTE_S)
            if len(self.windows.minutes) >= minutes:
                peaks = np.max([with_total(np.array(one)) for one in self.windows.minutes[-minutes:]], axis=0)
                place = HORIZONS_S.index(bet.horizon_s)
                rooms[place] = rooms[place].learn(_unflat(bet.upper), peaks)
                if bet.parts is not None:
                    came = np.mean(np.array(self.windows.minutes[-minutes:])[:, ::QUANTITIES].sum(axis=1))
                    trust = trust.learn(*bet.parts, float(came))
        return structs.replace(self, rooms=tuple(rooms), bets=tuple(still_open), trust=trust)

    def _bet(self, made_s: float, horizon_s: float) -> Bet:
        room = self.rooms[HORIZONS_S.index(horizon_s)]
        upper = room.upper(with_total(self.mean(made_s, horizon_s)))
        shaped = self._shaped(made_s, horizon_s) if horizon_s == LATEST_S else None
        parts = None
        if shaped is not None:
            parts = _requests(shaped), _requests(self.windows.recent(RECENT_MINUTES))
        return Bet(made_s, horizon_s, tuple(upper.reshape(-1).tolist()), parts=parts)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; some 300 kB once both days are known."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def load_from_dict(plain: dict[str, Any]) -> Load:
    """ValueError where it is not a load's state, or of another schema."""
    if plain.get("schema") != SCHEMA:
        raise ValueError(f"load state: schema {plain.get('schema')!r}, expected {SCHEMA}")
    try:
        load = msgspec.convert(plain, Load)
    except msgspec.ValidationError as error:
        raise ValueError(f"load state: {error}") from None
    vectors = [load.windows.fast, load.windows.open_counts, *load.windows.minutes]
    vectors += [slot for day in load.template.days for slot in day if slot is not None]
    uppers = [bet.upper for bet in (*load.bets, *((load.soon,) if load.soon else ()))]
    uppers += [room.offsets for room in load.rooms]
    days, horizons_s = (*load.template.days, *load.template.seen), tuple(room.horizon_s for room in load.rooms)
    if any(len(day) != SLOTS for day in days) or horizons_s != HORIZONS_S:
        raise ValueError("load state: days or horizons are not the ones in use")
    if any(len(vector) != SERIES for vector in vectors) or any(
        len(upper) != ROWS * QUANTITIES * len(COVERAGES) for upper in uppers
    ):
        raise ValueError("load state: a vector of the wrong length")
    return load


def _late(windows: Windows, counts: Array) -> Windows:
    opened = np.array(windows.open_counts) + counts
    return structs.replace(windows, open_counts=tuple(opened.tolist()))


def _requests(rates: Array) -> float:
    return float(rates[::QUANTITIES].sum())


def _unflat(upper: Vector) -> Array:
    return np.array(upper).reshape(ROWS, QUANTITIES, len(COVERAGES))


def _rates(rows: Array) -> tuple[Rates, ...]:
    return tuple(Rates(*row) for row in rows.tolist())


def _table(rates: tuple[Rates, ...]) -> Array:
    return np.array([structs.astuple(one) for one in rates])
