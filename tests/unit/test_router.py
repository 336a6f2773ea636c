"""Which instance takes which request: soft pools, deadlines, slots, breakers."""

from collections.abc import Mapping
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from core.errors import Overloaded
from core.instances import State, Steer
from core.request import Ask
from core.service import Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from pools.breaker import Breaker
from pools.instance import OVERDUE_S, REST_S, Instance, Slot
from pools.queue import NONE, DeadlineQueue, Ticket
from pools.router import Router
from pools.score import added_joules
from profiles.engine_model import load_engine_model

MODEL = load_engine_model("llama-3.1-70b")


def pool(name: str, serves: str, slots: int = 4, kv_tokens: int = 0) -> PoolSpec:
    return PoolSpec(name, tuple(serves), 1, 4, 1980, InstanceLimits(slots, kv_tokens))


POOLS = (pool("short", "S"), pool("medium", "M"), pool("long", "L"))
SPEC = ServiceSpec("m", "m", 8192, Slo(), Edges(), POOLS, LauncherSpec("static"))


def ask(pool_index: int = 0, deadline_s: float = 10.0, tokens: int = 100, sequences: int = 1) -> Ask:
    return Ask("r", pool_index, tokens, sequences, tokens + 100, 50, 0.0, deadline_s, 0.1)


class World:
    """A router with READY instances and a record of who was placed."""

    def __init__(self, instances: str = "short medium long", model: object = MODEL, max_queue: int = 10) -> None:
        self.placed: list[tuple[Ticket, Slot]] = []
        self.failed: list[tuple[Ticket, Exception]] = []
        self.router = Router(
            SPEC,
            max_queue,
            1,
            lambda ticket, slot: self.placed.append((ticket, slot)),
            lambda ticket, error: self.failed.append((ticket, error)),
        )
        self.router.bind(lambda: self.router.pump(0.0))
        for number, name in enumerate(instances.split()):
            self.add(f"{name}-{number}", next(p for p in POOLS if p.name == name), model)

    def add(self, instance_id: str, spec: PoolSpec, model: object) -> Instance:
        instance = Instance(instance_id, "h", 1, spec, Breaker(3, 1, 8), model, now_s=0.0)  # type: ignore[arg-type]
        instance.set_state(State.READY, 0.0)
        self.router.instances[instance_id] = instance
        return instance

    def submit(self, wanted: Ask, refused: Mapping[str, float] = NONE) -> Slot | None:
        return self.router.submit(Ticket(wanted, None, refused), 0.0)

    def fill(self, pool_index: int, number: int) -> list[Slot]:
        slots = [self.submit(ask(pool_index)) for _ in range(number)]
        assert all(slots)
        return [slot for slot in slots if slot is not None]


@pytest.mark.parametrize("model", [MODEL, None])
def test_a_request_goes_to_its_own_pool_first_and_then_to_longer_ones(model: object) -> None:
    world = World(model=model)
    taken = [slot.instance.pool for slot in world.fill(0, 12)]
    assert taken == ["short"] * 4 + ["medium"] * 4 + ["long"] * 4
    assert world.submit(ask(0)) is None


def test_a_long_request_never_goes_to_a_shorter_pool_that_could_be_waited_out() -> None:
    world = World()
    world.fill(2, 4)
    assert world.submit(ask(2)) is None


def test_with_all_longer_pools_gone_a_shorter_one_serves() -> None:
    world = World("short")
    slot = world.submit(ask(2))
    assert slot is not None and slot.instance.pool == "short"


def test_full_instances_are_filled_before_empty_ones_wake() -> None:
    world = World("short short short")
    assert len({slot.instance.id for slot in world.fill(0, 4)}) == 1


def test_a_freed_slot_goes_to_the_earliest_deadline() -> None:
    world = World("short")
    slots = world.fill(0, 4)
    late, early = Ticket(ask(deadline_s=9.0), None), Ticket(ask(deadline_s=5.0), None)
    assert world.router.submit(late, 0.0) is None
    assert world.router.submit(early, 0.0) is None
    slots[0].release()
    assert [ticket for ticket, _ in world.placed] == [early]
    slots[1].release()
    assert [ticket for ticket, _ in world.placed] == [early, late]


