"""Simulated time: order of what happens, sleeping, waking, ending."""

import asyncio

import pytest

from core.clock import Clock
from simulator.clock import SimClock, run_simulated
from simulator.world import SimulationOver, World


def test_things_happen_in_order_of_time_and_then_of_scheduling() -> None:
    world, seen = World(), []
    for name, at_s in (("c", 2.0), ("a", 1.0), ("d", 2.0), ("late", 9.0)):
        world.at(at_s, lambda name=name: seen.append((world.now_s, name)))
    world.at(1.0, lambda: world.at(0.5, lambda: seen.append((world.now_s, "overdue"))))
    world.run_until(5.0, lambda: False)
    assert seen == [(1.0, "a"), (1.0, "overdue"), (2.0, "c"), (2.0, "d")]
    assert world.now_s == 5.0


def test_an_instant_is_settled_once_when_all_of_it_has_happened() -> None:
    world, seen = World(), []

    def settle() -> None:
        seen.append(("settled", world.now_s))

    for at_s in (1.0, 1.0, 3.0):
        world.at(at_s, lambda: (seen.append(("touched", world.now_s)), world.settle_after(settle)))
    world.run_until(10.0, lambda: False)
    assert [what for what, _ in seen] == ["touched", "touched", "settled", "touched", "settled"]


def test_a_sleep_ends_early_when_something_wakes_it() -> None:
    world, wake, told = World(), asyncio.Event(), []
    clock: Clock = SimClock(world, epoch_s=1000.0)
    world.at(3.0, wake.set)

    async def sleeper() -> None:
        await clock.sleep_until(10.0, wake)
        told.append((clock.now_s(), clock.wall_s(), wake.is_set()))
        await clock.sleep_until(10.0, wake)
        told.append((clock.now_s(), clock.wall_s(), wake.is_set()))
        await clock.sleep(2.5)
        await clock.sleep_until(1.0)
        told.append((clock.now_s(), clock.wall_s(), wake.is_set()))

    run_simulated(sleeper())
    assert told == [(3.0, 1003.0, False), (10.0, 1010.0, False), (12.5, 1012.5, False)]


def test_the_end_of_the_world_ends_whoever_sleeps() -> None:
    world, rounds = World(), []
    clock = SimClock(world)

    def end() -> None:
        world.over = True

    world.at(7.0, end)

    async def for_ever() -> None:
        while True:
            rounds.append(clock.now_s())
            await clock.sleep(2.0)

    run_simulated(for_ever())
    assert rounds == [0.0, 2.0, 4.0, 6.0] and world.now_s == 7.0
    with pytest.raises(SimulationOver):
        world.run_until(100.0, lambda: False)


def test_waiting_for_real_time_is_a_mistake() -> None:
    async def waits_for_real() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="other than its clock"):
        run_simulated(waits_for_real())
