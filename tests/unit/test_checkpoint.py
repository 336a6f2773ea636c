"""What outlives a restart of the controller, and that nothing on disk can keep it from starting."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from controller.checkpoint import PLAN_S, Saved, restored
from controller.loop import Controller
from controller.overrides import Override
from controller.planning import make_plan
from controller.state import ControllerState, Health, ServiceState
from core.clock import SystemClock
from core.instances import Seen
from core.recorder import NullRecorder
from gateway.checkpoint import Checkpoint
from tests.unit.test_planning import NAME, SPEC, ask, asked

WALL_S = 1e9
OVERRIDE = Override("pin-1", "pin", WALL_S + 3600, NAME, "short", instances=2)


def state() -> ControllerState:
    plan = replace(make_plan(ask(5.0, 8, 8))[NAME], at_s=900.0)
    health = Health(950.0, 10, 9, 1, 1100.0, 1.3, ((100, 99),))
    one = ServiceState(asked(5.0).demand, plan, plan, asked_s=990.0, health=health, starts_s=(800.0,))
    return ControllerState({NAME: one}, 77, (OVERRIDE,), ("GPU-1",))


def again(now_s: float, wall_s: float, services: dict | None = None, **changed: Any) -> ControllerState:
    """Saved at 1000 s, WALL_S."""
    plain = msgspec.json.decode(msgspec.json.encode(replace(Saved(1000.0, WALL_S, state()), **changed)))
    return restored(plain, now_s, wall_s, {NAME: SPEC} if services is None else services)


def test_what_was_learnt_and_ordered_is_there_again() -> None:
    before, one = state(), again(1010.0, WALL_S + 10).services[NAME]
    was = before.services[NAME]
    assert again(1010.0, WALL_S + 10).overrides == before.overrides
    assert one.plan == was.plan and one.approved == was.plan
    assert one.demand.load == was.demand.load and one.demand.answers == was.demand.answers
    assert (one.health.trim, one.health.minutes) == (1.3, ((100, 99),))
    assert one.demand.counts is None and one.asked_s is None, "counters begin anew, and nothing is being planned"
    assert again(1010.0, WALL_S + 10).excluded == (), "the new cluster has not been told yet"


def test_times_are_moved_to_the_new_clock() -> None:
    one = again(60.0, WALL_S + 50).services[NAME]  # the machine was started anew: 50 s later its clock says 60 s
    assert one.plan is not None
    assert one.plan.at_s == pytest.approx(-90.0)
    assert one.health.harmed_until_s == pytest.approx(110.0)
    assert one.starts_s == pytest.approx((-190.0,))
    assert again(2e9, WALL_S + PLAN_S).services[NAME].plan is None, "that one is for a load that has gone"


def test_services_and_pools_that_are_gone_take_their_plans_along() -> None:
    assert again(1010.0, WALL_S + 10, {}).services == {}
    fewer = replace(SPEC, pools=SPEC.pools[:1])
    one = again(1010.0, WALL_S + 10, {NAME: fewer}).services[NAME]
    assert one.plan is None and one.approved is None and one.health.trim == 1.3


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 99}', '{"schema": 1, "state": 3}'])
def test_a_file_that_is_none_is_no_harm(content: str, tmp_path: Path) -> None:
    class Nothing:
        async def observe(self) -> Seen:
            return Seen(0.0, (), ())

    path, clock = tmp_path / "controller.json", SystemClock()
    path.write_text(content)
    controller = Controller(Nothing(), clock, NullRecorder(), interval_s=1.0)  # type: ignore[arg-type]
    checkpoint = Checkpoint(path, controller, clock)
    assert not checkpoint.restore({NAME: SPEC}) and controller.state == ControllerState()
    controller.state = state()
    checkpoint.write()
    assert json.loads(path.read_text())["schema"] == 1
    controller.state = ControllerState()
    assert checkpoint.restore({NAME: SPEC}) and controller.overrides == (OVERRIDE,)


def test_a_folder_that_cannot_be_written_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    controller = SimpleNamespace(state=state())
    Checkpoint(tmp_path / "file" / "controller.json", controller, SystemClock()).write()  # type: ignore[arg-type]