def test_who_is_late_anyway_waits_for_those_who_are_not() -> None:
    world = World("short")
    world.fill(0, 4)
    late, next_late, in_time = (Ticket(ask(deadline_s=at), None) for at in (1.0, 2.0, 9.0))
    for ticket in (late, next_late, in_time):
        assert world.router.submit(ticket, 0.0) is None
    (instance,) = world.router.instances.values()
    for _ in range(3):
        instance.sequences -= 1  # room, without a pump
        world.router.pump(5.0)
    assert [ticket for ticket, _ in world.placed] == [in_time, late, next_late]
    assert late.late and not in_time.late


def test_an_answer_that_goes_on_waits_behind_nobody() -> None:
    world = World("short")
    world.fill(0, 4)
    goes_on = Ticket(ask(deadline_s=1.0), None, {"gone": 0.0})
    for ticket in (Ticket(ask(deadline_s=9.0), None), goes_on):
        world.router.submit(ticket, 0.0)
    (instance,) = world.router.instances.values()
    instance.sequences -= 1
    world.router.pump(5.0)
    assert [ticket for ticket, _ in world.placed] == [goes_on]


def test_batch_waits_for_all_others_and_is_served() -> None:
    world = World("short")
    slots = world.fill(0, 4)
    batch = Ticket(structs.replace(ask(deadline_s=1.0), batch=True), None)
    other = Ticket(ask(deadline_s=9.0), None)
    for ticket in (batch, other):
        world.router.submit(ticket, 0.0)
    slots[0].release()
    slots[1].release()
    assert [ticket for ticket, _ in world.placed] == [other, batch]


def test_a_key_that_floods_the_queue_waits_for_the_others() -> None:
    """One key asks ten times as often as the other, and twice as much as is served."""
    world = World("short", max_queue=10_000)
    running: list[tuple[float, Slot]] = []
    served: dict[str, int] = {"flood": 0, "light": 0}
    asked = dict(served)
    world.router.bind(lambda: None)
    for step in range(2000):
        now_s = step / 20
        for key in ("flood",) * 2 + (("light",) if step % 5 == 0 else ()):
            asked[key] += 1
            ticket = Ticket(structs.replace(ask(deadline_s=now_s + 2.0), key=key), None)
            slot = world.router.submit(ticket, now_s)
            if slot is not None:
                world.placed.append((ticket, slot))
        for ended in [one for one in running if one[0] <= now_s]:
            running.remove(ended)
            ended[1].release()
        world.router.pump(now_s)
        for ticket, slot in world.placed:
            served[ticket.ask.key] += ticket.ask.deadline_s >= now_s
            slot.first_token()
            running.append((now_s + 0.2, slot))
        world.placed.clear()
    assert served["light"] > 0.95 * asked["light"]
    assert 0.25 * asked["flood"] < served["flood"] < 0.75 * asked["flood"]


def test_a_shared_instance_serves_the_earliest_deadline_of_all_pools() -> None:
    world = World("long")
    slots = world.fill(2, 4)
    short, long = Ticket(ask(0, deadline_s=9.0), None), Ticket(ask(2, deadline_s=5.0), None)
    for ticket in (short, long):
        world.router.submit(ticket, 0.0)
    slots[0].release()
    assert [ticket for ticket, _ in world.placed] == [long]


def test_a_newcomer_does_not_overtake_an_earlier_deadline() -> None:
    world = World("short")
    (instance,) = world.router.instances.values()
    instance.set_state(State.DRAINING, 0.0)
    world.submit(ask(sequences=2, deadline_s=1.0))
    instance.set_state(State.READY, 0.0)  # as a breaker's pause ends: without a pump
    assert world.submit(ask(sequences=3, deadline_s=2.0)) is None
    assert [ticket.ask.sequences for ticket, _ in world.placed] == [2]


