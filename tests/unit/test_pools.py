"""Fleets and their cluster, the door to a service, and connections to instances, with stand-ins for what is outside."""

import asyncio
from collections.abc import Callable

import pytest

from controller.knowledge import Knowledge
from controller.state import ControllerState
from controller.tick import tick
from core.clock import SystemClock
from core.errors import NotFound, UpstreamTimeout
from core.instances import Forget, Start, State
from core.recorder import NullRecorder
from core.request import Ask
from core.service import Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from gateway.config import Config
from gateway.wiring import Running, apply_config, build
from pools.admission import Admission
from pools.breaker import Breaker
from pools.connection import BUFFER_HIGH_BYTES, Exchange, Head, Wire, Wires, authority
from pools.fleet import Fleet, FleetLimits
from pools.instance import Instance, Slot
from pools.launcher import Found, Place, StaticLauncher

CLOCK = SystemClock()
ASK = Ask("r", 0, 10, 1, 20, 5, 0.0, 10.0, 0.1)


class Children:
    """A launcher whose children live until they are stopped; `stubborn` ones until they are killed."""

    managed = True

    def __init__(self) -> None:
        self.living: set[str] = set()
        self.stubborn = False

    def start(self, instance_id: str, pool: PoolSpec, near: str = "") -> Place:
        assert instance_id not in self.living
        self.living.add(instance_id)
        return Place("127.0.0.1", 1)

    def take_over(self) -> tuple[list[Found], list[str]]:
        return [], []

    def alive(self, instance_id: str) -> bool:
        return instance_id in self.living

    def cpu_s(self, instance_id: str) -> float | None:
        return None

    def stop(self, instance_id: str, *, force: bool) -> None:
        if force or not self.stubborn:
            self.living.discard(instance_id)


# --- a service that is removed and comes back


def config(*services: str, **sections: object) -> Config:
    served = {
        "model": "m",
        "pools": [{"name": "all", "serves": ["S", "M", "L"]}],
        "launcher": {"kind": "process", "argv": ["true", "{port}"]},
    }
    return Config.model_validate({"services": {name: served for name in services}, **sections})


async def tick_once(running: Running) -> list[object]:
    _, decision = tick(ControllerState(), await running.cluster.observe(), Knowledge(), 1.0)
    for action in decision.actions:
        await running.cluster.apply(action)
    return list(decision.actions)


def serve(children: Children, *services: str) -> Running:
    running = build(config(*services), CLOCK, NullRecorder(), {})
    take_over(running, children)
    return running


def take_over(running: Running, children: Children) -> None:
    for service in running.gateway.services.values():
        service.fleet.launcher = children


def test_a_service_that_comes_back_before_it_drained_leaves_no_orphans() -> None:
    async def story() -> None:
        children = Children()
        running = serve(children, "kept", "moving")
        await tick_once(running)
        assert len(children.living) == 2
        children.stubborn = True
        apply_config(running, config("kept"), {})
        await tick_once(running)
        apply_config(running, config("kept", "moving"), {})
        take_over(running, children)
        assert [type(action) for action in await tick_once(running)] == [Start], "the new one needs its own"
        assert len(children.living) == 3, "the old one still ends"
        ids = [seen.id for seen in (await running.cluster.observe()).instances]
        assert len(ids) == len(set(ids)) == 3
        assert await tick_once(running) == []
        children.stubborn = False
        await running.cluster.close(stop_timeout_s=5.0)
        assert children.living == set()

    asyncio.run(story())


def test_a_retiring_fleet_goes_when_its_last_instance_has() -> None:
    async def story() -> None:
        children = Children()
        running = serve(children, "kept", "moving")
        await tick_once(running)
        (old,) = running.gateway.services["moving"].fleet.members.values()
        slot = Slot(old.instance, ASK, lambda: None)
        apply_config(running, config("kept"), {})
        await tick_once(running)
        assert old.instance.id in children.living, "a request still runs there"
        slot.release()
        for _ in range(3):
            await tick_once(running)
        assert old.instance.id not in children.living
        assert running.cluster.retiring == []
        await running.cluster.close(stop_timeout_s=5.0)

    asyncio.run(story())


def test_the_dead_of_a_retiring_fleet_are_buried_and_count_against_nobody() -> None:
    async def story() -> None:
        children = Children()
        running = serve(children, "kept", "moving")
        await tick_once(running)
        (old,) = running.gateway.services["moving"].fleet.members
        apply_config(running, config("kept"), {})
        children.living.discard(old)
        assert [a for a in await tick_once(running) if isinstance(a, Forget)] == []
        assert running.cluster.retiring == []
        await running.cluster.close(stop_timeout_s=5.0)

    asyncio.run(story())


