"""What the dashboard shows on its time axis: rows of the run log, told as events. Owns the newest of each kind.

A Recorder that stands before the one that writes: every row goes on unchanged, and whoever records waits for nothing.
Rows of requests are only put aside here; gateway/board.py counts them once a second."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from core.recorder import Recorder

KEPT = 200  # of each kind: clocks that move every five seconds push no death out
SHOWN = 8  # actions of a tick in the detail of its event
FRESH_ROWS = 20_000  # requests of one second; more are counted by the metrics, not shown here
OPERATOR_FIELDS = {"kind", "t", "who", "action"}


class Event(Struct):
    """`kind` chooses the sign on the axis, `level` (info, notice, bad) how loud it is, `why` is the reason as it was
    given by whoever acted, `count` how many alike came within one second."""

    n: int
    t: float
    kind: str
    level: str
    service: str
    title: str
    why: str
    detail: dict[str, Any]
    count: int = 1


class BoardEvents:
    """Owner: the event loop. `fresh` holds the request rows that nobody has counted yet."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._kept: dict[str, deque[Event]] = {}
        self._proposed: object = None
        self.fresh: deque[Mapping[str, object]] = deque(maxlen=FRESH_ROWS)
        self.newest = 0

    def record(self, row: Mapping[str, object]) -> None:
        self._recorder.record(row)
        if row.get("kind") == "request":
            self.fresh.append(row)
            return
        for kind, level, title, why in self._told(row):
            self.add(_number(row.get("t")), kind, level, title, why, _brief(row))

    def add(self, t: float, kind: str, level: str, title: str, why: str, detail: Mapping[str, object]) -> None:
        kept = self._kept.setdefault(kind, deque(maxlen=KEPT))
        self.newest += 1
        service = str(detail.get("service") or "")
        last = kept[-1] if kept else None
        if last is not None and (last.title, last.service, last.why) == (title, service, why) and t - last.t < 1.0:
            last.n, last.count = self.newest, last.count + 1
            return
        kept.append(Event(self.newest, t, kind, level, service, title, why, dict(detail)))

    def since(self, n: int) -> list[Event]:
        """Those after number `n`, oldest first."""
        return sorted((e for kept in self._kept.values() for e in kept if e.n > n), key=lambda e: e.n)

    def _told(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
        """(kind, level, title, why) of each event that a row is."""
        kind, reason = row["kind"], str(row.get("reason") or "")
        if kind == "controller":
            yield _note(row)
        elif kind == "tick":
            yield from self._tick(row)
        elif kind in ("tick_failed", "plan_failed"):
            what = "a tick of the controller failed" if kind == "tick_failed" else "a plan could not be made"
            yield "error", "bad", what, str(row.get("error", ""))
        elif kind == "instance_starting":
            yield "instance", "info", f"{row['instance']} starts", reason
        elif kind == "instance_gone":
            yield "instance", "info", f"{row['instance']} is gone", reason
        elif kind == "instance_state":
            yield _moved(row, reason)
        elif kind == "clock_refused":
            yield "clock", "notice", f"{row['instance']} refuses {row['clock_mhz']} MHz", reason
        elif kind == "admin":
            asked = ", ".join(f"{name} {value}" for name, value in row.items() if name not in OPERATOR_FIELDS)
            yield "operator", "notice", f"{row['who']}: {str(row['action']).replace('_', ' ')}", asked

    def _tick(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
        yield from _clocks(row.get("actions", ()))
        for action in row.get("actions", ()):
            if action["action"] in ("park", "wake"):
                yield "instance", "info", f"{action['instance_id']}: {action['action']}", action["reason"]
        proposed: Sequence[Mapping[str, Any]] = row.get("proposed", ())
        signs = Counter(action["action"] for action in proposed)
        if signs and signs != self._proposed:  # what is proposed anew every second is one event
            told = ", ".join(f"{number} {name}" for name, number in sorted(signs.items()))
            yield "proposed", "info", f"would do: {told}", str(proposed[0].get("reason", ""))
        self._proposed = signs or self._proposed


def _note(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    note = row.get("note")
    if note == "plan":
        load = f"for {row['mean_rps']:.2f} requests/s on average and {row['upper_rps']:.2f} at the peak"
        return "plan", "info", f"plan: {', '.join(row['targets'])}", f"{load}; {row['status']}"
    if note in ("override", "override_over"):
        over = note == "override_over"
        title = f"{str(row['override']).replace('_', ' ')} {'is over' if over else 'by ' + str(row.get('by'))}"
        return "operator", "notice", title, str(row.get("reason", ""))
    if note == "do_no_harm":
        why = f"{row.get('bad_minutes')} minutes in a row under the promise"
        return "guard", "bad", "everything at its fastest", why
    if note == "stale":
        ages = ", ".join(f"{name} {age_s:.0f} s" for name, age_s in row["what"].items())
        return "guard", "notice", "seen too long ago to slow down or drain for it", ages
    if note == "fresh_again":
        return "guard", "info", "seen as it is again", ", ".join(row["what"])
    rungs: Sequence[str] = row.get("rungs", ())
    if not rungs:
        return "ladder", "info", f"{row.get('pool')} leaves the ladder", str(row.get("cause", ""))
    level = "bad" if "shed" in rungs else "notice"
    return "ladder", level, f"{row.get('pool')}: {' + '.join(rungs)}", str(row.get("cause", ""))


def _moved(row: Mapping[str, Any], reason: str) -> tuple[str, str, str, str]:
    name, to = row["instance"], row["to"]
    if to == "failed":
        return "death", "bad", f"{name} failed", reason
    words = {"ready": "is ready", "draining": "drains", "parked": "sleeps", "stopped": "has stopped"}
    return "instance", "info", f"{name} {words.get(to, to)}", reason


def _clocks(actions: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    """One event per clock and reason, however many instances."""
    turned = Counter((a["clock_mhz"], a["reason"]) for a in actions if a["action"] == "setclock")
    for (mhz, reason), number in turned.items():
        many = f"{number} instances" if number > 1 else "1 instance"
        yield "clock", "info", f"{many} to {mhz} MHz", str(reason)


def _brief(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with the first few of its actions: a hundred clocks may turn in one tick."""
    long = {name: row[name] for name in ("actions", "proposed") if len(row.get(name, ())) > SHOWN}
    return {**row, **{name: [*some[:SHOWN], f"and {len(some) - SHOWN} more"] for name, some in long.items()}}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