def test_pools_that_share_instances_share_one_order_of_deadlines() -> None:
    world = World("long")
    slots = world.fill(0, 4)
    for pool_index, deadline_s in ((0, 5.0), (1, 2.0), (2, 1.0), (0, 3.0)):
        assert world.submit(ask(pool_index, deadline_s)) is None
    for slot in slots:
        slot.release()
    assert [ticket.ask.deadline_s for ticket, _ in world.placed] == [1.0, 2.0, 3.0, 5.0]


def test_a_newcomer_does_not_overtake_an_earlier_deadline_of_another_pool() -> None:
    world = World("long")
    world.router.bind(lambda: None)  # room comes with time, not with a release
    slots = world.fill(0, 4)
    assert world.submit(ask(2, deadline_s=1.0)) is None
    slots[0].release()
    assert world.submit(ask(0, deadline_s=5.0)) is None
    assert [ticket.ask.deadline_s for ticket, _ in world.placed] == [1.0]


def test_a_full_queue_of_one_pool_keeps_nobody_from_room_in_another() -> None:
    world = World("short long", max_queue=2)
    world.fill(2, 4)
    for _ in range(2):
        assert world.submit(ask(2, deadline_s=1.0)) is None
    assert world.submit(ask(0, deadline_s=5.0)) is None
    assert [ticket.ask.pool_index for ticket, _ in world.placed] == [0]
    with pytest.raises(Overloaded):
        world.submit(ask(2, deadline_s=1.0))
    assert world.router.queued() == 2


def test_a_big_request_at_the_head_does_not_block_small_ones_behind_it() -> None:
    world = World("short")
    slots = world.fill(0, 4)
    world.submit(ask(sequences=4, deadline_s=1.0))
    world.submit(ask(deadline_s=2.0))
    slots[0].release()
    assert len(world.placed) == 1 and world.placed[0][0].ask.sequences == 1


def test_a_newcomer_takes_what_those_ahead_of_it_cannot_use() -> None:
    world = World("short")
    world.fill(0, 3)
    world.submit(ask(sequences=4, deadline_s=1.0))
    assert world.submit(ask(deadline_s=2.0)) is None
    assert [ticket.ask.sequences for ticket, _ in world.placed] == [1]


def test_tickets_that_nobody_open_may_take_block_none_behind_them() -> None:
    world = World("short", max_queue=100)
    (instance,) = world.router.instances.values()
    held = world.fill(0, 4)
    for number in range(20):
        world.submit(ask(deadline_s=float(number)), refused={instance.id: 0.0})
    last = Ticket(ask(deadline_s=50.0), None)
    assert world.router.submit(last, 0.0) is None
    held[0].release()
    assert [ticket for ticket, _ in world.placed] == [last]
    assert world.router.queued() == 20


class Waiter:
    """Somebody who waits for a slot, or no longer."""

    def __init__(self) -> None:
        self.left = False

    def done(self) -> bool:
        return self.left


def test_tickets_whose_clients_have_left_take_no_slot() -> None:
    world = World("short", max_queue=2000)
    held = world.fill(0, 4)
    waiters = [Waiter() for _ in range(1000)]
    for waiter in waiters:
        world.router.submit(Ticket(ask(), waiter), 0.0)
    stays = Ticket(ask(deadline_s=90.0), Waiter())
    world.router.submit(stays, 0.0)
    for waiter in waiters:
        waiter.left = True
    held[0].release()
    assert [ticket for ticket, _ in world.placed] == [stays]
    assert world.router.queued() == 0


def test_slots_that_come_straight_back_do_not_pile_up_rounds() -> None:
    """Hundreds of clients that leave at once must not take the stack along."""
    world = World("short", max_queue=5000)
    returned: list[Ticket] = []

    def give_back(ticket: Ticket, slot: Slot) -> None:
        returned.append(ticket)
        slot.release()

    world.router = Router(SPEC, 5000, 1, give_back)
    world.router.bind(lambda: world.router.pump(0.0))
    instance = world.add("short-0", POOLS[0], MODEL)
    instance.set_state(State.DRAINING, 0.0)
    for _ in range(3000):
        world.submit(ask())
    instance.set_state(State.READY, 0.0)
    world.router.pump(0.0)
    assert len(returned) == 3000 and instance.requests == 0