def test_a_limit_that_reaches_no_connection_made_before_needs_a_restart() -> None:
    async def story() -> None:
        running = serve(Children(), "m")
        with pytest.raises(Exception, match=r"limits\.connect_timeout_s"):
            apply_config(running, config("m", limits={"connect_timeout_s": 4096}), {})
        assert apply_config(running, config("m", limits={"max_wait_s": 5.0}), {}) == ["auth and limits"]
        await running.cluster.close(stop_timeout_s=5.0)

    asyncio.run(story())


# --- URLs that leave the configuration and come back


def static(*urls: str, clock_mhz: int = 0) -> ServiceSpec:
    pool = PoolSpec("all", ("S", "M", "L"), len(urls), 1, clock_mhz, InstanceLimits(1), urls)
    return ServiceSpec("m", "m", 8192, Slo(), Edges(), (pool,), LauncherSpec("static"))


def static_fleet(*urls: str) -> Fleet:
    spec = static(*urls)
    admission = Admission(spec, CLOCK, max_queue=1000, max_wait_s=60.0)
    numbers = iter(range(100))
    fleet = Fleet(spec, StaticLauncher(), admission, None, CLOCK, FleetLimits(), lambda *_: None, lambda pool: f"{pool}-{next(numbers)}")  # fmt: skip
    for instance_id in list(fleet.members):
        fleet.probed(instance_id, True)
    return fleet


A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"


def busy(fleet: Fleet, instance_id: str) -> Slot:
    return Slot(fleet.members[instance_id].instance, ASK, lambda: None)


def states(fleet: Fleet) -> dict[str, State]:
    return {i: member.instance.state for i, member in fleet.members.items()}


def test_a_url_that_comes_back_while_it_drains_serves_again() -> None:
    fleet = static_fleet(A, B)
    slot = busy(fleet, "all-1")
    fleet.respec(static(A))
    fleet.check_processes()
    assert states(fleet) == {"all-0": State.READY, "all-1": State.DRAINING}
    fleet.respec(static(A, B))
    slot.release()
    fleet.check_processes()
    fleet.probed("all-1", True)
    assert states(fleet) == {"all-0": State.READY, "all-1": State.READY}


def test_what_an_operator_drained_stays_drained_over_a_reload() -> None:
    fleet = static_fleet(A, B)
    fleet.drain("all-1", "drained by an operator", resumable=True)
    fleet.respec(static(A, B))
    fleet.check_processes()
    assert states(fleet)["all-1"] is State.DRAINING


def test_what_an_operator_removed_does_not_come_back_with_new_promises() -> None:
    fleet = static_fleet(A, B)
    slot = busy(fleet, "all-1")
    fleet.drain("all-1", "removed by an operator")
    fleet.respec(static(A, B), keep_wanted=True)
    assert states(fleet)["all-1"] is State.DRAINING
    slot.release()
    fleet.check_processes()
    fleet.respec(static(A, B), keep_wanted=True)
    assert states(fleet) == {"all-0": State.READY}


# --- the door


def waiting(fleet: Fleet) -> "asyncio.Task[str]":
    async def go() -> str:
        async with fleet.admission.admit(ASK) as slot:
            return slot.instance.id

    return asyncio.create_task(go())


async def settle(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0)


def test_whoever_waits_for_a_removed_service_is_told() -> None:
    async def story() -> None:
        fleet = static_fleet(A)
        slot = busy(fleet, "all-0")
        task = waiting(fleet)
        await settle(lambda: fleet.admission.router.queued() == 1)
        fleet.retire()
        with pytest.raises(NotFound) as told:
            await asyncio.wait_for(task, 10)
        assert told.value.code == "model_not_found"
        with pytest.raises(NotFound):
            await asyncio.wait_for(waiting(fleet), 10)
        slot.release()
        assert fleet.admission.router.queued() == 0

    asyncio.run(story())


def test_hundreds_that_leave_the_queue_at_once() -> None:
    async def story() -> None:
        fleet = static_fleet(A)
        async with fleet.admission.admit(ASK):
            tasks = [waiting(fleet) for _ in range(900)]
            await settle(lambda: fleet.admission.router.queued() == 900)
            for task in tasks[:-1]:
                task.cancel()
        assert await asyncio.wait_for(tasks[-1], 10) == "all-0"
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(end, asyncio.CancelledError) for end in ended) == 899
        assert fleet.members["all-0"].instance.requests == 0

    asyncio.run(story())


