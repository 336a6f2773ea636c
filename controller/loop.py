"""The controller's loop: observe, decide, act, record, sleep. The only part of the controller that awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from controller.knowledge import Knowledge
from controller.planning import Ask, ServicePlan, make_plan
from controller.state import ControllerState, Decision
from controller.tick import tick
from core.clock import Clock
from core.instances import Action, Seen
from core.recorder import Recorder

Answers = Mapping[str, ServicePlan]
Solve = Callable[[Ask], Awaitable[Answers]]


class Cluster(Protocol):
    """A world to control: live instances or simulated ones."""

    changed: asyncio.Event

    async def observe(self) -> Seen: ...

    async def apply(self, action: Action) -> None: ...


async def solved_at_once(ask: Ask) -> Answers:
    return make_plan(ask)


async def solved_aside(ask: Ask) -> Answers:
    """In a thread, so that a stream waits no longer than the interpreter takes to switch."""
    return await asyncio.to_thread(make_plan, ask)


class Controller:
    """Owns the controller's state. `state`, `last` and `last_error` may be read by the admin API."""

    def __init__(
        self, cluster: Cluster, clock: Clock, recorder: Recorder, *, interval_s: float,
        knowledge: Callable[[], Knowledge] = Knowledge, solve: Solve = solved_aside, inline: bool = False,
    ) -> None:  # fmt: skip
        """`inline`: a plan is waited for, so that a simulation repeats itself."""
        self._cluster = cluster
        self._clock = clock
        self._recorder = recorder
        self._interval_s = interval_s
        self._knowledge = knowledge
        self._solve = solve
        self._inline = inline
        self._solving: asyncio.Task[Answers] | None = None
        self._answers: Answers | None = None
        self.state = ControllerState()
        self.last: Decision | None = None
        self.last_error = ""

    async def run(self) -> None:
        """For ever. A tick that raises is recorded and the next one comes: serving never depends on it."""
        while True:
            try:
                due_s = await self._once()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._failed("tick_failed", error)
                due_s = self._clock.now_s() + self._interval_s
            await self._clock.sleep_until(due_s, wake=self._cluster.changed)

    async def _once(self) -> float:
        seen = await self._cluster.observe()
        self.state, decision = tick(self.state, seen, self._knowledge(), self._interval_s, self._answer())
        self.last = decision
        for action in decision.actions:
            await self._cluster.apply(action)
        self._record(decision)
        if decision.ask is None:
            return decision.next_due_s
        if self._inline:
            self._answers = await self._solve(decision.ask)
            return seen.now_s
        self._solving = asyncio.create_task(self._told(decision.ask))
        return decision.next_due_s

    def _answer(self) -> Answers | None:
        """The plan that was asked for, once it is there. A solver that failed leaves the last plan in place."""
        if self._solving is None or not self._solving.done():
            answers, self._answers = self._answers, None
            return answers
        solving, self._solving = self._solving, None
        error = solving.exception()
        if error is None:
            return solving.result()
        self._failed("plan_failed", error)
        return {name: one.plan for name, one in self.state.services.items() if one.plan is not None}

    async def _told(self, ask: Ask) -> Answers:
        try:
            return await self._solve(ask)
        finally:
            self._cluster.changed.set()

    def _failed(self, kind: str, error: BaseException) -> None:
        self.last_error = f"{type(error).__name__}: {error}"
        self._recorder.record({"kind": kind, "t": self._clock.wall_s(), "error": self.last_error})

    def _record(self, decision: Decision) -> None:
        for note in decision.notes:
            self._recorder.record({"kind": "controller", "t": self._clock.wall_s(), **note})
        for name, actions in (("actions", decision.actions), ("proposed", decision.proposed)):
            if actions:
                told = [{"action": type(action).__name__.lower(), **_fields(action)} for action in actions]
                self._recorder.record({"kind": "tick", "t": self._clock.wall_s(), name: told})


def _fields(action: Action) -> dict[str, object]:
    return {name: _plain(getattr(action, name)) for name in type(action).__dataclass_fields__}


def _plain(value: object) -> object:
    fields = getattr(type(value), "__dataclass_fields__", None)
    return value if fields is None else {name: getattr(value, name) for name in fields}