def test_a_ticket_that_cannot_be_weighed_fails_alone() -> None:
    world = World("short")
    held = world.fill(0, 4)
    absurd = Ticket(ask(deadline_s=1.0, tokens=10**400), None)
    fine = Ticket(ask(deadline_s=2.0), None)
    world.router.submit(absurd, 0.0)
    world.router.submit(fine, 0.0)
    held[0].release()
    assert [ticket for ticket, _ in world.failed] == [absurd]
    assert isinstance(world.failed[0][1], OverflowError)
    assert [ticket for ticket, _ in world.placed] == [fine]


def test_a_full_queue_sheds() -> None:
    world = World("short", max_queue=2)
    world.fill(0, 4)
    world.submit(ask())
    world.submit(ask())
    with pytest.raises(Overloaded) as shed:
        world.submit(ask())
    assert shed.value.retry_after_s


def test_a_cancelled_ticket_is_never_placed() -> None:
    world = World("short")
    slots = world.fill(0, 4)
    ticket = Ticket(ask(), None)
    world.router.submit(ticket, 0.0)
    world.router.cancel(ticket)
    assert world.router.queued() == 0
    for slot in slots:
        slot.release()
    assert world.placed == []


def test_refused_and_unready_instances_are_left_out() -> None:
    world = World("short short")
    first, second = world.router.instances.values()
    slot = world.submit(ask(), refused={first.id: 0.0})
    assert slot is not None and slot.instance is second
    second.set_state(State.DRAINING, 0.0)
    assert world.submit(ask(), refused={first.id: 0.0}) is None


def test_who_failed_a_request_gets_it_again_once_it_has_passed_a_later_probe() -> None:
    world = World("short short")
    first, second = world.router.instances.values()
    first.well_s = second.well_s = 5.0
    waits = Ticket(ask(), None, {first.id: 5.0, second.id: inf})
    assert world.router.submit(waits, 5.1) is None
    second.well_s = 6.0
    world.router.pump(6.0)
    assert not world.placed, "an error that it answered with is not mended by time"
    first.well_s = 6.0
    world.router.pump(6.0)
    assert [(ticket, slot.instance) for ticket, slot in world.placed] == [(waits, first)]


def test_who_has_not_failed_a_request_gets_it_before_who_works_again() -> None:
    world = World("short short")
    first, second = world.router.instances.values()
    first.well_s = 9.0
    for _ in range(4):
        slot = world.submit(ask(), refused={first.id: 5.0})
        assert slot is not None and slot.instance is second
    slot = world.submit(ask(), refused={first.id: 5.0})
    assert slot is not None and slot.instance is first, "the other one is full"


def test_kv_room_counts() -> None:
    world = World("")
    instance = world.add("small", pool("short", "S", slots=100, kv_tokens=450), MODEL)
    assert world.submit(ask()) and world.submit(ask())
    assert world.submit(ask()) is None
    assert instance.kv_tokens == 400


def test_a_request_too_large_for_the_books_goes_to_an_empty_instance() -> None:
    world = World("short")
    assert world.submit(ask(sequences=99)) is not None


def test_an_instance_that_would_break_anothers_tbt_is_left_out() -> None:
    world = World("")
    world.add("deep", pool("short", "S", slots=10_000), MODEL)
    slow = next(n for n in range(1, 10_000) if MODEL.decode_step_s(4, 1980, n, 200 * n) > 0.1)
    admitted = 0
    while world.submit(ask()) is not None:
        admitted += 1
    assert admitted <= slow


