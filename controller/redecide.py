"""Recorded inputs, decided anew by today's code, against what was decided then. Pure.

The state is today's own from one key row of the log to the next, so that one other decision may make others follow; at
each key row it is again what it was then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controller.planning import Ask, ServicePlan, make_plan
from controller.state import ControllerState
from controller.tape import Row, TapeReader, decided
from controller.tick import tick

SHOWN = 20  # changed decisions that are kept whole


@dataclass(slots=True)
class Redecided:
    """`skipped`: ticks before the first key row, or after rows that are missing. `plans`: made anew from what their
    demand was; `plans_changed`: of those, other counts or clocks. `unreadable`: the first row that is none."""

    ticks: int = 0
    changed: int = 0
    skipped: int = 0
    plans: int = 0
    plans_changed: int = 0
    differences: list[Row] = field(default_factory=list)
    unreadable: str = ""


def redecide(rows: Iterable[Row], *, plans: bool = True) -> Redecided:
    """`rows` of kind `decision`, in their order. `plans`: also make every plan anew, tenths of a second each."""
    result, reader = Redecided(), TapeReader()
    state, asked, expected = ControllerState(), None, 0
    for row in rows:
        if not row.get("key") and row.get("n") != expected:
            reader, asked = TapeReader(), None
        try:
            inputs = reader.read(row)
        except ValueError as error:
            result.unreadable = result.unreadable or str(error)
            reader, inputs = TapeReader(), None
        if inputs is None:
            result.skipped += 1
            continue
        expected = row["n"] + 1
        state = inputs.state if inputs.state is not None else state
        if inputs.answer is not None and asked is not None and plans:
            _planned(result, asked, inputs.answer, row)
        state, decision = tick(state, inputs.seen, inputs.knowledge, inputs.interval_s, inputs.answer, inputs.orders)
        asked = decision.ask or (None if inputs.answer is not None else asked)
        result.ticks += 1
        _compare(result, row, "decided", row["decided"], _as_json(decided(decision)))
    return result


def _planned(result: Redecided, ask: Ask, recorded: Mapping[str, ServicePlan], row: Row) -> None:
    result.plans += 1
    now = make_plan(ask)
    before = result.changed
    _compare(result, row, "plan", _shape(recorded), _shape(now))
    result.plans_changed += result.changed - before
    result.changed = before


def _shape(plans: Mapping[str, ServicePlan]) -> Row:
    return {
        name: [[t.kind.pool, t.kind.tp, t.count, t.clock_mhz] for t in sorted(plan.targets, key=lambda t: t.kind)]
        for name, plan in plans.items()
    }


def _compare(result: Redecided, row: Row, what: str, was: Any, now: Any) -> None:
    if was == now:
        return
    result.changed += 1
    if len(result.differences) < SHOWN:
        result.differences.append({"n": row["n"], "t": row.get("t"), "what": what, "was": was, "now": now})


def _as_json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))
