"""One vLLM server as the router sees it: where it is, how it feels, what it holds.

Owns the books of what is in flight there. A slot is the only way to write them, and it releases on every exit."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from types import TracebackType
from typing import Any

from msgspec import Struct

from core.instances import SeenInstance, State
from core.request import Ask
from core.service import PoolSpec
from pools.breaker import Breaker
from pools.connection import authority
from profiles.engine_model import EngineModel

OVERDUE_S = 1.0  # after which an instance that owes a first token is given no more prompts
REST_S = 10.0  # of 5, 10, 20 and 30 s the least that helped at each of three loads (tests/scenario/test_sim_moves.py)
HITS_KEPT = 0.98  # the last fifty prompts count


class Tightest:
    """The TBT limits of those who hold slots; `limit_s` is the smallest, infinity without any."""

    __slots__ = ("_holders", "limit_s")

    def __init__(self) -> None:
        self._holders: dict[float, int] = {}  # by limit: nearly all requests have their service's
        self.limit_s = inf

    def add(self, limit_s: float) -> None:
        self._holders[limit_s] = self._holders.get(limit_s, 0) + 1
        if limit_s < self.limit_s:
            self.limit_s = limit_s

    def remove(self, limit_s: float) -> None:
        left = self._holders[limit_s] - 1
        if left:
            self._holders[limit_s] = left
            return
        del self._holders[limit_s]
        self.limit_s = min(self._holders, default=inf)


class PrefixHits:
    """What share of the prompt tokens that an engine got lately it had in its prefix cache, by its own word. That is
    what to expect of any prompt there, for the router sends none where its prefix is. 0: not known."""

    __slots__ = ("_asked", "_hits")

    def __init__(self) -> None:
        self._hits = self._asked = 0.0

    @property
    def share(self) -> float:
        return self._hits / self._asked if self._asked else 0.0

    def saw(self, cached: int, prompt: int) -> None:
        self._hits = HITS_KEPT * self._hits + min(cached, prompt)
        self._asked = HITS_KEPT * self._asked + prompt


class Prefill(Struct, frozen=True):
    """How far an instance's prefill is, by the forecasts it was given: `tokens` to do at `from_s`, none at `free_s`."""

    tokens: int = 0
    from_s: float = 0.0
    free_s: float = 0.0

    def left(self, booked_tokens: int, now_s: float) -> int:
        """Of `booked_tokens`, whose first tokens have not come. Overdue ones count as one token: they are about to."""
        if self.free_s <= self.from_s:
            return booked_tokens
        share = (self.free_s - now_s) / (self.free_s - self.from_s)
        return min(booked_tokens, max(1, int(self.tokens * min(1.0, share)))) if booked_tokens else 0

    def joined(self, booked_tokens: int, more_tokens: int, now_s: float, first_token_s: float) -> Prefill:
        return Prefill(self.left(booked_tokens, now_s) + more_tokens, now_s, first_token_s)


