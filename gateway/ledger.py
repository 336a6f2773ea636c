"""Where the joules went: reads the counters of all instances once a second and books what they count.

Owns the open stints, what has been learnt of the engine models, and the batch on its way to disk. A joule is booked
once: as prefill or decode of a request, or on the line of what its instance was doing instead (idle, parked, starting,
switching), or as the residual that nothing explains. Requests cost the hot path three moments and no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from core.clock import Clock
from core.instances import State
from gateway.ledger_store import ACCOUNT_S, WINDOW_S, Batch, LedgerStore
from pools.attribution import Shares, Site, Work, billed, shared_out, work_of
from pools.counters import BARE, Counted, Counters, Odometers
from pools.fleet import Fleet
from pools.instance import Instance
from pools.learning import Factors
from pools.stints import Bill, Ended, Stint
from profiles.engine_model import EngineModel

PATIENCE_S = 30.0  # a counter that is not read for longer is done without until it is back
FLUSH_S = 2.0
SLACK_S = 5.0  # a request may make an instance known before the next reading does
PRICE_GAIN = 0.05  # of a request in the joules that the next one is foretold to cost
CAUSES = ("prefill", "decode", "idle", "parked", "starting", "switching", "residual")
LINES = {
    State.STARTING: "starting", State.READY: "idle", State.DRAINING: "switching", State.PARKED: "parked",
    State.STOPPED: "switching", State.FAILED: "switching",
}  # fmt: skip


@dataclass(slots=True)
class Seat:
    """One instance in the books, since `born_s`. `from_s`: until then everything is booked; `token_j` and `seq_w`:
    joules of a prefill token and watts of a decoding sequence there, as last seen; `guessed_j`: booked by the model
    since its counter was last read, at `counted_s`; -inf: never."""

    instance: Instance
    service: str
    model: EngineModel | None
    from_s: float
    state: State
    born_s: float
    quality: str = "modelled"
    stints: list[Stint] = field(default_factory=list)
    token_j: float = 0.0
    seq_w: float = 0.0
    guessed_j: float = 0.0
    counted_s: float = -inf
    watts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tick:
    """What the last reading told. Watts by cause, and by (service, pool); `quality` of what was read."""

    wall_s: float
    watts: Mapping[str, float]
    pools: Mapping[tuple[str, str], float]
    quality: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """One instance at the last reading: mean watts by cause since the one before, and how they are known."""

    watts: Mapping[str, float]
    quality: str


class Ledger:
    """`fleets` are all there are, retiring ones too. `on_tick` is told after every reading, `on_settled` of every bill
    that is complete."""

    def __init__(
        self, fleets: Callable[[], Iterable[Fleet]], counters: Sequence[Counters], clock: Clock, store: LedgerStore,
        interval_s: float = 1.0,
    ) -> None:  # fmt: skip
        self.store = store
        self.counters = list(counters)
        self.interval_s = interval_s
        self.last = Tick(0.0, dict.fromkeys(CAUSES, 0.0), {}, "modelled")
        self.totals: dict[tuple[str, str, str], float] = {}  # joules by (service, pool, cause or "meter"), for /metrics
        self.expected: dict[str, list[float]] = {}  # by service: joules foretold, joules that then were counted
        self.on_tick: Callable[[Tick], None] = lambda tick: None
        self.on_settled: Callable[[Bill], None] = lambda bill: None
        self.odometers = Odometers()
        self._fleets = fleets
        self._clock = clock
        self._seats: dict[str, Seat] = {}
        self._factors: dict[tuple[str, int, int], Factors] = {}
        self._ended: list[Bill] = []
        self._prices: dict[str, list[float]] = {}  # by service: joules of a prompt token and of an answer's
        self._batch = Batch()
        self._flush_due_s = 0.0

    # --- the hot path

    def begin(self, bill: Bill, fleet: Fleet, instance: Instance, tokens: int, sequences: int, now_s: float) -> Stint:
        """An attempt was sent. `tokens` are to be prefilled."""
        seat = self._seats.get(instance.id)
        if seat is None:
            seat = self._seat(fleet, instance, now_s)
        stint = Stint(bill, instance.id, tokens, sequences, now_s)
        seat.stints.append(stint)
        bill.open += 1
        return stint

    def finished(self, bill: Bill, ended: Ended) -> None:
        bill.ended = ended
        self._ended.append(bill)

    def estimate(self, stint: Stint, now_s: float) -> float:
        """Joules of its request if it ended now: what is booked, and the rest at its instance's last rates."""
        bill = stint.bill
        joules = bill.prefill_j + bill.decode_j
        seat = self._seats.get(stint.instance_id)
        if seat is None:
            return joules
        since_s = stint.first_s if stint.first_s > seat.from_s else seat.from_s
        joules += (stint.prefill_tokens - stint.prefilled) * seat.token_j
        if stint.first_s and now_s > since_s:
            if not seat.seq_w:
                seat.seq_w = self._first_seq_w(seat)
            joules += (now_s - since_s) * stint.sequences * seat.seq_w
        return joules

    def foretell(self, fleet: Fleet, input_tokens: int, output_tokens: int) -> float:
        """Joules of a request before it is sent, at what the service's requests have cost of late; before the first
        has ended, at what the engine model says of eight that run together."""
        price = self._prices.get(fleet.spec.name)
        if price is None:
            price = self._prices[fleet.spec.name] = first_price(fleet)
        return input_tokens * price[0] + output_tokens * price[1]

    def _learn_price(self, bill: Bill, end: Ended) -> None:
        price = self._prices.get(bill.service)
        if price is None or not bill.joules:
            return
        for place, joules, tokens in ((0, bill.prefill_j, end.input_tokens), (1, bill.decode_j, end.output_tokens)):
            if tokens:
                price[place] += PRICE_GAIN * (joules / tokens - price[place])

    def quality(self, stint: Stint) -> str:
        """Of a request's joules: attributed where a counter is shared out, modelled where none is."""
        seat = self._seats.get(stint.instance_id)
        return (
            "attributed" if seat is not None and seat.quality == "measured" and not stint.bill.modelled else "modelled"
        )

    # --- the meter's time

    async def run(self) -> None:
        """For ever."""
        while True:
            began_s = self._clock.now_s()
            await self.read()
            await self._clock.sleep_until(began_s + self.interval_s)

    async def read(self) -> None:
        """One reading of all counters, and everything that it settles."""
        now_s = self._clock.now_s()
        members = {m.instance.id: (fleet, m.instance) for fleet in self._fleets() for m in fleet.members.values()}
        for fleet, instance in members.values():
            if instance.id not in self._seats:
                self._seat(fleet, instance, instance.since_s if instance.state is State.STARTING else now_s)
        found = await self._counted([instance for _, instance in members.values()])
        now_s, wall_s = self._clock.now_s(), self._clock.wall_s()
        bare = found.pop(BARE, None)
        if bare is not None:
            self._book_bare(*bare, wall_s)
        for instance_id, seat in list(self._seats.items()):
            counted, source = found.get(instance_id, (None, None))
            self._settle(seat, counted, source, now_s, wall_s, gone=instance_id not in members)
            if instance_id not in members and not seat.stints:
                del self._seats[instance_id]
                self.odometers.forget(f"engine {instance_id}")
        self._close_bills()
        self._tell(wall_s)
        if now_s >= self._flush_due_s:
            self._flush_due_s = now_s + FLUSH_S
            self.flush(wall_s)

    def flush(self, wall_s: float) -> None:
        """Hands what was booked to the store."""
        batch, self._batch = self._batch, Batch()
        self.store.write(batch, wall_s)

    @property
    def drawn(self) -> dict[str, Drawn]:
        """By instance."""
        return {name: Drawn(seat.watts, seat.quality) for name, seat in self._seats.items()}

    def metered(self, service: str) -> tuple[float, str, float] | None:
        """What all instances of a service draw: watts, how that is known, and how old the oldest reading among them is
        in whole seconds. None where not all of them have counters that were ever read."""
        seats = [seat for seat in self._seats.values() if seat.service == service]
        age_s = max((self._clock.now_s() - seat.counted_s for seat in seats), default=inf)
        if age_s == inf:
            return None
        quality = "measured" if all(seat.quality == "measured" for seat in seats) else "modelled"
        return sum(sum(seat.watts.values()) for seat in seats), quality, max(0.0, age_s // 1.0)

    def factors(self) -> dict[tuple[str, int, int], tuple[float, float, float]]:
        """What was learnt of idle, prefill and decode joules, by service, TP and clock."""
        return {key: factors.now() for key, factors in self._factors.items()}

    async def _counted(self, instances: list[Instance]) -> dict[str, tuple[Counted, Counters]]:
        found: dict[str, tuple[Counted, Counters]] = {}
        for counters in self.counters:
            left = [one for one in instances if one.id not in found and counters.covers(one)]
            found |= {name: (counted, counters) for name, counted in (await counters.read(left)).items()}
        return found

    def _seat(self, fleet: Fleet, instance: Instance, from_s: float) -> Seat:
        seat = Seat(instance, fleet.spec.name, fleet.model, from_s, instance.state, born_s=from_s)
        self._seats[instance.id] = seat
        model, tp, mhz = fleet.model, instance.tp, instance.clock_mhz
        if model is not None and tp in model.points:  # until the first reading tells better
            seat.token_j = model.watts(tp, mhz, 1, instance.step_tokens) * model.point(tp).prefill_per_token_s
        return seat

    @staticmethod
    def _first_seq_w(seat: Seat) -> float:
        """Watts of a decoding sequence where none was seen decoding yet."""
        model, instance = seat.model, seat.instance
        if model is None or instance.tp not in model.points:
            return 0.0
        running = max(1, instance.sequences)
        return model.watts(instance.tp, instance.clock_mhz, running) / running

    def _settle(
        self, seat: Seat, counted: Counted | None, source: Counters | None, now_s: float, wall_s: float, *, gone: bool
    ) -> None:  # fmt: skip
        to_s = now_s if counted is None else counted.at_s
        joules, told_anew = None, False  # whether the counter tells of the time that was guessed, too
        if counted is not None and source is not None:
            seat.quality, seat.counted_s = source.quality, counted.at_s
            # A counter older than the seat has counted for somebody else: another's server, or one that was taken over.
            from_zero = source.from_zero and counted.age_s <= to_s - seat.born_s + SLACK_S
            if not self.odometers.knows(counted.parts):  # its first value tells of all the time since it began
                seat.from_s = to_s - counted.age_s if from_zero else to_s
                seat.guessed_j *= from_zero  # or of none: then what was guessed of that time stays
                told_anew = from_zero
            joules = self.odometers.passed(counted.parts, from_zero=from_zero)
            seat.from_s = max(seat.from_s, to_s - counted.age_s)  # before that nobody counted
        elif not gone and now_s - seat.from_s < PATIENCE_S and any(c.covers(seat.instance) for c in self.counters):
            return  # its counter is read later, and then tells of this time, too
        if to_s > seat.from_s:
            self._book(seat, joules, to_s, wall_s, 1.0 if counted is None else counted.pace, told_anew)
        for stint in seat.stints:
            if (stint.end_s and stint.end_s <= to_s) or gone:
                stint.bill.open -= 1
        seat.stints = [s for s in seat.stints if not gone and not (s.end_s and s.end_s <= to_s)]
        seat.state = seat.instance.state

    def _book(
        self, seat: Seat, joules: float | None, to_s: float, wall_s: float, pace: float, told_anew: bool
    ) -> None:  # fmt: skip
        """One window of one instance."""
        instance, model = seat.instance, seat.model
        changed_late = instance.since_s > (seat.from_s + to_s) / 2
        state = seat.state if changed_late else instance.state
        if model is not None and instance.tp not in model.points:
            model = None
        idle_w = 1.0 if model is None else model.idle_w * instance.tp
        if model is not None and state is State.PARKED:
            idle_w = model.parked_w * instance.tp
        site = Site(model, instance.tp, instance.clock_mhz, instance.step_tokens, idle_w, pace)
        work = work_of(site, seat.stints, seat.from_s, to_s)
        factors = self._factors.setdefault((seat.service, instance.tp, instance.clock_mhz), Factors())
        known, judged = factors.now(), (0.0, 0.0)
        if joules is None:
            shares = shared_out(work, known, None) if model is not None else Shares(0.0, 0.0, 0.0, 0.0)
            seat.guessed_j += shares.idle_j + shares.requests_j
        else:
            expected_j = sum(part * factor for part, factor in zip(work.parts, known, strict=True))
            if model is not None and state is not State.STARTING and seat.guessed_j == 0:
                factors.learn(work.parts, joules)
                judged = expected_j, joules
            shares = shared_out(work, known, joules - (0.0 if told_anew else seat.guessed_j))
            if told_anew:
                shares = replace(shares, idle_j=shares.idle_j - seat.guessed_j)
            if LINES[state] in ("starting", "switching") and not shares.requests_j:
                shares = Shares(joules - seat.guessed_j, 0.0, 0.0, 0.0)  # no model says what loading weights draws
        self._enter(seat, work, shares, joules, LINES[state], judged, wall_s)
        if joules is not None:
            seat.guessed_j = 0.0
        seat.from_s = to_s

    def _enter(
        self, seat: Seat, work: Work, shares: Shares, joules: float | None, line: str, judged: tuple[float, float],
        wall_s: float,
    ) -> None:  # fmt: skip
        """Onto its lines and bills. `judged`: joules that were foretold, and then counted."""
        pool, booked_j = seat.instance.pool, shares.idle_j + shares.requests_j + shares.residual_j
        filled_j = booked_j if joules is None else -seat.guessed_j
        by_cause = {"prefill": shares.prefill_j, "decode": shares.decode_j, line: shares.idle_j}
        by_cause["residual"] = shares.residual_j
        values = (joules or 0.0, filled_j, *(by_cause.get(cause, 0.0) for cause in CAUSES), *judged)
        self._spread((seat.service, pool, seat.quality), values, work.seconds, wall_s)
        both = self.expected.setdefault(seat.service, [0.0, 0.0])
        both[0] += judged[0]
        both[1] += judged[1]
        for cause, spent_j in (*by_cause.items(), ("meter", joules or 0.0)):
            key = (seat.service, pool, cause)
            if cause == "residual" or spent_j > 0:  # a counter of /metrics never falls
                self.totals[key] = self.totals.get(key, 0.0) + spent_j
        seat.watts = {cause: spent_j / work.seconds for cause, spent_j in by_cause.items()}
        for stint, prefill_j, decode_j in billed(work, shares):
            bill = stint.bill
            bill.prefill_j += prefill_j
            bill.decode_j += decode_j
            bill.modelled = bill.modelled or seat.quality != "measured" or joules is None
            sums = self._account(bill, pool, wall_s)
            sums[0] += prefill_j
            sums[1] += decode_j
        tokens = sum(done for _, done in work.tokens)
        if tokens and shares.prefill_j:
            seat.token_j = shares.prefill_j / tokens
        if work.seq_s:
            seat.seq_w = shares.decode_j / work.seq_s

    def _book_bare(self, counted: Counted, source: Counters, wall_s: float) -> None:
        joules = self.odometers.passed(counted.parts, from_zero=False)
        if not joules:
            return
        values = (joules, 0.0, 0.0, 0.0, joules, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._spread(("", "", source.quality), values, self.interval_s, wall_s)
        for cause in ("idle", "meter"):
            self.totals["", "", cause] = self.totals.get(("", "", cause), 0.0) + joules

    def _close_bills(self) -> None:
        ended, self._ended = self._ended, []
        for bill in ended:
            if bill.open > 0:
                self._ended.append(bill)
                continue
            end = bill.ended
            assert end is not None
            sums = self._account(bill, end.pool, end.wall_s)
            good = end.output_tokens if end.attained else 0
            for at, value in enumerate((1, end.input_tokens, end.output_tokens, good), start=2):
                sums[at] += value
            self._batch.requests.append((
                bill.request_id, end.wall_s, bill.key, bill.service, bill.size_class, end.outcome, end.input_tokens,
                end.output_tokens, int(end.attained), bill.prefill_j, bill.decode_j,
                "modelled" if bill.modelled else "attributed",
            ))  # fmt: skip
            self._learn_price(bill, end)
            self.on_settled(bill)
            if bill.on_settled is not None:
                bill.on_settled(bill)

    def _tell(self, wall_s: float) -> None:
        watts, pools = dict.fromkeys(CAUSES, 0.0), dict[tuple[str, str], float]()
        for seat in self._seats.values():
            for cause, spent_w in seat.watts.items():
                watts[cause] += spent_w
            key = (seat.service, seat.instance.pool)
            pools[key] = pools.get(key, 0.0) + sum(seat.watts.values())
        measured = self._seats and all(seat.quality == "measured" for seat in self._seats.values())
        self.last = Tick(wall_s, watts, pools, "measured" if measured else "modelled")
        self.on_tick(self.last)

    def _spread(self, key: tuple[str, str, str], values: Sequence[float], seconds: float, wall_s: float) -> None:
        """Evenly over the `seconds` before `wall_s`: a counter that was silent tells of all the time since."""
        at_s = wall_s - seconds
        while True:
            begin_s = at_s // WINDOW_S * WINDOW_S
            until_s = min(wall_s, begin_s + WINDOW_S)
            share = (until_s - at_s) / seconds if seconds > 0 else 1.0
            row = self._batch.window((begin_s, *key))
            for place, value in enumerate(values):
                row[place] += value * share
            if until_s >= wall_s:
                return
            at_s = until_s

    def _account(self, bill: Bill, pool: str, wall_s: float) -> list[float]:
        return self._batch.account((wall_s // ACCOUNT_S * ACCOUNT_S, bill.service, pool, bill.size_class, bill.key))


def first_price(fleet: Fleet) -> list[float]:
    """Joules of a prompt token and of an answer's by the engine model, eight sequences running together."""
    model, pool = fleet.model, fleet.spec.pools[0]
    if model is None or pool.tp not in model.points:
        return [0.0, 0.0]
    tp, mhz = pool.tp, pool.clock_mhz or max(model.clocks_mhz)
    prompt_j = model.watts(tp, mhz, 8, 512) * model.point(tp).prefill_per_token_s
    step_s = model.decode_step_s(tp, mhz, 8, 8 * model.context_tokens)
    return [prompt_j, model.watts(tp, mhz, 8) * step_s / 8]
