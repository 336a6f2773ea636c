"""The dashboard's data: one look a second at everything that runs, kept as series and told to all viewers at once.

Owns the series, the windows and the newest frame. A frame is made once, however many watch, and not at all when nobody
does. Decides nothing and touches nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from controller.knowledge import ServiceKnowledge
from core.errors import NotFound
from gateway.admin_controller import proposed_now, service_plans
from gateway.admin_overrides import overrides_view
from gateway.board_events import BoardEvents
from gateway.board_frontier import Frontiers
from gateway.board_series import Series, Tally
from gateway.board_services import COLUMNS, Past, Picture, picture
from gateway.cold import VERSION
from gateway.wiring import Running
from pools.stints import Bill

PERIOD_S = 1.0
FORECAST_EVERY = 5  # looks; a forecast is a few array operations per service
RECENT, MISSED = 40, 40
BILLS = 2000
MOST_VIEWERS = 64
NOT_TOLD = {name: {"targets": {"__all__": {"clocks"}}} for name in ("plan", "in_force")}  # too long for each second
Answer = Mapping[str, Any]


class Board:
    """Owner: the event loop. `run` looks; everything else reads."""

    def __init__(self, running: Running, events: BoardEvents) -> None:
        self._running = running
        self._clock = running.clock
        self.events = events
        self._frontiers = Frontiers()
        self.viewers = 0
        self._past: defaultdict[str, Past] = defaultdict(Past)
        self._series: defaultdict[str, Series] = defaultdict(Series)
        self._recent: deque[Answer] = deque(maxlen=RECENT)
        self._missed: deque[Answer] = deque(maxlen=MISSED)
        self._bills: dict[str, dict[str, Any]] = {}  # of the newest requests
        self._pictures: list[Picture] = []
        running.ledger.on_settled = self._settled_after(running.ledger.on_settled)
        self._looks = 0
        self._frame = b""
        self._next = asyncio.Event()
        self._closed = False

    async def run(self) -> None:
        """For ever, once a second."""
        while True:
            self.look()
            await self._clock.sleep(PERIOD_S)

    def close(self) -> None:
        """Viewers are told that this is the end, so that no open stream holds up a shutdown."""
        self._closed = True
        self._next.set()

    def look(self) -> None:
        """One sample of every service."""
        running, wall_s = self._running, self._clock.wall_s()
        gateway = running.gateway
        self._count(wall_s)
        knowledge = running.controller.knowledge
        states = running.controller.state.services
        self._pictures = []
        for name, service in gateway.services.items():
            past = self._past[name]
            state = states.get(name)
            if self._looks % FORECAST_EVERY == 0:
                past.forecast(state, wall_s, knowledge.settings.coverage if name in knowledge.services else None)
            one = knowledge.services.get(name) or ServiceKnowledge(service.spec, service.fleet.model)
            made = picture(service, one, state, past, running.ledger.drawn, self._clock.now_s())
            self._series[name].add(wall_s, made.row)
            self._pictures.append(made)
        for gone in self._past.keys() - gateway.services.keys():
            del self._past[gone]
            self._series.pop(gone, None)
        self._looks += 1
        self._frame = b""
        woken, self._next = self._next, asyncio.Event()
        woken.set()

    async def frames(self) -> AsyncIterator[bytes]:
        """SSE events from now on; a viewer that is slow misses some and gets the newest."""
        self.viewers += 1
        try:
            while not self._closed:
                following = self._next
                yield self._newest_frame()
                await following.wait()
            yield b"event: end\ndata: {}\n\n"
        finally:
            self.viewers -= 1

    def snapshot(self) -> Answer:
        """Everything at this second. `events`: those of the last few, by number; a page drops what it has."""
        running = self._running
        plans = {one.service: one.model_dump(exclude=NOT_TOLD) for one in service_plans(running)}
        return {
            "t": round(self._clock.wall_s(), 3), "version": VERSION, "generation": running.generation,
            "mode": running.mode.name, "planning": running.config.controller.plan, "closing": running.gateway.closing,
            "in_flight": running.gateway.in_flight, "ticks": running.controller.state.ticks,
            "controller_error": running.controller.last_error,
            "gpus": {"total": running.config.controller.gpus, "used": sum(one.gpus for one in self._pictures)},
            "columns": COLUMNS,
            "services": [one.told(plans.get(one.name)) for one in self._pictures],
            "proposed": proposed_now(running),
            "overrides": [one.model_dump() for one in overrides_view(running)],
            "events": self.events.since(max(0, self.events.newest - 20)),
            "newest_event": self.events.newest,
        }  # fmt: skip

    def history(self, window_s: float) -> Answer:
        """The series of every service at the finest resolution that reaches back so far, and the events in it."""
        since_s = self._clock.wall_s() - window_s
        tiers = {name: series.of(window_s) for name, series in self._series.items()}
        return {
            "columns": COLUMNS,
            "step_s": next((tier.step_s for tier in tiers.values()), PERIOD_S),
            "services": {
                name: [[round(v, 3) if i else v for i, v in enumerate(row)] for row in tier.rows if row[0] >= since_s]
                for name, tier in tiers.items()
            },
            "events": [event for event in self.events.since(0) if event.t >= since_s],
        }

    def requests(self) -> Answer:
        """The newest requests that ended, and the newest that missed their objectives; newest first."""
        return {"recent": self._billed(self._recent), "missed": self._billed(self._missed)}

    async def frontier(self, name: str) -> Answer:
        """The time-energy frontier of each class of a service. NotFound."""
        service = self._running.gateway.services.get(name)
        if service is None:
            raise NotFound(f"there is no service {name}", code="unknown_service")
        return await self._frontiers.of(service.fleet.model)

    def _settled_after(self, first: Callable[[Bill], None]) -> Callable[[Bill], None]:
        """The ledger tells one listener; who listened before goes on doing so."""

        def settled(bill: Bill) -> None:
            first(bill)
            quality = "modelled" if bill.modelled else "attributed"
            self._bills[bill.request_id] = {"joules": round(bill.joules, 3), "joules_quality": quality}
            while len(self._bills) > BILLS:
                del self._bills[next(iter(self._bills))]
            if bill.service in self._past:
                window = self._past[bill.service].classes[bill.size_class]
                window.spent(self._clock.wall_s(), bill.joules, modelled=bill.modelled)

        return settled

    def _billed(self, rows: deque[Answer]) -> list[Answer]:
        return [{**self._bills.get(row["id"], {}), **row} for row in reversed(rows)]

    def _newest_frame(self) -> bytes:
        if not self._frame:
            self._frame = b"data: " + msgspec.json.encode(self.snapshot()) + b"\n\n"
        return self._frame

    def _count(self, wall_s: float) -> None:
        """The requests that ended since the last look, by service, class and pool."""
        fresh = self.events.fresh
        parts: defaultdict[tuple[str, str, str], Tally] = defaultdict(Tally)
        ttfts: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        while fresh:
            row: Mapping[str, Any] = fresh.popleft()
            self._recent.append(row)
            if row.get("attained") is False:
                self._missed.append(row)
            if row.get("moves"):
                why = "its instance was lost or left"
                self.events.add(wall_s, "migration", "notice", "a stream went on elsewhere", why, row)
            name, place = row.get("service") or "", (row.get("class") or "", row.get("pool") or "")
            _tally(parts[name, *place], row)
            if row.get("ttft_s") is not None:
                ttfts[name, *place].append(row["ttft_s"])
        for past in self._past.values():
            past.pass_time(wall_s)
        for key, part in parts.items():
            if key[0] in self._past:
                self._past[key[0]].add(wall_s, key[1], key[2], part, ttfts[key])


def _tally(tally: Tally, row: Mapping[str, Any]) -> None:
    tokens = row.get("output_tokens") or 0
    tally.ended += 1
    tally.tokens += tokens
    if "attained" in row:
        tally.judged += 1
        if row["attained"]:
            tally.attained += 1
            tally.good_tokens += tokens
