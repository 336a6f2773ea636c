"""What happens, as it happens: plans, rungs, moves, deaths, an operator's acts, and the watts of each second.

A Recorder in front of the run log: it hands every row on, keeps the last EVENTS that are no request's, and writes them,
encoded once, to everyone who listens (GET /admin/events). A listener that does not keep up loses its oldest events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from core.recorder import Recorder

EVENTS = 2000
BACKLOG = 500  # events that a listener may be behind
KINDS = {
    "instance_starting": "instance", "instance_state": "instance", "instance_gone": "instance",
    "clock_refused": "instance", "controller": "controller", "tick": "actions", "tick_failed": "fault",
    "plan_failed": "fault", "admin": "admin",
}  # fmt: skip


class Events:
    """Owns the ring and the listeners. `record` is the Recorder's; `tell` is for what is no row of the run log."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._ring: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self._listeners: set[asyncio.Queue[bytes]] = set()
        self._number = 0

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def record(self, row: Mapping[str, object]) -> None:
        self._recorder.record(row)
        if row["kind"] == "decision":  # every tick whole, for deciding it again: too much for a listener
            return
        if row["kind"] != "request":
            self.tell(KINDS.get(str(row["kind"]), "note"), row)
        elif "moves" in row:
            fields = ("t", "service", "class", "pool", "instance", "moves", "seam_s", "outcome")
            told = {"kind": "migration", "request": row["id"], **{name: row[name] for name in fields}}
            self.tell("migration", told)

    def tell(self, event: str, row: Mapping[str, object]) -> None:
        """Kept, and sent to all who listen."""
        self._number += 1
        kept = {**row, "id": self._number, "event": event}
        if "id" in row:  # of a plan, an override: the event has a number of its own
            kept["of"] = row["id"]
        self._ring.append(kept)
        self.send(event, kept, self._number)

    def send(self, event: str, data: Mapping[str, object], number: int | None = None) -> None:
        """Sent, and not kept."""
        if not self._listeners:
            return
        mark = b"" if number is None else b"id: %d\n" % number
        message = b"event: %b\n%bdata: %b\n\n" % (event.encode(), mark, msgspec.json.encode(data))
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(message)

    def recent(self, after: int = 0, limit: int = EVENTS, since_s: float = 0.0) -> list[dict[str, Any]]:
        """The newest `limit` events after number `after` and moment `since_s`, oldest first."""
        found = [one for one in self._ring if one["id"] > after and float(one.get("t", 0.0)) >= since_s]
        return found[-limit:]

    async def listen(self, after: int | None) -> AsyncIterator[bytes]:
        """Events from now on, and before them those after number `after`. For ever."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(BACKLOG)
        self._listeners.add(queue)
        try:
            yield b": joulegate\n\n"
            for one in [] if after is None else self.recent(after):
                yield b"event: %b\nid: %d\ndata: %b\n\n" % (one["event"].encode(), one["id"], msgspec.json.encode(one))
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)
