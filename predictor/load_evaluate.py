"""How good load forecasts are on counts that really came: each is made, then judged by what follows.

Owns the grid of forecasts, the truth and the comparison with simpler ones. Refuses to look ahead. Of each forecast the
mean is scored (MAPE of the requests of all classes over the horizon) and the upper bound (did the busiest minute stay
within it). The simpler ones get the same learnt head-room, so that what differs is the mean: at equal coverage the
smaller head-room is the better forecast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from predictor.load import HORIZONS_S, Load
from predictor.load_headroom import COVERAGES, HeadRoom, fresh
from predictor.load_template import SLOT_S
from predictor.load_windows import CLASS_COUNT, MINUTE_S, QUANTITIES, Array, with_total

TICK_S = 5.0
EVERY_S = {5.0: 5.0, 300.0: MINUTE_S, 1800.0: SLOT_S}  # forecasts that are scored
METHODS = ("joulegate", "persistence", "ewma", "template")
EWMA_WEIGHT = 0.2  # of each new window as long as the horizon's averaging unit
UNIT_S = {5.0: 5.0, 300.0: MINUTE_S, 1800.0: SLOT_S}  # that unit
TOTAL = CLASS_COUNT


class Score(Struct, frozen=True):
    """`mape` of mean requests over the windows that had any; `wape` sums errors before it divides, so that small
    windows weigh little. Coverage: share of windows whose peak stayed within the bound for 95 %, for 99 %; head-room:
    bounds over mean loads that came, both summed. None: no window, or no load."""

    windows: int
    mape: float | None
    wape: float | None
    peak_coverage: float | None
    peak_coverage_99: float | None
    head_room: float | None
    head_room_99: float | None


class HorizonReport(Struct, frozen=True):
    """Of the requests of all classes, by method. `quantities`: joulegate's totals. `classes`: its coverage of each
    class's requests at 95 %, None where a class had none."""

    methods: dict[str, Score]
    quantities: dict[str, Score]
    classes: tuple[float | None, ...]


class _Run:
    """What one method foretold at one horizon: rows of (mean (10, 3), upper (10, 3, coverages))."""

    def __init__(self, horizon_s: float) -> None:
        self.room: HeadRoom = fresh(horizon_s)
        self.open: list[tuple[int, Array]] = []  # (window, upper) whose end has not come
        self.means: list[Array] = []
        self.uppers: list[Array] = []


class _Truth:
    """What came after each forecast of one horizon."""

    def __init__(self, counts: Array, horizon_s: float) -> None:
        self.length = int(horizon_s / TICK_S)
        self.part = int(min(horizon_s, MINUTE_S) / TICK_S)
        self.sums = np.concatenate((np.zeros((1, CLASS_COUNT, QUANTITIES)), np.cumsum(counts, axis=0)))

    def mean(self, first: int) -> Array:
        rates = (self.sums[first + self.length] - self.sums[first]) / (self.length * TICK_S)
        return with_total(rates)

    def peaks(self, first: int) -> Array:
        edges = self.sums[first : first + self.length + 1 : self.part]
        rates = np.diff(edges, axis=0) / (self.part * TICK_S)
        peaks: Array = np.max([with_total(one) for one in rates], axis=0)
        return peaks

    def past(self, now: int, ticks: int) -> Array:
        """Mean rates of the `ticks` before tick `now`, or of as many as there are."""
        first = max(0, now - ticks)
        rates: Array = (self.sums[now] - self.sums[first]) / ((now - first) * TICK_S)
        return rates


