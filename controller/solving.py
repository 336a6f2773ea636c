"""A plan made beside the loop: drafted in a thread, bettered by the integer programme in its worker process.

Owns the order of the two. Whatever becomes of the worker, the draft is a plan; a solver that is lost is told of, and
the next plan tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from controller.planning import Ask, ServicePlan, drafted, finished
from controller.solve_worker import SolveLost, SolveWorker

GAP = 0.001


class Solving:
    """Call it with what a plan is to be made of. `time_s`: limit of the integer programme."""

    def __init__(self, worker: SolveWorker, time_s: float, on_lost: Callable[[str], None]) -> None:
        self._worker = worker
        self._time_s = time_s
        self._on_lost = on_lost

    async def __call__(self, ask: Ask) -> Mapping[str, ServicePlan]:
        draft = await asyncio.to_thread(drafted, ask)
        plan = draft.plan
        try:
            plan = await self._worker.solve(draft.problem, time_s=self._time_s, gap=GAP, start=draft.plan)
        except SolveLost as lost:
            self._on_lost(str(lost))
        return await asyncio.to_thread(finished, draft, plan)
