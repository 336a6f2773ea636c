"""Questions to the ledger: what was spent between two moments, by cause, class, pool and key, and how well it adds up.

Reads the tables of gateway/ledger_store.py and changes nothing. Joules; `t` are Unix seconds."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from math import ceil
from typing import Any

from gateway.ledger_store import JOULES, WINDOW_S
from gateway.tariff import Tariff, total

MOST_POINTS = 360
STEPS_S = (10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 10_800.0, 86_400.0)
CAUSES = JOULES[2:9]
GROUPS = ("service", "pool", "class", "key")


@dataclass(frozen=True, slots=True)
class Span:
    """[since, until), Unix seconds, and the width of a point of the series."""

    since_s: float
    until_s: float
    step_s: float


def span_of(since_s: float, until_s: float) -> Span:
    """The finest step with at most MOST_POINTS points."""
    fitting = (step for step in STEPS_S if (until_s - since_s) / step <= MOST_POINTS)
    return Span(since_s, until_s, next(fitting, STEPS_S[-1]))


def energy(disk: sqlite3.Connection, span: Span, tariff: Tariff) -> dict[str, Any]:
    """The whole answer of GET /admin/energy but for what is live."""
    sums = dict(zip(JOULES, _sums(disk, span), strict=True))
    counts = _one(disk, f"select {_added('requests', 'output_tokens', 'good_tokens')} from accounts", span)
    booked_j = sums["meter_j"] + sums["filled_j"]
    lines = {cause.removesuffix("_j"): sums[cause] for cause in CAUSES}
    spent = list(disk.execute(f"select t, meter_j + filled_j from windows {WITHIN}", (span.since_s, span.until_s)))
    measured_j = _one(disk, "select coalesce(sum(meter_j), 0) from windows", span, "quality = 'measured'")[0]
    return {
        "since": span.since_s,
        "until": span.until_s,
        "step_s": span.step_s,
        "quality": quality(measured_j, sums),
        "meter_j": sums["meter_j"],
        "filled_j": sums["filled_j"],
        "lines": {"requests": lines["prefill"] + lines["decode"], **lines},
        "residual_share": sums["residual_j"] / booked_j if booked_j else 0.0,
        "model_error": sums["expected_j"] / sums["judged_j"] - 1 if sums["judged_j"] else None,
        "requests": int(counts[0]),
        "output_tokens": int(counts[1]),
        "good_tokens": int(counts[2]),
        "j_per_good_token": booked_j / counts[2] if counts[2] else None,
        "co2": None if tariff.gco2 is None else {"g": total(tariff.gco2, spent)},
        "cost": None if tariff.price is None else {"amount": total(tariff.price, spent), "currency": tariff.currency},
        "series": series(disk, span),
        **{f"by_{group}": grouped(disk, span, group) for group in GROUPS},
    }


def quality(measured_j: float, sums: dict[str, float]) -> dict[str, str]:
    """`meter`: measured if all of it is a real counter's; `requests`: a share of a counter is attributed."""
    measured = sums["meter_j"] > 0 and measured_j >= 0.999 * (sums["meter_j"] + sums["filled_j"])
    return {"meter": "measured" if measured else "modelled", "requests": "attributed" if measured else "modelled"}


def series(disk: sqlite3.Connection, span: Span) -> list[dict[str, float]]:
    """Mean watts by cause; a step in which nothing was booked is left out."""
    step_s = span.step_s
    sums = ", ".join(f"sum({name}) / {step_s}" for name in ("meter_j + filled_j", *CAUSES))
    rows = disk.execute(
        f"select cast(t / {step_s} as int) * {step_s} as at, {sums} from windows {WITHIN} group by at order by at",
        (span.since_s, span.until_s),
    )
    names = ("t", "total", *(cause.removesuffix("_j") for cause in CAUSES))
    return [dict(zip(names, row, strict=True)) for row in rows]


