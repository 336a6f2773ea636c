"""The controller's loop: observe, decide, act, record, sleep. The only part of the controller that awaits."""

from __future__ import annotations

import asyncio
from typing import Protocol

from controller.tick import ControllerState, tick
from core.clock import Clock
from core.instances import Action, Seen
from core.recorder import Recorder


class Cluster(Protocol):
    """A world to control: live instances or simulated ones."""

    changed: asyncio.Event

    async def observe(self) -> Seen: ...

    async def apply(self, action: Action) -> None: ...


class Controller:
    """Owns the controller's state. `state` and `last_error` may be read by the admin API."""

    def __init__(self, cluster: Cluster, clock: Clock, recorder: Recorder, *, interval_s: float) -> None:
        self._cluster = cluster
        self._clock = clock
        self._recorder = recorder
        self._interval_s = interval_s
        self.state = ControllerState()
        self.last_error = ""

    async def run(self) -> None:
        """For ever. A tick that raises is recorded and the next one comes: serving never depends on it."""
        while True:
            try:
                due_s = await self._once()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self.last_error = f"{type(error).__name__}: {error}"
                self._recorder.record({"kind": "tick_failed", "t": self._clock.wall_s(), "error": self.last_error})
                due_s = self._clock.now_s() + self._interval_s
            await self._clock.sleep_until(due_s, wake=self._cluster.changed)

    async def _once(self) -> float:
        seen = await self._cluster.observe()
        self.state, decision = tick(self.state, seen, self._interval_s)
        for action in decision.actions:
            await self._cluster.apply(action)
        if decision.actions:
            actions = [{"action": type(a).__name__.lower(), **_fields(a)} for a in decision.actions]
            self._recorder.record({"kind": "tick", "t": self._clock.wall_s(), "actions": actions})
        return decision.next_due_s


def _fields(action: Action) -> dict[str, str]:
    return {name: getattr(action, name) for name in type(action).__dataclass_fields__}
