"""Which instance takes which request, and when. Synchronous and without a clock: the live gateway and the simulator
call the same functions with their own `now_s`.

A request first tries its own pool, then every pool that serves longer answers. Among the instances with room it takes
the one that adds the fewest joules while all admitted requests keep their objectives. If none has room it waits in the
queue of its own pool; the earliest deadline of all queues goes first, but behind others if its key had more than its
part, and last if it is late anyway. A prompt also waits while every engine prefills
another one, for an engine takes prompts in the order they come, whatever their deadlines."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from operator import attrgetter, itemgetter
from typing import NamedTuple

from core.errors import Overloaded
from core.instances import SeenWaiting, Steer
from core.request import Ask, Prediction
from core.service import SIZES, ServiceSpec
from pools.choice import Price, choose_size, price_of
from pools.instance import Instance, Slot
from pools.queue import FIRST, LAST, NONE, OVER_SHARE, DeadlineQueue, Ticket
from pools.score import added_joules, forecast
from pools.shares import Shares

CANDIDATES = 8  # priced per decision: more does not change the choice, it only costs time
Choice = tuple[float, Instance]  # (seconds to its first token there, where)
Late = tuple[bool, float, Instance]  # (whether others suffer, seconds to its first token there, where)
NOBODY = (LAST + 1, inf)  # behind whoever waits
AS_USUAL = Steer("", "", False, False, "")
PRICES_S = 1.0  # how old the prices of pools may be: instances change shape in seconds, requests come by thousands
MOST_BEGUN = 8  # looked past for one to shed
LOOKAHEAD = 8  # queued tickets tried behind one that does not fit, so that a large one blocks nobody


class Weighed(NamedTuple):
    """What a choice was made from. `joules` of those in time, where there were several; `late` ones only count where
    nobody is in time."""

    chosen: Instance
    in_time: list[Choice]
    joules: list[float] | None
    late: list[Late]


class Router:
    """Owns the queues of one service. Instances are the fleet's; only slots change what they hold. Without `on_failed`
    a ticket that cannot be weighed raises, where nobody else would suffer from it, as in the simulator."""

    def __init__(
        self,
        spec: ServiceSpec,
        max_queue: int,
        seed: int,
        on_placed: Callable[[Ticket, Slot], None],
        on_failed: Callable[[Ticket, Exception], None] | None = None,
        on_shed: Callable[[Ticket], None] | None = None,
    ) -> None:
        self.spec = spec
        self.max_queue = max_queue
        self.instances: dict[str, Instance] = {}
        self._queues = [DeadlineQueue() for _ in spec.pools]
        self._places = {pool.name: index for index, pool in enumerate(spec.pools)}
        self._random = random.Random(seed)
        self._steered: dict[str, Steer] = {}
        self._prices: tuple[Price | None, ...] = ()
        self._priced_s = 0.0
        self._weighed: Weighed | None = None  # of the last choice
        self._shares = Shares()
        self._on_placed = on_placed
        self._on_failed = on_failed
        self._on_shed = on_shed
        self._pumping = False
        self._pump_again = False
        self._on_release: Callable[[], None] = lambda: None

    def bind(self, on_release: Callable[[], None]) -> None:
        """`on_release` is called whenever a slot is given back; it calls `pump` with the caller's time."""
        self._on_release = on_release

    def choose_size(self, prediction: Prediction, input_tokens: int, now_s: float) -> str:
        """The output size that the request is taken for, at the prices of the instances that are open."""
        if not self._prices or now_s >= self._priced_s + PRICES_S:
            self._prices, self._priced_s = self._priced(now_s), now_s
        return choose_size(prediction, input_tokens, self.spec.edges, self._prices)

    def _priced(self, now_s: float) -> tuple[Price | None, ...]:
        """By output size: of the fullest instance in the pool that such answers go to, or else in the next longer."""
        fullest: dict[int, Instance] = {}
        for instance in self.instances.values():
            if instance.model is not None and instance.open_to(now_s):
                at = self._places.get(instance.pool, -1)
                if at not in fullest or fullest[at].sequences < instance.sequences:
                    fullest[at] = instance
        prices: list[Price | None] = []
        for size in SIZES:
            first = self.spec.pool_for(size)
            at = min((at for at in fullest if at >= first), default=-2)
            chosen = fullest.get(at)
            if chosen is None or chosen.model is None:
                prices.append(None)
                continue
            limits = chosen.limits
            prices.append(price_of(chosen.model, chosen.tp, chosen.clock_mhz, limits.slots, limits.kv_tokens))
        return tuple(prices)

    def queued(self, pool_index: int | None = None) -> int:
        if pool_index is None:
            waiting = 0
            for queue in self._queues:  # a sum over a generator takes three times as long, and all ask this
                waiting += queue.waiting
            return waiting
        return len(self._queues[pool_index]) if pool_index < len(self._queues) else 0

    def seen_waiting(self, pool_index: int, limit: int) -> tuple[SeenWaiting, ...]:
        """The earliest deadlines of one queue, as the controller sees them."""
        first = self._queues[pool_index].first(limit) if pool_index < len(self._queues) else []
        return tuple(SeenWaiting(ticket.ask.deadline_s, ticket.ask.input_tokens) for ticket in first)

    def steer(self, steer: Steer) -> None:
        """How a pool's requests are taken from now on."""
        self._steered[steer.pool] = steer

    @property
    def moving(self) -> bool:
        """Whether some pool's instances are to let go of what they have not begun."""
        return any(steer.move for steer in self._steered.values())

    def lets_go(self, slot: Slot, now_s: float, refused: Mapping[str, float] = NONE) -> bool:
        """Whether a request is to leave an instance that owes its first token: the ladder says so, the token is
        overdue, another instance would take it now, and it did not leave this one before."""
        here = slot.instance
        steer = self._steered.get(here.pool)
        if steer is None or not steer.move or now_s <= slot.due_s or not here.owes(slot) or here.id in refused:
            return False
        return self._choose(slot.ask, now_s, {**refused, here.id: inf}) is not None

    def waiting(self) -> list[Ticket]:
        return [ticket for queue in self._queues for ticket in queue]

    def respec(self, spec: ServiceSpec) -> None:
        """Takes new promises and pools; what waits is queued again under the new pools."""
        waiting = self.waiting()
        self.spec = spec
        self._queues = [DeadlineQueue() for _ in spec.pools]
        self._places = {pool.name: index for index, pool in enumerate(spec.pools)}
        for ticket in waiting:
            self._queue_of(ticket).push(ticket)

    def submit(self, ticket: Ticket, now_s: float) -> Slot | None:
        """A slot at once, or None and the ticket waits. Raises Overloaded when the queue is full, but never for a
        request that was let in before and has lost its instance."""
        ahead = min(map(_next, self._queues)) if self.queued() else NOBODY
        if ahead < NOBODY and ticket.rank == FIRST and not ticket.refused and self._shares.over(ticket.ask.key, now_s):
            ticket.rank = OVER_SHARE
        is_first = _order(ticket) < ahead
        if is_first:
            chosen = self._choose(ticket.ask, now_s, ticket.refused)
            if chosen is not None and (ahead == NOBODY or self._goes_now(ticket, chosen, now_s)):
                return self._hold(ticket, chosen, now_s)
            is_first = chosen is None
        full = self.queued() >= self.max_queue and not ticket.refused
        queue = self._queue_of(ticket)
        queue.push(ticket)
        if not is_first:  # there may be room that those ahead of it cannot use
            self.pump(now_s)
        if full and not ticket.gone:
            queue.remove(ticket)
            raise Overloaded(f"the queue of {self.spec.name} is full", retry_after_s=1.0)
        return None

    def cancel(self, ticket: Ticket) -> None:
        self._queue_of(ticket).remove(ticket)

    def pump(self, now_s: float) -> None:
        """Places every queued request that now has somewhere to go, earliest deadlines first.

        A slot that comes back in the middle is seen by the round that runs: rounds within rounds would go as deep as
        the queue is long."""
        self._pump_again = True
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._pump_again:
                self._pump_again = False
                self._place_all(now_s)
        finally:
            self._pumping = False

    def _place_all(self, now_s: float) -> None:
        """Pools may share their instances, so that the earliest deadline of all queues goes first."""
        waiting = [queue for queue in self._queues if len(queue)]
        while waiting:
            queue = waiting[0] if len(waiting) == 1 else min(waiting, key=_next)
            if not self._place_one(queue, now_s) or not len(queue):
                waiting.remove(queue)

    def anyone_ready(self, now_s: float) -> bool:
        return any(instance.open_to(now_s) for instance in self.instances.values())

    def _queue_of(self, ticket: Ticket) -> DeadlineQueue:
        return self._queues[min(ticket.ask.pool_index, len(self._queues) - 1)]

    def _place_one(self, queue: DeadlineQueue, now_s: float) -> bool:
        """Whether a ticket left the queue: placed, abandoned, or failed. Its fault is its own: this runs inside the
        release of somebody else's slot, who must not hear of it."""
        if self._shed_one(queue, now_s):
            return True
        for ticket in self._hopeful(queue, now_s):
            if ticket.abandoned:
                queue.remove(ticket)
                return True
            try:
                chosen = self._choose(ticket.ask, now_s, ticket.refused)
            except Exception as error:
                queue.remove(ticket)
                if self._on_failed is None:
                    raise
                self._on_failed(ticket, error)
                return True
            if chosen is None:
                continue
            if not self._goes_now(ticket, chosen, now_s) and self.queued() > 1:
                queue.put_last(ticket)
                return True
            queue.remove(ticket)
            self._on_placed(ticket, self._hold(ticket, chosen, now_s))
            return True
        return False

    def _goes_now(self, ticket: Ticket, chosen: Choice, now_s: float) -> bool:
        """Where it would be late, whoever can be in time goes first: served by deadline alone, a queue that is too long
        for its instances makes everybody a little late. Not so an answer that goes on."""
        in_time = now_s + chosen[0] <= ticket.ask.deadline_s
        return in_time or ticket.rank == LAST or bool(ticket.refused)

    def _shed_one(self, queue: DeadlineQueue, now_s: float) -> bool:
        """Where the ladder says so, whoever is late makes way for those who can still be in time. Not a request that an
        instance had before: it may be an answer that goes on, and what was begun is not shed."""
        if self._on_shed is None or not self._steered or not len(queue):
            return False
        first = next((ticket for ticket in queue.first(MOST_BEGUN) if not ticket.refused), None)
        for ticket in (first, queue.first_of(LAST)):
            if ticket is None or not self._steering(ticket.ask).shed_late:
                continue
            if ticket.late or ticket.ask.deadline_s < now_s:
                queue.remove(ticket)
                self._on_shed(ticket)
                return True
        return False

    def _steering(self, ask: Ask) -> Steer:
        if not self._steered:
            return AS_USUAL
        pool = self.spec.pools[min(ask.pool_index, len(self.spec.pools) - 1)]
        return self._steered.get(pool.name, AS_USUAL)

    def _hopeful(self, queue: DeadlineQueue, now_s: float) -> list[Ticket]:
        """The next tickets that an instance open now might take. One whose tried instances are all that is open waits
        for another, or until they are well, and takes nobody's turn meanwhile."""
        open_now = [i for i in self.instances.values() if i.open_to(now_s)]
        look = LOOKAHEAD
        while open_now:
            first = queue.first(look)
            hopeful = [t for t in first if not t.refused or any(_may_go(i, t.refused) for i in open_now)]
            if len(hopeful) >= LOOKAHEAD or len(first) < look:
                return hopeful[:LOOKAHEAD]
            look *= 2
        return []

    def _hold(self, ticket: Ticket, chosen: Choice, now_s: float) -> Slot:
        ttft_s, instance = chosen
        self._shares.served(ticket.ask.key, ticket.ask.input_tokens + ticket.ask.q50_tokens, now_s)
        slot = instance.hold(ticket.ask, self._on_release, now_s, now_s + ttft_s)
        slot.weighed = self._weighed
        return slot

    def pick(self, ask: Ask, now_s: float, refused: Mapping[str, float] = NONE) -> Instance | None:
        """The instance to use now, or None to wait."""
        chosen = self._choose(ask, now_s, refused)
        return None if chosen is None else chosen[1]

    def _choose(self, ask: Ask, now_s: float, refused: Mapping[str, float]) -> Choice | None:
        instances = self.instances.values()
        if not refused:
            return self._among(instances, ask, now_s)
        chosen = self._among([i for i in instances if i.id not in refused], ask, now_s)
        if chosen is not None:
            return chosen
        return self._among([i for i in instances if i.id in refused and _may_go(i, refused)], ask, now_s)

    def _among(self, instances: Iterable[Instance], ask: Ask, now_s: float) -> Choice | None:
        by_pool: dict[int, list[Instance]] = {}
        for instance in instances:
            if instance.open_to(now_s):
                by_pool.setdefault(self._places.get(instance.pool, -1), []).append(instance)
        indexes = sorted(by_pool)
        longer = [index for index in indexes if index >= ask.pool_index]
        if self._steered and self._steering(ask).spill:
            longer += [index for index in reversed(indexes) if index < ask.pool_index]
        late: list[Late] = []
        # With every longer pool gone, a shorter one that works is better than waiting for a repair.
        for index in longer or indexes:
            in_time = self._candidates(ask, by_pool[index], now_s, late)
            if in_time:
                return self._cheapest(ask, in_time, late)
        if not late:
            return None
        _, ttft_s, instance = min(late, key=itemgetter(0, 1))
        self._weighed = Weighed(instance, [], None, late)
        return ttft_s, instance

    def _candidates(self, ask: Ask, instances: list[Instance], now_s: float, late: list[Late]) -> list[Choice]:
        """Those that would keep every objective. Who keeps the others' but not the request's own is added to `late`,
        and once its deadline has passed whoever is bearable: one strict answer must not shut others out for long."""
        found: list[Choice] = []
        left_s = ask.deadline_s - now_s
        for instance in self._fullest_first([i for i in instances if i.fits(ask) and i.takes_prompt(ask, now_s)]):
            seen = forecast(instance, ask, instance.prefill_left(now_s))
            if seen.keeps_others and seen.ttft_s <= left_s:
                found.append((seen.ttft_s, instance))
                if len(found) == CANDIDATES:
                    break
            elif seen.keeps_others or (seen.bearable and left_s < 0):
                late.append((not seen.keeps_others, seen.ttft_s, instance))
        return found

    def _fullest_first(self, instances: list[Instance]) -> Iterator[Instance]:
        """Then one of the empty ones of each kind, at random: the others would cost the same."""
        if len(instances) == 1:
            yield instances[0]
            return
        yield from sorted((i for i in instances if i.sequences), key=attrgetter("sequences"), reverse=True)
        kinds: dict[tuple[int, int, int], list[Instance]] = {}
        for instance in instances:
            if not instance.sequences:
                kinds.setdefault((instance.tp, instance.clock_mhz, instance.step_tokens), []).append(instance)
        for alike in kinds.values():
            yield self._random.choice(alike) if len(alike) > 1 else alike[0]

    def _cheapest(self, ask: Ask, candidates: list[Choice], late: list[Late]) -> Choice:
        joules = None
        chosen = candidates[0]
        if len(candidates) > 1:
            joules = [added_joules(instance, ask) for _, instance in candidates]
            least = min(joules) + 1e-9
            chosen = self._random.choice([c for c, added_j in zip(candidates, joules, strict=True) if added_j <= least])
        self._weighed = Weighed(chosen[1], candidates, joules, late)
        return chosen


def _may_go(instance: Instance, refused: Mapping[str, float]) -> bool:
    return instance.well_s > refused.get(instance.id, -inf)


def _order(ticket: Ticket) -> tuple[int, float]:
    return ticket.rank, ticket.ask.deadline_s


def _next(queue: DeadlineQueue) -> tuple[int, float]:
    first = queue.first(1)
    return _order(first[0]) if first else NOBODY