def at_the_limit(world: World, name: str, running: int = 60) -> Instance:
    """Full of decodes that a chunk of a long prompt would slow down too much."""
    instance = world.add(name, pool("short", "S", slots=1000), MODEL)
    for _ in range(running):
        instance.hold(ask(tokens=1), lambda: None).first_token()
    instance.tbt.add(0.055)  # a chunk beside a single answer takes less, beside these it takes more
    instance.step_tokens = 512 + running
    return instance


def test_an_instance_at_its_tbt_limit_is_left_out_while_another_can() -> None:
    world = World("")
    full = at_the_limit(world, "full")
    assert MODEL.step_s(4, 1980, 512, 1, 0) < 0.055 < MODEL.step_s(4, 1980, 512, 61, full.kv_tokens)
    other = world.add("other", pool("short", "S"), MODEL)
    slots = [world.submit(ask(tokens=600)) for _ in range(2)]
    assert [slot.instance for slot in slots if slot] == [other, other]
    small = world.submit(ask(tokens=1))
    assert small is not None and small.instance is full, "what costs the others little is welcome there"


def test_who_is_overdue_may_slow_the_others_down() -> None:
    world = World("")
    full = at_the_limit(world, "full")
    wanted = ask(tokens=600, deadline_s=5.0)
    assert world.router.pick(wanted, 4.0) is None
    assert world.router.pick(wanted, 5.1) is full


def test_a_hundred_saturated_instances_hide_no_idle_one() -> None:
    world = World("")
    for number in range(100):
        at_the_limit(world, f"full-{number}")
    idle = world.add("idle", pool("short", "S"), MODEL)
    slot = world.submit(ask(tokens=600))
    assert slot is not None and slot.instance is idle


def test_a_hundred_instances_with_long_prompts_ahead_hide_no_idle_one() -> None:
    world = World("")
    for number in range(100):
        busy = world.add(f"busy-{number}", pool("short", "S"), MODEL)
        busy.hold(ask(tokens=8000), lambda: None)
    idle = world.add("idle", pool("short", "S"), MODEL)
    slot = world.submit(ask(deadline_s=0.25))
    assert slot is not None and slot.instance is idle


def test_of_empty_instances_one_of_each_kind_is_priced() -> None:
    world = World("short short short")
    low, _, high = world.router.instances.values()
    low.clock_mhz = 800
    (slot,) = world.fill(0, 1)
    prices = {i.id: added_joules(i, ask()) for i in (low, high)}
    assert (slot.instance is low) == (prices[low.id] <= prices[high.id])
    world = World("short short short")
    taken = {i.id for _ in range(50) if (i := world.router.pick(ask(), 0.0))}
    assert len(taken) == 3, "equals take turns"


def test_releasing_twice_counts_once() -> None:
    world = World("short")
    (slot,) = world.fill(0, 1)
    slot.release()
    slot.release()
    instance = slot.instance
    assert (instance.requests, instance.sequences, instance.kv_tokens, instance.prefill_tokens) == (0, 0, 0, 0)
    assert instance.tbt.limit_s == float("inf")


