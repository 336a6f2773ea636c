"""Sleep and wake aside of the ticks: what takes long holds up nobody, and nobody is routed to what still sleeps."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import httpx
import pytest

from core.clock import SystemClock
from core.instances import Park, State, Wake
from core.service import Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from pools.admission import Admission
from pools.breaker import Breaker
from pools.cluster import LiveCluster
from pools.fleet import Fleet, FleetLimits, Member
from pools.instance import Instance
from pools.knobs import EngineKnobs, KnobRefused, KnobSilent, NoKnobs
from pools.launcher import StaticLauncher

POOL = PoolSpec("all", ("S", "M", "L"), 1, 2, 1980, InstanceLimits(4))
SPEC = ServiceSpec("chat", "m", 4096, Slo(), Edges(), (POOL,), LauncherSpec("process"))


class Slow(NoKnobs):
    """Sleeps and wakes when it is let, or refuses."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.refuses: KnobRefused | None = None
        self.calls: list[str] = []

    async def sleep(self, instance: Instance) -> None:
        await self._turn("sleep")

    async def wake(self, instance: Instance) -> None:
        await self._turn("wake")

    async def _turn(self, name: str) -> None:
        self.calls.append(name)
        await self.let.wait()
        if self.refuses is not None:
            raise self.refuses
        self.calls.append(f"{name} done")


@dataclass
class World:
    fleet: Fleet
    cluster: LiveCluster
    knobs: Slow
    member: Member = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.fleet.adopt("all", "http://127.0.0.1:1")
        self.member = self.fleet.members[self.id]
        self.fleet.probed(self.id, True)

    @property
    def state(self) -> State:
        return self.member.instance.state

    async def park(self) -> None:
        await self.cluster.apply(Park(self.id, "test"))
        await asyncio.sleep(0)

    async def wake(self) -> None:
        await self.cluster.apply(Wake(self.id, "test"))
        await asyncio.sleep(0)

    async def let(self) -> None:
        self.knobs.let.set()
        await self.cluster.sleepers.settled()
        self.knobs.let.clear()


def tell(story: Callable[[World], Awaitable[None]]) -> None:
    async def play() -> None:
        clock, knobs = SystemClock(), Slow()
        admission = Admission(SPEC, clock, max_queue=10, max_wait_s=1.0)
        fleet = Fleet(
            SPEC, StaticLauncher(), admission, None, clock, FleetLimits(), lambda *_: None, lambda p: f"{p}-1", knobs
        )
        await story(World(fleet, LiveCluster([fleet], clock, probe_interval_s=1, probe_timeout_s=1), knobs))

    asyncio.run(play())


def test_a_sleep_that_takes_long_holds_up_no_tick_and_no_request_goes_there() -> None:
    async def story(world: World) -> None:
        await world.park()
        assert world.state is State.PARKED and world.knobs.calls == ["sleep"]
        await world.let()
        assert world.state is State.PARKED

    tell(story)


def test_what_is_being_woken_is_not_ready_though_its_server_answers() -> None:
    async def story(world: World) -> None:
        await world.park()
        await world.let()
        await world.wake()
        world.fleet.probed(world.id, True)
        assert world.state is State.STARTING
        await world.let()
        world.fleet.probed(world.id, True)
        assert world.state is State.READY

    tell(story)


def test_a_wake_waits_for_the_sleep_before_it() -> None:
    async def story(world: World) -> None:
        await world.park()
        await world.wake()
        assert world.knobs.calls == ["sleep"] and world.state is State.STARTING
        await world.let()
        assert world.knobs.calls == ["sleep", "sleep done", "wake", "wake done"]

    tell(story)


@pytest.mark.parametrize(
    ("refusal", "after"), [(KnobRefused("404"), State.READY), (KnobSilent("ReadTimeout"), State.FAILED)]
)
def test_a_refusal_leaves_it_serving_and_silence_does_not(refusal: KnobRefused, after: State) -> None:
    """Whoever gave no answer may have gone to sleep all the same."""

    async def story(world: World) -> None:
        world.knobs.refuses = refusal
        await world.park()
        await world.let()
        assert world.state is after and world.member.sleepless

    tell(story)


def test_what_cannot_wake_has_failed() -> None:
    async def story(world: World) -> None:
        await world.park()
        await world.let()
        world.knobs.refuses = KnobRefused("500")
        await world.wake()
        await world.let()
        assert world.state is State.FAILED

    tell(story)


def test_what_was_taken_over_is_not_ready_before_it_is_roused() -> None:
    async def story(world: World) -> None:
        world.member.instance.set_state(State.STARTING, 0.0, "taken over")
        world.cluster.sleepers.rouse(world.fleet, world.id)
        await asyncio.sleep(0)
        world.fleet.probed(world.id, True)
        assert world.state is State.STARTING
        world.knobs.refuses = KnobRefused("404: it cannot sleep at all")
        await world.let()
        world.fleet.probed(world.id, True)
        assert world.state is State.READY

    tell(story)


# --- what the engine is asked


def asked(level: int, *, sleeps: bool, status: int = 200) -> tuple[Sequence[str], EngineKnobs]:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url.raw_path.decode()} {request.content.decode()}".strip())
        return httpx.Response(status, json={"is_sleeping": sleeps})

    return seen, EngineKnobs(httpx.AsyncClient(transport=httpx.MockTransport(answer)), None, level, 5.0)


def instance() -> Instance:
    return Instance("a-1", "127.0.0.1", 1, POOL, Breaker(3, 1.0, 30.0), None, now_s=0.0)


@pytest.mark.parametrize(
    ("level", "sleeps", "wanted"),
    [
        (1, True, ["GET /is_sleeping", "POST /wake_up"]),
        (1, False, ["GET /is_sleeping"]),
        (2, False, ["GET /is_sleeping"]),
        (
            2,
            True,
            ["GET /is_sleeping", "POST /wake_up?tags=weights", 'POST /collective_rpc {"method":"reload_weights"}',
             "POST /wake_up?tags=kv_cache"],
        ),
    ],
)  # fmt: skip
def test_levels_of_sleep(level: int, sleeps: bool, wanted: list[str]) -> None:
    seen, knobs = asked(level, sleeps=sleeps)
    asyncio.run(knobs.wake(instance()))
    assert seen == wanted
    seen, knobs = asked(level, sleeps=sleeps)
    asyncio.run(knobs.sleep(instance()))
    assert seen == [f"POST /sleep?level={level}&mode=wait"]


def test_a_status_is_a_refusal_and_no_answer_is_silence() -> None:
    _, knobs = asked(1, sleeps=False, status=404)
    with pytest.raises(KnobRefused) as refused:
        asyncio.run(knobs.sleep(instance()))
    assert not refused.value.silent

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("nothing")

    knobs = EngineKnobs(httpx.AsyncClient(transport=httpx.MockTransport(gone)), None)
    with pytest.raises(KnobSilent):
        asyncio.run(knobs.sleep(instance()))
