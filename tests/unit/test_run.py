"""Background tasks of the gateway: one that fails is started again, and a port in use is told."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from controller.loop import Controller
from core.clock import SystemClock
from core.instances import Seen
from core.recorder import NullRecorder
from gateway.config import Limits
from gateway.run import CannotListen, _drain, alive, kept_up, make_socket


class NoWait(SystemClock):
    """Sleeps take no time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def test_a_background_task_that_fails_is_started_again() -> None:
    runs = 0
    done = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise RuntimeError("broken")
        done.set()
        await asyncio.Event().wait()

    async def story() -> None:
        task = asyncio.create_task(kept_up(work, "work", NoWait()))
        await asyncio.wait_for(done.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert runs == 3


def test_a_port_in_use_is_told_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CannotListen, match="in use"):
        make_socket("127.0.0.1", taken.getsockname()[1])


def test_a_shutdown_waits_for_whoever_still_reads_an_answer() -> None:
    left = [300, 200, 100]

    class Transport:
        def get_write_buffer_size(self) -> int:
            return left.pop() if left else 0

    connection = SimpleNamespace(transport=Transport())
    server = SimpleNamespace(server_state=SimpleNamespace(connections=[connection]))
    gateway = SimpleNamespace(closing=False, in_flight=0, limits=Limits())
    asyncio.run(_drain(SimpleNamespace(gateway=gateway, clock=NoWait()), server))  # type: ignore[arg-type]
    assert gateway.closing and not left


def test_a_controller_that_hangs_is_started_again_and_one_that_raises_goes_on() -> None:
    rounds: list[int] = []

    class Cluster:
        def __init__(self) -> None:
            self.changed = asyncio.Event()

        async def observe(self) -> Seen:
            rounds.append(len(rounds))
            if len(rounds) == 1:
                raise RuntimeError("cannot see")
            if len(rounds) == 2:
                await asyncio.Event().wait()
            return Seen(0.0, (), ())

        async def apply(self, action: object) -> None:
            raise AssertionError("nothing is to be done")

    class Quick(SystemClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(min(seconds, 0.01))

    async def story() -> int:
        controller = Controller(Cluster(), Quick(), NullRecorder(), interval_s=0.005)
        task = asyncio.create_task(kept_up(lambda: alive(controller, Quick(), 0.1), "controller", Quick()))
        async with asyncio.timeout(20):
            while controller.state.ticks < 3:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "cannot see" in controller.last_error
        return len(rounds)

    assert asyncio.run(story()) >= 5
