"""The loop when something fails: a plan that cannot be made leaves the last one, an order outlives a blind moment."""

import asyncio
from collections.abc import Callable

import pytest

from controller import loop
from controller.knowledge import Knowledge
from controller.loop import REPLAN_S, Answers, Controller
from controller.overrides import Impose, Lift, Override
from controller.planning import Ask
from controller.state import ControllerState, ServiceState
from core.instances import Action, Seen, SeenPool
from core.recorder import NullRecorder
from tests.unit.test_overrides import PLAN
from tests.unit.test_planning import NAME, SPEC, asked

KNOWLEDGE = Knowledge({NAME: asked(5.0).knowledge}, gpus=16)
POOLS = tuple(SeenPool(NAME, pool.name, pool.instances, pool.tp, 0, True) for pool in SPEC.pools)
PIN = Override("one", "pin", 1e9, NAME, "medium", instances=3)


class Steps:
    """Time goes on when the loop sleeps, and at once."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return self.at_s

    async def sleep(self, seconds: float) -> None:
        await self.sleep_until(self.at_s + seconds)

    async def sleep_until(self, deadline_s: float, wake: asyncio.Event | None = None) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.at_s = max(self.at_s, deadline_s)


class Stage:
    """A cluster that shows pools without instances, or raises."""

    def __init__(self, clock: Steps) -> None:
        self.changed = asyncio.Event()
        self.clock = clock
        self.blind = False

    async def observe(self) -> Seen:
        if self.blind:
            raise RuntimeError("cannot see")
        return Seen(self.clock.at_s, POOLS, (), wall_s=self.clock.at_s)

    async def apply(self, action: Action) -> None:
        return


def run(solve: Callable[[Ask], Answers], story: Callable[[Controller, Stage], object], until_s: float) -> Controller:
    async def asked_for(ask: Ask) -> Answers:
        return solve(ask)

    async def main() -> Controller:
        clock = Steps()
        stage = Stage(clock)
        one = Controller(stage, clock, NullRecorder(), interval_s=1.0, knowledge=lambda: KNOWLEDGE, solve=asked_for)
        one.state = ControllerState({NAME: ServiceState(asked(5.0).demand, PLAN)})
        task = asyncio.create_task(one.run())
        while clock.at_s < until_s:
            story(one, stage)
            await asyncio.sleep(0)
        task.cancel()
        return one

    return asyncio.run(main())


def test_a_plan_that_cannot_be_made_leaves_the_last_one_and_is_asked_for_again() -> None:
    asked_s: list[float] = []

    def broken(ask: Ask) -> Answers:
        asked_s.append(ask.now_s)
        raise RuntimeError("no plan today")

    one = run(broken, lambda controller, stage: None, 500.0)
    assert one.state.services[NAME].plan is PLAN and "no plan today" in one.last_error
    assert len(asked_s) >= 3, "the plan is old after 300 s"
    assert all(later - sooner >= REPLAN_S for sooner, later in zip(asked_s, asked_s[1:], strict=False))


def test_an_order_outlives_a_moment_in_which_nothing_could_be_seen() -> None:
    def story(controller: Controller, stage: Stage) -> None:
        stage.blind = 10.0 <= stage.clock.at_s < 20.0
        if stage.clock.at_s == 11.0 and not controller.overrides:
            controller.order(Impose(PIN))

    one = run(lambda ask: {NAME: PLAN}, story, 30.0)
    assert "cannot see" in one.last_error and one.state.overrides == (PIN,)


def test_an_order_that_no_tick_survives_ends_with_its_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(
        state: object, seen: object, knowledge: object, interval_s: float, answer: object, orders: tuple
    ) -> tuple:
        if any(isinstance(order, Lift) for order in orders):
            raise ValueError("that one")
        return whole(state, seen, knowledge, interval_s, answer, orders)

    whole = loop.tick
    monkeypatch.setattr(loop, "tick", fragile)

    def story(controller: Controller, stage: Stage) -> None:
        if stage.clock.at_s == 5.0 and "that one" not in controller.last_error:
            controller.order(Lift("one"))

    one = run(lambda ask: {NAME: PLAN}, story, 30.0)
    assert "that one" in one.last_error and one.state.ticks > 15