def grouped(disk: sqlite3.Connection, span: Span, group: str) -> dict[str, dict[str, float | None]]:
    """Joules of requests by service, pool, class or key. What idles is nobody's."""
    names = ("prefill_j", "decode_j", "requests", "input_tokens", "output_tokens", "good_tokens")
    rows = disk.execute(
        f"select {group}, {_added(*names)} from accounts {WITHIN} group by 1 order by sum(prefill_j + decode_j) desc",
        (span.since_s, span.until_s),
    )
    return {name: _group(dict(zip(names, values, strict=True))) for name, *values in rows}


def _group(sums: dict[str, float]) -> dict[str, float | None]:
    joules = sums["prefill_j"] + sums["decode_j"]
    good = sums["good_tokens"]
    return {"joules": joules, **sums, "j_per_good_token": joules / good if good else None}


WITHIN = "where t >= ? and t < ?"


def _sums(disk: sqlite3.Connection, span: Span) -> tuple[float, ...]:
    return _one(disk, f"select {_added(*JOULES)} from windows", span)


def _one(disk: sqlite3.Connection, select: str, span: Span, more: str = "") -> tuple[float, ...]:
    condition = f"{WITHIN} and {more}" if more else WITHIN
    row: tuple[float, ...] = disk.execute(f"{select} {condition}", (span.since_s, span.until_s)).fetchone()
    return row


def _added(*names: str) -> str:
    return ", ".join(f"coalesce(sum({name}), 0.0)" for name in names)


def request_joules(disk: sqlite3.Connection, request_id: str) -> dict[str, Any] | None:
    """A client may send the same id twice: the newest counts."""
    columns = ("id", "t", "key", "service", "size_class", "outcome", "input_tokens", "output_tokens", "attained",
               "prefill_j", "decode_j", "quality")  # fmt: skip
    row = disk.execute("select * from requests where id = ? order by t desc limit 1", (request_id,)).fetchone()
    if row is None:
        return None
    found = dict(zip(columns, row, strict=True))
    return {**found, "attained": bool(found["attained"]), "joules": found["prefill_j"] + found["decode_j"]}


def joules_by_window(disk: sqlite3.Connection, service: str, begins_s: float, ends_s: float) -> list[float]:
    """Counted and modelled joules of a service from `begins_s` on, in bins of WINDOW_S. A window that is cut by either
    end counts by its share."""
    bins = [0.0] * max(1, ceil((ends_s - begins_s) / WINDOW_S))
    rows = disk.execute(
        "select t, sum(meter_j + filled_j) from windows where service = ? and t > ? and t < ? group by t order by t",
        (service, begins_s - WINDOW_S, ends_s),
    ).fetchall()
    for at_s, joules in rows:
        for place, share in _shares(max(at_s, begins_s) - begins_s, min(at_s + WINDOW_S, ends_s) - begins_s):
            bins[place] += joules * share
    return bins


def lines_between(disk: sqlite3.Connection, service: str, begins_s: float, ends_s: float) -> dict[str, float]:
    """Joules of a service by the simulator's causes, in the windows that lie between for the most part."""
    row = disk.execute(
        f"select {_added('prefill_j', 'decode_j')}, coalesce(sum(idle_j + parked_j), 0.0), "
        "coalesce(sum(starting_j + switching_j), 0.0) from windows where service = ? and t >= ? and t < ?",
        (service, begins_s - WINDOW_S / 2, ends_s - WINDOW_S / 2),
    ).fetchone()
    return dict(zip(("prefill", "decode", "idle", "switching"), row, strict=True))


def _shares(from_s: float, to_s: float) -> list[tuple[int, float]]:
    first = int(from_s // WINDOW_S)
    edge_s = min(to_s, (first + 1) * WINDOW_S)
    found = [(first, (edge_s - from_s) / WINDOW_S)]
    if to_s > edge_s:
        found.append((first + 1, (to_s - edge_s) / WINDOW_S))
    return found
