"""The solver's process: answers, is killed when it overruns, starts anew, and leaves nobody behind."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from controller import solve_worker
from controller.plan_books import violations
from controller.planning import drafted, make_plan
from controller.problem import Plan
from controller.solve_worker import SolveLost, SolveWorker
from controller.solving import Solving
from tests.planning import problem
from tests.unit.test_planning import NAME, ask

HANGS = (sys.executable, "-c", "import sys; sys.stdin.buffer.read()")
DIES = (sys.executable, "-c", "raise SystemExit(3)")


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_answers_again_and_again_from_one_child() -> None:
    async def story() -> None:
        worker, task = SolveWorker(), problem()
        try:
            plans = [await worker.solve(task, time_s=5.0) for _ in range(3)]
        finally:
            await worker.close()
        assert worker.started == 1
        assert all(isinstance(plan, Plan) and not violations(task, plan) for plan in plans)
        assert plans[0].source == "milp" or plans[0].bound_w > 0

    run(story())


def test_the_loop_goes_on_while_it_solves() -> None:
    async def story() -> None:
        worker, turns = SolveWorker(), 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.get_running_loop().run_in_executor(None, int)

        spinning = asyncio.create_task(others())
        try:
            await worker.solve(problem(), time_s=5.0)
        finally:
            spinning.cancel()
            await worker.close()
        assert turns > 3

    run(story())


def test_an_overrun_is_killed_and_the_next_problem_finds_a_fresh_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_worker, "GRACE_S", 0.05)
    monkeypatch.setattr(solve_worker, "IMPORTS_S", 0.05)

    async def story() -> None:
        worker = SolveWorker(HANGS)
        asking = asyncio.create_task(worker.solve(problem(), time_s=0.2))
        while worker.pid is None:
            await asyncio.get_running_loop().run_in_executor(None, int)
        pid = worker.pid
        with pytest.raises(SolveLost, match="killed after"):
            await asking
        assert not alive(pid)
        with pytest.raises(SolveLost):
            await worker.solve(problem(), time_s=0.05)
        assert worker.started == 2
        assert worker.pid is None

    run(story())


def test_a_dead_child_is_told_and_replaced() -> None:
    async def story() -> None:
        worker = SolveWorker(DIES)
        for _ in range(2):
            with pytest.raises(SolveLost, match="the worker ended"):
                await worker.solve(problem(), time_s=1.0)
        assert worker.started == 2

    run(story())


def test_a_child_killed_from_outside_is_replaced() -> None:
    async def story() -> None:
        worker = SolveWorker()
        try:
            await worker.solve(problem(), time_s=5.0)
            assert worker.pid is not None
            os.kill(worker.pid, 9)
            with pytest.raises(SolveLost):
                await worker.solve(problem(), time_s=5.0)
            assert isinstance(await worker.solve(problem(), time_s=5.0), Plan)
            assert worker.started == 2
        finally:
            await worker.close()

    run(story())


def test_cancelling_kills_the_child() -> None:
    async def story() -> None:
        worker = SolveWorker(HANGS)
        asking = asyncio.create_task(worker.solve(problem(), time_s=60.0))
        while worker.pid is None:
            await asyncio.get_running_loop().run_in_executor(None, int)
        pid = worker.pid
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not alive(pid)

    run(story())


def test_the_child_ends_when_its_pipe_closes() -> None:
    async def story() -> None:
        worker = SolveWorker()
        await worker.solve(problem(), time_s=5.0)
        child = worker._child
        assert child is not None and child.stdin is not None
        child.stdin.close()
        assert await asyncio.wait_for(child.wait(), 20) == 0

    run(story())


def test_a_plan_is_bettered_in_the_worker_and_never_made_worse() -> None:
    async def story() -> None:
        worker, lost = SolveWorker(), list[str]()
        asked = ask(60.0, 16, 8)
        try:
            (plan,) = (await Solving(worker, 10.0, lost.append)(asked)).values()
            solved = await worker.solve(drafted(asked).problem, time_s=10.0, start=drafted(asked).plan)
        finally:
            await worker.close()
        assert not lost and plan.targets and plan.status.split(":")[0] in ("milp", "dp")
        assert solved.cost_w <= drafted(asked).plan.cost_w

    run(story())


@pytest.mark.parametrize("argv", [HANGS, DIES])
def test_without_its_worker_the_first_plan_is_the_plan(argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_worker, "IMPORTS_S", 0.5)
    monkeypatch.setattr(solve_worker, "GRACE_S", 0.1)

    async def story() -> None:
        worker, lost, asked = SolveWorker(argv), list[str](), ask(60.0, 16, 8)
        try:
            plans = await Solving(worker, 0.1, lost.append)(asked)
        finally:
            await worker.close()
        assert plans == make_plan(asked) and len(lost) == 1 and NAME in plans

    run(story())
