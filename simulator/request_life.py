"""The life of a request in a simulation: arrive, predict, queue or be placed, run, be counted.

The router and its queue are those that serve; here they are only called with simulated time. Owns what is in flight and
nothing else. A failed instance is handled as the gateway does: before the first token the request goes elsewhere, after
it the answer goes on elsewhere from its tokens, or is cut where answers do not move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from msgspec import structs

from core.errors import Overloaded
from core.request import Ask, Outcome, Prediction, ask_for
from core.service import SIZES, ServiceSpec
from pools.instance import Slot
from pools.load_counts import LoadCounts
from pools.queue import NONE, Ticket
from pools.router import Router
from predictor.length import choose_size
from simulator.cluster import SimCluster
from simulator.lengths import Lengths
from simulator.member import Member
from simulator.overruns import Overruns
from simulator.sequence import WAITING, Seq
from simulator.tally import Tally
from simulator.trace import Arrival
from simulator.unbegun import Unbegun
from simulator.world import World

MOVES_OFF, MOVES_FAILURE, MOVES_ON = "off", "failure", "on"  # on: also answers that outgrow their prediction
MOVES = (MOVES_OFF, MOVES_FAILURE, MOVES_ON)
MOST_MOVES = 8
PoolOf = Callable[[ServiceSpec, Arrival, str], int]  # (promises, request, predicted output size) -> index of a pool


@dataclass(frozen=True, slots=True)
class Door:
    """The gateway's limits that shape a run (configs: `limits`)."""

    max_queue: int = 512
    max_wait_s: float = 60.0
    retries: int = 2


class Flight:
    """One request that has arrived and has not ended."""

    __slots__ = (
        "arrival", "ask", "attempts", "late", "length", "member", "predicted", "seq", "size_class", "slot", "ticket",
    )  # fmt: skip

    def __init__(self, arrival: Arrival, size_class: int, predicted: int, ask: Ask, length: Prediction) -> None:
        self.arrival = arrival
        self.size_class = size_class
        self.predicted = predicted  # index of its class with the predicted output size, which is all a controller knows
        self.ask = ask
        self.length = length
        self.attempts = 0
        self.late = False  # it was placed last, because it could not be in time
        self.ticket: Ticket | None = None  # while it waits
        self.slot: Slot | None = None  # while it runs
        self.member: Member | None = None
        self.seq: Seq | None = None  # kept while the answer is on its way to another instance

    def done(self) -> bool:
        """As the queue asks: whether it waits no more."""
        return self.ticket is None


def pool_by_output(spec: ServiceSpec, arrival: Arrival, output_size: str) -> int:
    return spec.pool_for(output_size)