class Instance:
    """Mutable, owned by its service's fleet; only `Slot` changes what it holds: `requests`, `sequences`, `kv_tokens`,
    `prefill_tokens` and `tbt`."""

    def __init__(
        self,
        instance_id: str,
        host: str,
        port: int,
        pool: PoolSpec,
        breaker: Breaker,
        model: EngineModel | None,
        *,
        now_s: float,
        adopted: bool = False,
        gpus: tuple[str, ...] = (),
    ) -> None:
        self.id = instance_id
        self.gpus = gpus  # UUIDs, where they are known
        self.host = host
        self.port = port
        self.breaker = breaker
        self.model = model
        self.take(pool)
        self.adopted = adopted
        self.state = State.STARTING
        self.since_s = now_s
        self.reason = ""
        self.well_s = 0.0  # when the last health probe that it passed was begun
        self.boosts_wanted = 0  # overruns for which a higher clock here would have been the cheapest; only grows
        self.leave = False  # streams that can go on elsewhere are to leave it
        self.requests = 0
        self.sequences = 0
        self.kv_tokens = 0
        self.prefill_tokens = 0
        self._prefill = Prefill()
        self.tbt = Tightest()
        self._rests_until_s = 0.0
        self.owed: dict[Slot, None] = {}  # slots that will tell of their first token, and have not
        self.prefix_hits = PrefixHits()

    @property
    def url(self) -> str:
        return f"http://{authority(self.host, self.port)}"

    @property
    def default_mhz(self) -> int:
        """The clock that GPUs run up to while nobody holds them lower; 0: not known."""
        return max(self.model.clocks_mhz) if self.model else 0

    def take(self, pool: PoolSpec) -> None:
        """What the configuration says of every instance of its pool."""
        self.pool = pool.name
        self.tp = pool.tp
        self.clock_mhz = pool.clock_mhz or self.default_mhz
        self.limits = pool.limits
        self.step_tokens = pool.limits.tokens_per_step

    def set_state(self, state: State, now_s: float, reason: str = "") -> None:
        if state is not self.state:
            self.state = state
            self.since_s = now_s
            self.leave = False
        self.reason = reason

    def seen(
        self, service: str, now_s: float, *, held: bool = False, clock_knob: bool = False, parks: bool = False,
        age_s: float = 0.0,
    ) -> SeenInstance:  # fmt: skip
        return SeenInstance(
            self.id, service, self.pool, self.tp, self.state, self.requests, self.since_s, self.adopted, held,
            self.clock_mhz, self.sequences, self.kv_tokens, self.prefill_tokens, self.tbt.limit_s, clock_knob,
            self.gpus, parks, age_s, self.overdue_s(now_s),
        )  # fmt: skip

    def open_to(self, now_s: float) -> bool:
        return self.state is State.READY and self.breaker.allows(now_s)

    def fits(self, ask: Ask) -> bool:
        """An empty instance takes anything: a request larger than the books is the engine's to judge."""
        if self.sequences == 0:
            return True
        if self.sequences + ask.sequences > self.limits.slots:
            return False
        return not self.limits.kv_tokens or self.kv_tokens + ask.kv_tokens <= self.limits.kv_tokens

    def overdue_s(self, now_s: float) -> float:
        """How long ago the first token was due that is missed most, in tenths of a second; 0: none is."""
        return max(0.0, round(max((now_s - slot.due_s for slot in self.owed), default=0.0), 1))

    def prefill_left(self, now_s: float) -> int:
        """Prompt tokens that are probably still to be prefilled, between none and all of `prefill_tokens`."""
        return self._prefill.left(self.prefill_tokens, now_s)

    def takes_prompt(self, ask: Ask, now_s: float) -> bool:
        """Prompts wait in the gateway by their deadlines rather than in an engine by their arrival: the next one goes
        there when what is left of those before it is this step's work, or when all of it fits into one step. One that
        owes a first token gets none."""
        if self.model is None:
            return True
        if now_s < self._rests_until_s or (self.owed and now_s > next(iter(self.owed)).due_s + OVERDUE_S):
            return False
        if self.prefill_tokens == 0:
            return True
        room, left = self.step_tokens - self.sequences, self.prefill_left(now_s)
        return left <= room or left + ask.input_tokens <= room

    def hold(
        self, ask: Ask, on_release: Callable[[], None], now_s: float = 0.0, first_token_s: float = 0.0
    ) -> Slot:  # fmt: skip
        """`first_token_s`: when its first token is expected; 0 = nobody knows."""
        self._prefill = self._prefill.joined(self.prefill_tokens, ask.input_tokens, now_s, first_token_s)
        return Slot(self, ask, on_release, max(first_token_s, ask.deadline_s))

    def rests(self, now_s: float) -> None:
        """It let go of what it had not begun, and is given nothing until a first token comes from it, or a while."""
        self._rests_until_s = now_s + REST_S

    def works(self) -> None:
        self._rests_until_s = 0.0

    def owes(self, slot: Slot) -> bool:
        return slot in self.owed


class Slot:
    """A place in an instance for one request. `with slot:` gives it back whatever happens."""

    __slots__ = ("_on_release", "_prefilling", "_released", "_trial", "ask", "due_s", "instance", "weighed")

    def __init__(self, instance: Instance, ask: Ask, on_release: Callable[[], None], due_s: float = 0.0) -> None:
        self.instance = instance
        self.ask = ask
        self.due_s = due_s  # its first token should be there, by its objective and by what was expected
        self._on_release = on_release
        self._prefilling = True
        self._released = False
        self.weighed: Any = None  # what the choice of this instance was made from
        instance.requests += 1
        instance.sequences += ask.sequences
        instance.kv_tokens += ask.kv_tokens
        instance.prefill_tokens += ask.input_tokens
        instance.tbt.add(ask.tbt_limit_s)
        self._trial = instance.breaker.begin()

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def awaits_first(self) -> None:
        """Its first token will be told: until then it can be seen to be overdue."""
        if self._prefilling:
            self.instance.owed[self] = None

    def first_token(self) -> None:
        """Prefill is over: later arrivals no longer wait behind it."""
        self.instance.works()
        self._begun()

    def _begun(self) -> None:
        if self._prefilling:
            self._prefilling = False
            self.instance.owed.pop(self, None)
            self.instance.prefill_tokens -= self.ask.input_tokens
            if not self._released:
                self._on_release()  # there is room for the next prompt

    def content(self) -> None:
        """The answer itself has begun: the instance works, however long the rest may take."""
        self.first_token()
        self.instance.breaker.works()

    def cached(self, told: tuple[int, int] | None) -> None:
        """What the engine says of its prefix cache at the end: (cached, all) prompt tokens."""
        if told is not None:
            self.instance.prefix_hits.saw(*told)

    def succeeded(self) -> None:
        self.instance.breaker.success()

    def failed(self, now_s: float) -> None:
        self.instance.breaker.failure(now_s, trial=self._trial)

    def release(self) -> None:
        if self._released:
            return
        self._released = True
        self._begun()
        self.instance.requests -= 1
        self.instance.sequences -= self.ask.sequences
        self.instance.kv_tokens -= self.ask.kv_tokens
        self.instance.tbt.remove(self.ask.tbt_limit_s)
        if self._trial:
            self.instance.breaker.neutral()
        self._on_release()