def test_new_pools_take_over_what_waits() -> None:
    world = World("short")
    world.fill(0, 4)
    world.submit(ask())
    world.router.respec(ServiceSpec("m", "m", 8192, Slo(), Edges(), POOLS[:1], LauncherSpec("static")))
    assert world.router.queued(0) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["submit", "release", "cancel"]), st.integers(0, 2), st.integers(1, 3)), max_size=80
    )
)
def test_books_always_balance(steps: list[tuple[str, int, int]]) -> None:
    world = World(max_queue=1000)
    held: list[Slot] = []
    waiting: list[Ticket] = []
    for action, index, sequences in steps:
        if action == "submit":
            ticket = Ticket(ask(index, deadline_s=float(len(waiting)), sequences=sequences), None)
            slot = world.router.submit(ticket, 0.0)
            held += [slot] if slot else []
            waiting += [] if slot else [ticket]
        elif action == "release" and held:
            held.pop(index % len(held)).release()
        elif action == "cancel" and waiting:
            world.router.cancel(waiting.pop(index % len(waiting)))
        for ticket, slot in world.placed:
            waiting = [t for t in waiting if t is not ticket]
            held.append(slot)
        world.placed.clear()
        assert world.router.queued() == len(waiting)
        assert sum(i.requests for i in world.router.instances.values()) == len(held)
        assert all(i.sequences <= max(3, i.limits.slots) for i in world.router.instances.values())
    for slot in held:
        slot.release()
    while world.placed:
        world.placed.pop()[1].release()
    assert world.router.queued() == 0
    assert all(
        (i.requests, i.sequences, i.kv_tokens, i.prefill_tokens) == (0, 0, 0, 0)
        for i in world.router.instances.values()
    )


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200))
def test_the_queue_is_in_deadline_order(deadlines: list[float]) -> None:
    queue = DeadlineQueue()
    tickets = [Ticket(ask(deadline_s=d), None) for d in deadlines]
    for ticket in tickets:
        queue.push(ticket)
    for ticket in tickets[::2]:
        queue.remove(ticket)
    left = [t.ask.deadline_s for t in queue]
    assert left == sorted(t.ask.deadline_s for t in tickets[1::2])
    assert len(queue) == len(left)
    assert [t.ask.deadline_s for t in queue.first(8)] == left[:8]


def test_an_instance_that_owes_a_first_token_is_given_no_more_prompts() -> None:
    world = World("short short")
    first = world.submit(ask(deadline_s=1.0))
    assert first is not None
    here, tail = first.instance, ask(deadline_s=1e6, tokens=10)
    assert here.overdue_s(99.0) == 0.0, "nobody said that its first token would be told"
    first.awaits_first()
    assert here.overdue_s(1.0) == 0.0 and here.overdue_s(1.5) == 0.5
    assert here.takes_prompt(tail, 1.0 + OVERDUE_S) and not here.takes_prompt(tail, 1.1 + OVERDUE_S)
    first.first_token()
    assert here.takes_prompt(tail, 1.1 + OVERDUE_S) and here.overdue_s(99.0) == 0.0


def test_what_is_expected_late_is_owed_when_it_is_expected() -> None:
    world = World("short")
    slot = world.router.instances["short-0"].hold(ask(deadline_s=1.0), lambda: None, 0.0, 7.0)
    slot.awaits_first()
    assert slot.instance.overdue_s(7.0) == 0.0 and slot.instance.overdue_s(8.0) == 1.0


def test_it_lets_go_on_the_rung_only_when_it_is_overdue_and_another_would_take_it() -> None:
    world = World("short short")
    slot = world.submit(ask(deadline_s=1.0))
    assert slot is not None
    slot.awaits_first()
    router, here = world.router, slot.instance
    other = next(name for name in router.instances if name != here.id)
    assert not router.lets_go(slot, 2.0), "nobody stands on the rung"
    router.steer(Steer("m", "long", True, False, "", move=True))
    assert router.moving and not router.lets_go(slot, 2.0), "another pool does"
    router.steer(Steer("m", "short", True, False, "", move=True))
    assert router.lets_go(slot, 2.0) and not router.lets_go(slot, 0.5)
    assert not router.lets_go(slot, 2.0, {other: inf})
    router.instances[other].set_state(State.DRAINING, 0.0)
    assert not router.lets_go(slot, 2.0), "there is nowhere to go"
    router.instances[other].set_state(State.READY, 0.0)
    here.rests(2.0)
    slot.release()
    assert not here.takes_prompt(ask(), 2.1) and here.takes_prompt(ask(), 2.0 + REST_S)
    router.steer(Steer("m", "short", False, False, ""))
    router.steer(Steer("m", "long", False, False, ""))
    assert not router.moving


def test_a_first_token_ends_the_rest() -> None:
    world = World("short")
    slot = world.submit(ask())
    assert slot is not None
    slot.instance.rests(0.0)
    slot.release()
    assert not slot.instance.takes_prompt(ask(), 1.0), "an end without a token says nothing"
    slot.first_token()
    assert slot.instance.takes_prompt(ask(), 1.0)