class RequestLife:
    """`bind` gives it the cluster; `begin` feeds it a trace, one arrival at a time."""

    def __init__(
        self, spec: ServiceSpec, world: World, tally: Tally, lengths: Lengths, door: Door, seed: int,
        pool_of: PoolOf = pool_by_output, weighs: bool = False, front_s: float = 0.0, moves: str = MOVES_OFF,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.router = Router(spec, door.max_queue, seed, self._placed, on_shed=self._shed)
        self.router.bind(self._slot_free)
        self.flights: dict[Flight, None] = {}
        self.first_arrival_s: float | None = None
        self.last_end_s = 0.0
        self._world = world
        self._tally = tally
        self._lengths = lengths
        self._door = door
        self._pool_of = pool_of
        self._weighs = weighs
        self._front_s = front_s  # of the engine model: what passes outside of steps before the first token
        self._moves = moves
        self._overruns = Overruns(spec, world, self)
        self._unbegun = Unbegun(world, self)
        self._cluster: SimCluster | None = None
        self._counts = LoadCounts()
        self._trace: Iterator[Arrival] = iter(())
        self._next: Arrival | None = None
        self._numbers = 0
        self._pumping = False

    def begin(self, trace: Iterator[Arrival], cluster: SimCluster) -> None:
        self._cluster = cluster
        self._counts = cluster.counts
        cluster.on_steered = self._unbegun.look
        self._trace = trace
        self._await_next()

    # --- arriving

    def _await_next(self) -> None:
        self._next = next(self._trace, None)
        if self._next is not None:
            self._world.at(self._next.at_s, self._arrives)
        else:
            self._check_over()

    def _arrives(self) -> None:
        arrival, now_s = self._next, self._world.now_s
        assert arrival is not None
        if self.first_arrival_s is None:
            self.first_arrival_s = now_s
        size_class = self._tally.class_of(arrival)
        self._tally.arrived(size_class)
        ask, output_size, length = self._ask(arrival, size_class, now_s)
        flight = Flight(arrival, size_class, 3 * (size_class // 3) + SIZES.index(output_size), ask, length)
        self._counts.asked(flight.predicted, arrival.input_tokens)
        self.flights[flight] = None
        self._submit(flight)
        self._await_next()

    def _ask(self, arrival: Arrival, size_class: int, now_s: float) -> tuple[Ask, str, Prediction]:
        spec = self.spec
        prediction = self._lengths.predict(arrival, max(1, spec.context_tokens - arrival.input_tokens))
        self._numbers += 1
        output_size = (
            self.router.choose_size(prediction, arrival.input_tokens, now_s)
            if self._weighs
            else choose_size(prediction)
        )
        pool_index = self._pool_of(spec, arrival, output_size)
        ttft_s = self._tally.ttft_limit_s(size_class)
        ask = ask_for(
            str(self._numbers), pool_index, arrival.input_tokens, 1, prediction, now_s, ttft_s, spec.slo.tbt_s
        )
        return ask, output_size, prediction

    def _submit(self, flight: Flight, refused: Mapping[str, float] = NONE) -> None:
        now_s = self._world.now_s
        flight.attempts += 1
        flight.ticket = ticket = Ticket(flight.ask, flight, refused)
        try:
            slot = self.router.submit(ticket, now_s)
        except Overloaded:
            flight.ticket = None
            self._ends(flight, Outcome.SHED)
            return
        if slot is not None:
            flight.ticket = None
            self._runs(flight, slot)
        elif not flight.done():  # submitting may have placed it from the queue
            self._world.at(now_s + self._door.max_wait_s, lambda: self._gives_up(flight, ticket))

    def _gives_up(self, flight: Flight, ticket: Ticket) -> None:
        if flight.ticket is ticket:
            self.router.cancel(ticket)
            flight.ticket = None
            ready = self.router.anyone_ready(self._world.now_s)
            self._ends(flight, Outcome.SHED if ready else Outcome.FAILED)

    def _shed(self, ticket: Ticket) -> None:
        flight = ticket.waiter
        assert isinstance(flight, Flight)
        flight.ticket = None
        self._ends(flight, Outcome.SHED)

    # --- running

    def _placed(self, ticket: Ticket, slot: Slot) -> None:
        flight = ticket.waiter
        assert isinstance(flight, Flight)
        flight.ticket, flight.late = None, ticket.late
        self._runs(flight, slot)

    def _runs(self, flight: Flight, slot: Slot) -> None:
        assert self._cluster is not None
        member = self._cluster.members[slot.instance.id]
        engine = member.engine
        assert engine is not None, "the router only gives slots of instances that are ready"
        arrival, ask = flight.arrival, flight.ask
        priority = int(ask.deadline_s * 1000) if self.spec.engine_priority else 0
        flight.slot, flight.member = slot, member
        if flight.seq is not None:
            flight.seq = engine.adopt(flight.seq, self._world.now_s)
        else:
            slot.awaits_first()
            flight.seq = engine.add(
                arrival.input_tokens, arrival.output_tokens, self._world.now_s,
                priority=priority, group=flight.size_class, owner=flight,
            )  # fmt: skip
        member.touch()
        self._cluster.on_placed(member)

    def progressed(self, member: Member, firsts: list[Seq], finished: list[Seq]) -> None:
        """An engine's batch changed: some have their first token, some are complete."""
        for seq in firsts:
            flight = seq.owner
            assert isinstance(flight, Flight) and flight.slot is not None
            flight.slot.first_token()
            if seq.generated == 1:
                self._tally.first_token(flight.size_class, self._world.now_s - flight.ask.arrived_s + self._front_s)
            if self._moves == MOVES_ON:
                self._overruns.watch(flight, member)
        for seq in finished:
            flight = seq.owner
            assert isinstance(flight, Flight) and seq.first_s is not None
            self._tally.prompt_tokens += seq.prompt
            ttft_s = seq.first_s - flight.ask.arrived_s + self._front_s
            took_s = self._world.now_s - flight.ask.arrived_s + self._front_s
            attained = self._tally.completed(flight.size_class, seq, flight.arrival, ttft_s, took_s)
            self._tally.late_served += flight.late
            self._tally.late_unforeseen += not attained and not flight.late
            self._counts.completed(flight.predicted, seq.end, attained)
            self._lengths.learn(flight.arrival)
            self._leaves(flight)

    def lost(self, member: Member) -> None:
        """An instance failed with what ran there."""
        for flight in [flight for flight in self.flights if flight.member is member]:
            self._lost(flight, member)

    def _lost(self, flight: Flight, member: Member) -> None:
        seq, slot = flight.seq, flight.slot
        assert seq is not None and slot is not None
        flight.slot = flight.member = None
        slot.release()
        if seq.first_s is not None and self._moves != MOVES_OFF and flight.attempts <= MOST_MOVES:
            self._goes_on(flight, member)
            return
        begun = seq.first_s is not None
        if not begun and seq.state == WAITING and not seq.preemptions:
            flight.seq = None
        self._forget_tokens(flight)
        if begun:
            self._ends(flight, Outcome.CUT)
        elif flight.attempts > self._door.retries:
            self._ends(flight, Outcome.FAILED)
        else:
            self._tally.retried += 1
            self._submit(flight, {member.instance.id: inf})

    def goes_elsewhere(self, flight: Flight, member: Member) -> None:
        """Its instance had not begun it, and has it no more."""
        slot = flight.slot
        flight.slot = flight.member = flight.seq = None
        assert slot is not None
        member.instance.rests(self._world.now_s)
        self._tally.retried += 1
        self._submit(flight, {member.instance.id: inf})
        slot.release()

    def moves(self, flight: Flight, member: Member) -> None:
        """Its sequence has left its instance, which lives on."""
        slot = flight.slot
        flight.slot = flight.member = None
        assert slot is not None
        self._goes_on(flight, member)
        slot.release()

    def _goes_on(self, flight: Flight, member: Member) -> None:
        seq = flight.seq
        assert seq is not None
        self._tally.migrations += 1
        pool = self.spec.pool_for(self.spec.edges.output_size(seq.generated + 1))
        flight.ask = structs.replace(
            flight.ask, input_tokens=seq.total, pool_index=max(pool, flight.ask.pool_index),
            kv_tokens=max(flight.ask.kv_tokens, seq.total + 1),
        )  # fmt: skip
        self._submit(flight, {member.instance.id: inf})

    def _forget_tokens(self, flight: Flight) -> None:
        """What an instance made of the answer until now reaches nobody any more."""
        seq, flight.seq = flight.seq, None
        if seq is not None:
            self._tally.cut_tokens += seq.generated
            self._tally.prompt_tokens += seq.prompt

    # --- ending

    def _leaves(self, flight: Flight) -> None:
        slot = flight.slot
        flight.slot = flight.seq = flight.member = None
        self._gone(flight)
        if slot is not None:
            slot.release()

    def _ends(self, flight: Flight, outcome: Outcome) -> None:
        if flight.seq is not None:  # it waited to go on
            self._forget_tokens(flight)
            outcome = Outcome.CUT
        self._tally.not_completed(flight.size_class, outcome)
        self._counts.missed(flight.predicted)
        self._gone(flight)

    def _gone(self, flight: Flight) -> None:
        del self.flights[flight]
        self.last_end_s = self._world.now_s
        self._check_over()

    def _check_over(self) -> None:
        if self._next is None and not self.flights:
            self._world.over = True

    def _slot_free(self) -> None:
        """A slot was given back. Who waits is placed once, after everything of this instant has ended."""
        if self.router.queued() and not self._pumping:
            self._pumping = True
            self._world.at(self._world.now_s, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        self.router.pump(self._world.now_s)