def evaluate(counts: Array, start_s: float, warm_up_s: float = 0.0) -> dict[float, HorizonReport]:
    """`counts` (ticks of 5 s, 9, 3); `start_s` Unix time in local terms, a whole minute. Forecasts made in the first
    `warm_up_s` are learnt of and not scored; ValueError where none is left."""
    runs = {horizon_s: {method: _Run(horizon_s) for method in METHODS} for horizon_s in HORIZONS_S}
    truths = {horizon_s: _Truth(counts, horizon_s) for horizon_s in HORIZONS_S}
    starts: dict[float, list[int]] = {horizon_s: [] for horizon_s in HORIZONS_S}
    averages = {horizon_s: np.zeros(0) for horizon_s in HORIZONS_S}
    load = Load().observed(start_s, np.zeros((CLASS_COUNT, QUANTITIES)).tolist())
    for now, tick in enumerate(counts, start=1):
        now_s = start_s + now * TICK_S
        load = load.observed(now_s, tick)
        for horizon_s in due(now_s):
            truth = truths[horizon_s]
            unit = truth.past(now, int(UNIT_S[horizon_s] / TICK_S))
            old = averages[horizon_s]
            averages[horizon_s] = unit if not old.size else old + EWMA_WEIGHT * (unit - old)
            if now + truth.length > len(counts):
                continue
            starts[horizon_s].append(now)
            for method, run in runs[horizon_s].items():
                _forecast(run, method, load, now, now_s, truth, averages[horizon_s], starts[horizon_s])
    least = warm_up_s / TICK_S
    return {
        h: _report(truths[h], runs[h], [n for n, at in enumerate(starts[h]) if at > least], starts[h]) for h in runs
    }


def due(now_s: float) -> Iterator[float]:
    return (horizon_s for horizon_s in HORIZONS_S if now_s % EVERY_S[horizon_s] == 0)


def _forecast(
    run: _Run, method: str, load: Load, now: int, now_s: float, truth: _Truth, average: Array, starts: list[int]
) -> None:
    horizon_s = truth.length * TICK_S
    if method == "joulegate":
        room = load.rooms[HORIZONS_S.index(horizon_s)]
        mean = with_total(load.mean(now_s, horizon_s))
        run.means.append(mean)
        run.uppers.append(room.upper(mean))
        return
    while run.open and starts[run.open[0][0]] + truth.length <= now:
        window, upper = run.open.pop(0)
        run.room = run.room.learn(upper, truth.peaks(starts[window]))
    mean = with_total(_simple(method, load, now, now_s, truth, average))
    upper = run.room.upper(mean)
    run.open.append((len(run.means), upper))
    run.means.append(mean)
    run.uppers.append(upper)


def _simple(method: str, load: Load, now: int, now_s: float, truth: _Truth, average: Array) -> Array:
    if method == "ewma":
        return average
    if method == "template":
        usual = load.template.mean(now_s, truth.length * TICK_S)
        if usual is not None:
            return usual
    return truth.past(now, truth.length)


def _report(truth: _Truth, runs: dict[str, _Run], windows: list[int], starts: list[int]) -> HorizonReport:
    if not windows:
        none = Score(0, None, None, None, None, None, None)
        return HorizonReport(dict.fromkeys(METHODS, none), {}, (None,) * CLASS_COUNT)
    actual = np.array([truth.mean(starts[window]) for window in windows])
    peaks = np.array([truth.peaks(starts[window]) for window in windows])
    table = {m: (np.array(run.means)[windows], np.array(run.uppers)[windows]) for m, run in runs.items()}
    mean, upper = table["joulegate"]
    held = (peaks[..., None] <= upper)[:, :TOTAL, 0, 0].mean(axis=0)
    some = (actual[:, :TOTAL, 0].max(axis=0) > 0).tolist()
    return HorizonReport(
        {m: _score(actual, peaks, *said, quantity=0) for m, said in table.items()},
        {
            name: _score(actual, peaks, mean, upper, quantity)
            for quantity, name in enumerate(("requests", "input_tokens", "output_tokens"))
        },
        tuple(float(share) if any_ else None for share, any_ in zip(held, some, strict=True)),
    )


def _score(actual: Array, peaks: Array, mean: Array, upper: Array, quantity: int) -> Score:
    came, peak, said, bound = (
        actual[:, TOTAL, quantity],
        peaks[:, TOTAL, quantity],
        mean[:, TOTAL, quantity],
        upper[:, TOTAL, quantity],
    )
    error, some = np.abs(said - came), came > 0
    coverage = [float((peak <= bound[:, place]).mean()) for place in range(len(COVERAGES))]
    room = [float(bound[:, place].sum() / came.sum()) if some.any() else None for place in range(len(COVERAGES))]
    return Score(
        windows=len(came),
        mape=float((error[some] / came[some]).mean()) if some.any() else None,
        wape=float(error.sum() / came.sum()) if some.any() else None,
        peak_coverage=coverage[0],
        peak_coverage_99=coverage[1],
        head_room=room[0],
        head_room_99=room[1],
    )
