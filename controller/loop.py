"""The controller's loop: observe, decide, act, record, sleep. The only part of the controller that awaits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from controller.knowledge import Knowledge
from controller.overrides import Apply, Order, Override, imposed
from controller.planning import Ask, ServicePlan, make_plan
from controller.state import ControllerState, Decision
from controller.tape import Inputs, TapeWriter, told
from controller.tick import tick
from core.clock import Clock
from core.instances import Action, Seen
from core.recorder import Recorder

PLANS_KEPT = 64
REPLAN_S = 60.0  # after a plan that could not be made; until then the last one stays
Answers = Mapping[str, ServicePlan]
Solve = Callable[[Ask], Awaitable[Answers]]


class Cluster(Protocol):
    """A world to control: live instances or simulated ones."""

    changed: asyncio.Event

    async def observe(self) -> Seen: ...

    async def apply(self, action: Action) -> None: ...


@dataclass(frozen=True, slots=True)
class Made:
    """A plan as it was made. `at_s`: Unix time. `by`: the controller, or the operator who had it proposed."""

    id: str
    at_s: float
    by: str
    reason: str
    plans: Answers


async def solved_aside(ask: Ask) -> Answers:
    """In a thread, so that a stream waits no longer than the interpreter takes to switch."""
    return await asyncio.to_thread(make_plan, ask)


class Controller:
    """Owns the controller's state. What has no underscore may be read by the admin API; orders steer it."""

    def __init__(
        self, cluster: Cluster, clock: Clock, recorder: Recorder, *, interval_s: float,
        knowledge: Callable[[], Knowledge] = Knowledge, solve: Solve = solved_aside, inline: bool = False,
        taped: bool = True,
    ) -> None:  # fmt: skip
        """`inline`: a plan is waited for, so that a simulation repeats itself. `taped`: every tick is a row."""
        self._cluster = cluster
        self._clock = clock
        self._recorder = recorder
        self.interval_s = interval_s
        self._knowledge = knowledge
        self._solve = solve
        self._inline = inline
        self._solving: asyncio.Task[Answers] | None = None
        self._asked: Ask | None = None
        self._answers: Answers | None = None
        self._lost_s: float | None = None  # since when the plan that was asked for will not come
        self._orders: list[Order] = []
        self._given = 0  # how many of them the tick that runs was given
        self._made = 0
        self._tape = TapeWriter() if taped else None
        self.state = ControllerState()
        self.seen: Seen | None = None
        self.last: Decision | None = None
        self.last_error = ""
        self.beat_s = clock.now_s()  # when the last round began
        self.history: deque[Made] = deque(maxlen=PLANS_KEPT)

    @property
    def knowledge(self) -> Knowledge:
        return self._knowledge()

    @property
    def overrides(self) -> tuple[Override, ...]:
        """Those that the next tick will find."""
        return imposed(self.state.overrides, self._orders)

    def order(self, order: Order) -> None:
        """Counts from the next tick on, which comes at once."""
        self._orders.append(order)
        self._cluster.changed.set()

    async def propose(self, ask: Ask, by: str) -> Made:
        """A plan for an operator to look at. Nothing changes."""
        return self._keep(await self._solve(ask), by, ask.reason)

    def apply(self, made: Made) -> None:
        self.order(Apply(made.plans))

    async def run(self) -> None:
        """For ever. A tick that raises is recorded and the next one comes: serving never depends on it."""
        while True:
            self.beat_s = self._clock.now_s()
            try:
                due_s = await self._once()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._failed("tick_failed", error)
                del self._orders[: self._given]  # one that no tick survives must not end them all
                self._given = 0
                self._lost_s = self._clock.now_s() if self._solving is None else self._lost_s
                due_s = self._clock.now_s() + self.interval_s
            await self._clock.sleep_until(due_s, wake=self._cluster.changed)

    async def _once(self) -> float:
        seen = self.seen = await self._cluster.observe()
        answer, orders = self._answer(), tuple(self._orders)
        inputs = Inputs(None, seen, self._knowledge(), self.interval_s, answer, orders)
        before, self._given = self.state, len(orders)
        self.state, decision = tick(before, seen, inputs.knowledge, self.interval_s, answer, orders)
        del self._orders[: len(orders)]
        self._given = 0
        self.last = decision
        if self._tape is not None:
            row = self._tape.row(before, inputs, decision)
            self._recorder.record({"kind": "decision", "t": self._clock.wall_s(), **row})
        for action in decision.actions:
            await self._cluster.apply(action)
        self._record(decision)
        if decision.ask is None:
            return decision.next_due_s
        self._asked = decision.ask
        if self._inline:
            self._answers = await self._solve(decision.ask)
            return seen.now_s
        self._lost_s = None
        self._solving = asyncio.create_task(self._told(decision.ask))
        return decision.next_due_s

    def _answer(self) -> Answers | None:
        """The plan that was asked for, once it is there. Where it could not be made the answer is empty, a while later:
        the last plan stays and another one may be asked for."""
        now_s = self._clock.now_s()
        if self._lost_s is not None and now_s - self._lost_s >= REPLAN_S:
            self._lost_s = None
            return {}
        if self._solving is None or not self._solving.done():
            answers, self._answers = self._answers, None
            return self._kept(answers)
        solving, self._solving = self._solving, None
        error = solving.exception()
        if error is None:
            return self._kept(solving.result())
        self._failed("plan_failed", error)
        self._lost_s = now_s
        return None

    def _kept(self, answers: Answers | None) -> Answers | None:
        if answers is not None and self._asked is not None:
            self._keep(answers, "controller", self._asked.reason)
        return answers

    def _keep(self, plans: Answers, by: str, reason: str) -> Made:
        self._made += 1
        self.history.append(Made(f"plan-{self._made}", self._clock.wall_s(), by, reason, plans))
        return self.history[-1]

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
                rows = [told(action) for action in actions]
                self._recorder.record({"kind": "tick", "t": self._clock.wall_s(), name: rows})