# --- connections


class Wired(asyncio.Transport):
    """A transport to nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open = True

    def write(self, data: object) -> None:
        return

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def is_closing(self) -> bool:
        return not self.open

    def abort(self) -> None:
        self.open = False


def wired() -> tuple[Wires, Wire, Wired]:
    wire, transport = Wire(), Wired()
    wire.connection_made(transport)
    wire.begin(b"")
    return Wires("h", 1, 1.0), wire, transport


@pytest.mark.parametrize("size", [10, BUFFER_HIGH_BYTES + 1])
def test_a_connection_that_was_paused_is_not_kept(size: int) -> None:
    """Its reader left before the buffered rest was taken; the next answer would wait behind it for ever."""
    wires, wire, transport = wired()
    wire.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
    assert wire.complete and wire.paused == (size > BUFFER_HIGH_BYTES)
    wires.give_back(wire)
    assert transport.open == (not wire.paused)


def test_a_head_that_never_ends_is_late_however_often_something_comes() -> None:
    async def story() -> None:
        wires, wire, _ = wired()

        async def hint() -> None:
            while True:
                wire.data_received(b"HTTP/1.1 103 Early Hints\r\n\r\n")
                await asyncio.sleep(0.005)

        hints = asyncio.create_task(hint())
        with pytest.raises(UpstreamTimeout):
            await asyncio.wait_for(Exchange(wires, wire).head(0.1), 10)
        hints.cancel()

    asyncio.run(story())


OK_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def pouring(wires: Wires, wire: Wire) -> tuple[list[bytes], asyncio.Task[Head | None]]:
    """An exchange that pours before its answer begins, and what it has handed on."""
    got: list[bytes] = []
    poured = Exchange(wires, wire).pour(got.append, lambda heard: 60.0, 60.0, lambda head: head.status == 200)
    task = asyncio.create_task(poured)
    await settle(lambda: wire.sink is not None)
    return got, task


def test_the_first_bytes_of_a_stream_wait_for_no_task() -> None:
    async def story() -> None:
        wires, wire, _ = wired()
        got, task = await pouring(wires, wire)
        wire.data_received(OK_HEAD + b"1\r\na\r\n")
        assert got == [b"a"]  # in the same call
        wire.data_received(b"1\r\nb\r\n0\r\n\r\n")
        assert await asyncio.wait_for(task, 10) is None
        assert got == [b"a", b"b"]

    asyncio.run(story())


def test_an_answer_that_is_refused_by_its_head_is_not_poured() -> None:
    async def story() -> None:
        wires, wire, _ = wired()
        got, task = await pouring(wires, wire)
        wire.data_received(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno")
        head = await asyncio.wait_for(task, 10)
        assert head is not None and head.status == 404
        assert got == []
        assert await Exchange(wires, wire).body(10.0, 100) == b"no"

    asyncio.run(story())


def test_a_stream_whose_kept_connection_had_been_closed_is_asked_for_again() -> None:
    async def story() -> None:
        wires, wire, _ = wired()
        wire.begin(b"asked")
        wire.reused = True
        again = wired()[1]
        sent: list[bytes] = []

        async def connect() -> Wire:
            begin = again.begin
            again.begin = lambda request: (sent.append(request), begin(request))[1]  # type: ignore[method-assign]
            return again

        wires._connect = connect  # type: ignore[method-assign]
        got, task = await pouring(wires, wire)
        wire.connection_lost(None)
        await settle(lambda: again.sink is not None)
        assert sent == [b"asked"]
        again.data_received(OK_HEAD + b"1\r\na\r\n0\r\n\r\n")
        assert await asyncio.wait_for(task, 10) is None
        assert got == [b"a"]

    asyncio.run(story())


@pytest.mark.parametrize(("error", "whole"), [(None, True), (ConnectionResetError(), False)])
def test_only_a_clean_close_ends_a_body_without_a_length(error: Exception | None, whole: bool) -> None:
    _, wire, _ = wired()
    wire.data_received(b"HTTP/1.1 200 OK\r\n\r\n{")
    wire.connection_lost(error)
    assert wire.complete == whole


def test_an_ipv6_address_stands_in_brackets() -> None:
    pool = static().pools[0]
    instance = Instance("i", "::1", 8000, pool, Breaker(1, 1, 1), None, now_s=0.0)
    assert instance.url == "http://[::1]:8000"
    assert authority("10.0.0.1", 1) == "10.0.0.1:1"
