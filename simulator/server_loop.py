"""Drives the engine in real time. Owns the due times of steps, pausing, draining, and the meters.

A step's tokens are published at the step's end. Due times are absolute (a step begins when the last one was due to
end), so timer latency does not add up. With speed > 1 the engine's seconds pass faster; joules are in engine seconds,
the latency histograms in real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from core.clock import Clock
from simulator.engine import Ask, Engine, Running, StepResult
from simulator.engine_gpus import EngineGpus
from simulator.server_errors import engine_failed, shutting_down
from simulator.server_metrics import Meters
from simulator.server_outlet import Outlet, Ticket

# Behind by more than this the schedule starts anew: a process that was starved must not catch up in a burst.
LAG_LIMIT_S = 0.1
IDLE_WAIT_S = 3600.0


class EngineLoop:
    def __init__(self, engine: Engine, clock: Clock, speed: float, gpus: EngineGpus | None = None) -> None:
        self.engine = engine
        self.gpus = gpus
        self.clock = clock
        self.speed = speed
        self.meters = Meters()
        self.paused = False
        self.sleep_level = 0
        self._gone: set[str] = set()  # memory that sleep has freed
        self.closing = False
        self.dead = False  # the engine is gone and its server is not yet
        self.dropped_s = 0.0  # real seconds the schedule was behind when it started anew
        self._origin_s = clock.now_s()
        self._wake = asyncio.Event()
        self._all_answered = asyncio.Event()  # nothing is owed to any client
        self._engine_empty = asyncio.Event()  # requests may still be held outside
        self._finishing = False
        self._tickets: dict[str, Ticket] = {}
        self._outlets: dict[str, Outlet] = {}
        self._held: list[Ask] = []

    # --- time

    def engine_s(self) -> float:
        """Now, in the engine's seconds."""
        return (self.clock.now_s() - self._origin_s) * self.speed

    @property
    def frozen(self) -> bool:
        return self.paused or self.sleep_level > 0

    # --- requests

    def submit(self, outlets: Sequence[Outlet]) -> Ticket:
        """While frozen, requests hang outside the engine, as with the real server."""
        if self.dead:
            raise engine_failed()
        if self.closing:
            raise shutting_down()
        ticket = Ticket(list(outlets))
        for outlet in outlets:
            self._outlets[outlet.ask.id] = outlet
            self._tickets[outlet.ask.id] = ticket
            if self.frozen:
                self._held.append(outlet.ask)
            else:
                self.engine.add(outlet.ask, self.engine_s())
        self._wake.set()
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """The client left: its sequences end at once, uncounted, as with the real server."""
        ticket.gone = True
        for outlet in ticket.outlets:
            self._forget(outlet.ask.id)
        ticket.ready.set()

    def abort_all(self) -> None:
        """Every answer ends here with finish_reason "abort"; its HTTP response ends properly."""
        for outlet, ticket in [(self._outlets[key], self._tickets[key]) for key in self._outlets]:
            outlet.end("abort")
            self.meters.finished["abort"] += 1
            self._forget(outlet.ask.id)
            ticket.ready.set()

    def die(self) -> None:
        """The engine's process is killed and its server lives on for a moment: every answer ends with an error."""
        self.dead = True
        for ticket in {id(ticket): ticket for ticket in self._tickets.values()}.values():
            ticket.dead = True
            ticket.ready.set()
        for key in list(self._outlets):
            self._forget(key)
        self._wake.set()

    # --- operator

    async def pause(self, mode: str) -> None:
        self.paused = True
        await self._settle(mode)

    async def sleep(self, level: int, mode: str) -> None:
        self.sleep_level = max(level, 1)
        self._gone = {"weights", "kv_cache"}
        await self._settle(mode)

    def resume(self) -> None:
        self.paused = False
        self._thaw()

    def wake_up(self, tags: Collection[str] = ()) -> bool:
        """Whether it is awake, which it is when all memory is back: a wake may name a part of it."""
        self._gone -= set(tags) or self._gone
        if self._gone:
            return False
        self.sleep_level = 0
        self._thaw()
        return True

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests, lets those under way finish for `timeout_s`, then aborts the rest."""
        self.closing = True
        if timeout_s > 0 and self._outlets:
            self._all_answered.clear()
            await self.clock.sleep_until(self.clock.now_s() + timeout_s, wake=self._all_answered)
        self.abort_all()

    # --- the loop

    async def run(self) -> None:
        """Until it is dead."""
        due_s: float | None = None
        while not self.dead:
            if self._stalled():
                due_s = None
                self._rest()
                await self.clock.sleep_until(self.clock.now_s() + IDLE_WAIT_S, wake=self._wake)
                continue
            start_s = self._start(due_s)
            result = self.step(start_s)
            due_s = start_s + result.duration_s
            await self.clock.sleep_until(self._origin_s + due_s / self.speed)
            self._publish(result, self._origin_s + due_s / self.speed)

    def step(self, start_s: float) -> StepResult:
        """One step, at the clock that the GPUs have now, if there are any; they are told its watts."""
        self.follow_clock()
        result = self.engine.step(start_s)
        if self.gpus is not None:
            self.gpus.work(result.watts)
        return result

    def follow_clock(self) -> None:
        if self.gpus is not None:
            self.engine.set_clock(self.gpus.clock_mhz())

    def _rest(self) -> None:
        self.follow_clock()
        if self.gpus is not None:
            self.gpus.rest(self.engine.watts(self.engine_s()))

    def _stalled(self) -> bool:
        # A pause that waits for the answers under way has to keep stepping; one that keeps them has not.
        return not self.engine.has_work or (self.frozen and not self._finishing)

    def _start(self, due_s: float | None) -> float:
        now_s = self.engine_s()
        if due_s is None:
            return now_s
        lag_s = (now_s - due_s) / self.speed
        if lag_s <= LAG_LIMIT_S:
            return due_s
        self.dropped_s += lag_s
        return now_s

    async def _settle(self, mode: str) -> None:
        if mode == "abort":
            self.abort_all()
        elif mode == "wait" and self.engine.has_work:
            self._finishing = True
            self._engine_empty.clear()
            await self._engine_empty.wait()
            self._finishing = False

    def _thaw(self) -> None:
        if self.frozen:
            return
        for ask in self._held:
            if ask.id in self._outlets:
                self.engine.add(ask, self.engine_s())
        self._held.clear()
        self._wake.set()

    def _publish(self, result: StepResult, now_s: float) -> None:
        self.meters.iteration.observe(result.prefill_tokens + len(result.emitted))
        for one, token in result.emitted:
            key = one.ask.id
            outlet = self._outlets.get(key)
            if outlet is None:
                continue
            stopped = outlet.push(token, one.finish_reason, one.stop_reason)
            self._time(outlet, one, now_s)
            self._tickets[key].ready.set()
            if stopped:
                self.engine.abort(key)
            if outlet.finish_reason is not None:
                self._count_finished(outlet, one, now_s)
                self._forget(key)

    def _time(self, outlet: Outlet, one: Running, now_s: float) -> None:
        meters = self.meters
        if outlet.count == 1:
            outlet.first_s = now_s
            meters.ttft.observe(now_s - outlet.arrived_s)
        else:
            meters.itl.observe(now_s - outlet.last_s)
        outlet.last_s = now_s

    def _count_finished(self, outlet: Outlet, one: Running, now_s: float) -> None:
        meters = self.meters
        started_s = self._origin_s + (one.started_s or 0.0) / self.speed
        meters.finished[outlet.finish_reason or "abort"] += 1
        meters.e2e.observe(now_s - outlet.arrived_s)
        meters.queue.observe(max(0.0, started_s - outlet.arrived_s))
        meters.prefill.observe(outlet.first_s - started_s)
        meters.decode.observe(now_s - outlet.first_s)
        meters.inference.observe(now_s - started_s)
        meters.prompt.observe(len(outlet.ask.prompt))
        meters.generation.observe(outlet.count)
        meters.asked_tokens.observe(outlet.ask.max_tokens)
        if outlet.count > 1:
            meters.tpot.observe((now_s - outlet.first_s) / (outlet.count - 1))

    def _forget(self, key: str) -> None:
        self.engine.abort(key)
        self._outlets.pop(key, None)
        self._tickets.pop(key, None)
        if not self._outlets:
            self._all_answered.set()
        if not self.engine.has_work:
            self._engine_empty.set()
