"""The emulated engine's core: continuous batching with chunked prefill on an engine model.

Owns sequences, the waiting queue, the KV room, the joules. Synchronous: it takes `now_s`, never awaits, reads no clock
and draws nothing at random. Text, stop strings and HTTP are the server's.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from profiles.engine_model import EngineModel
from simulator.speech import HEAD_IDS, Speech, end_threshold, roll
from simulator.tokens import END_ID

WAITING, RUNNING, FINISHED = "waiting", "running", "finished"


@dataclass(frozen=True, slots=True)
class EngineLimits:
    max_num_seqs: int = 256
    max_model_len: int = 32768
    step_tokens: int = 2048  # vLLM's default max_num_batched_tokens for serving


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence to generate. `own_end` > 0: the answer ends by itself at exactly that many tokens. `forced`: the
    answer's ids, given (tool calls, JSON)."""

    id: str
    prompt: Sequence[int]
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_ids: frozenset[int] = frozenset()
    priority: int = 0
    own_end: int = 0
    forced: tuple[int, ...] = ()
    salt: int = 0


@dataclass(slots=True, eq=False)
class Running:
    """A sequence inside the engine. Only the engine writes to it."""

    ask: Ask
    order: int
    arrived_s: float
    state: str = WAITING
    generated: list[int] = field(default_factory=list)
    total: int = 0  # prompt + generated tokens
    computed: int = 0  # tokens whose KV is there
    room: int = 0  # KV tokens held
    hash: int = 0
    last: int = 0
    before_last: int = 0
    threshold: int = 0
    started_s: float | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None

    def __lt__(self, other: Running) -> bool:
        return (self.ask.priority, self.order) < (other.ask.priority, other.order)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step. `emitted` is visible `duration_s` after the step began; `finished` is a subset of its sequences."""

    duration_s: float
    emitted: list[tuple[Running, int]]
    finished: list[Running]
    watts: float
    prefill_tokens: int
    preempted: int


@dataclass(slots=True)
class Counters:
    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0


class Engine:
    def __init__(
        self, model: EngineModel, tp: int, clock_mhz: int, limits: EngineLimits, speech: Speech, now_s: float = 0.0
    ) -> None:
        self.model = model
        self.tp = tp
        self.clock_mhz = clock_mhz
        self.limits = limits
        self.speech = speech
        self.counters = Counters()
        self.kv_tokens = model.kv_tokens(tp)
        self.kv_used = 0
        self.context_limit = min(limits.max_model_len, self.kv_tokens)
        self.running: list[Running] = []
        self._waiting: list[Running] = []
        self._waiting_count = 0
        self._by_id: dict[str, Running] = {}
        self._orders = 0
        self._settled_j = 0.0
        self._settled_s = now_s
        self._step_w = 0.0

    # --- requests

    @property
    def waiting_count(self) -> int:
        return self._waiting_count

    @property
    def has_work(self) -> bool:
        return bool(self.running) or self._waiting_count > 0

    def add(self, ask: Ask, now_s: float) -> Running:
        if ask.id in self._by_id:
            raise ValueError(f"a sequence with id {ask.id} is already here")
        if not ask.prompt or len(ask.prompt) >= self.context_limit:
            raise ValueError(f"a prompt must hold 1 to {self.context_limit - 1} tokens, not {len(ask.prompt)}")
        self._orders += 1
        one = Running(ask, self._orders, now_s, total=len(ask.prompt))
        one.hash = roll(0, ask.prompt)
        one.last, one.before_last = ask.prompt[-1], ask.prompt[-2] if len(ask.prompt) > 1 else 0
        one.threshold = end_threshold(ask.prompt)
        self._by_id[ask.id] = one
        self._wait(one)
        return one

    def abort(self, request_id: str) -> bool:
        """Frees the sequence at once; False if there is none."""
        one = self._by_id.get(request_id)
        if one is None:
            return False
        if one.state == WAITING:
            self._waiting_count -= 1  # its heap entry is dropped when it surfaces
        one.finish_reason = "abort"
        self._forget(one)
        self.running = [other for other in self.running if other is not one]
        return True

    # --- power

    def set_clock(self, clock_mhz: int) -> None:
        """Takes effect with the next step."""
        self.clock_mhz = clock_mhz

    def joules(self, now_s: float) -> float:
        """Energy until `now_s`: finished steps, the share of a step still under way, and idle time."""
        if now_s < self._settled_s:
            return self._settled_j - self._step_w * (self._settled_s - now_s)
        return self._settled_j + self.model.watts(self.tp, self.clock_mhz, 0) * (now_s - self._settled_s)

    def watts(self, now_s: float) -> float:
        return self._step_w if now_s < self._settled_s else self.model.watts(self.tp, self.clock_mhz, 0)

    # --- stepping

    def step(self, now_s: float) -> StepResult:
        """Runs one step that begins at `now_s`; call again no earlier than `now_s + duration_s`."""
        self._settled_j, self._settled_s = self.joules(now_s), max(now_s, self._settled_s)
        preempted = self._make_room()
        batch, prefill_tokens, decoding, context_tokens = self._schedule(now_s)
        if not batch:
            return StepResult(0.0, [], [], self.watts(now_s), 0, preempted)
        duration_s = self.model.step_s(self.tp, self.clock_mhz, prefill_tokens, decoding, context_tokens)
        self._step_w = self.model.watts(self.tp, self.clock_mhz, decoding, prefill_tokens)
        self._settled_j += self._step_w * duration_s
        self._settled_s += duration_s
        emitted, finished = self._advance(batch)
        counters = self.counters
        counters.steps += 1
        counters.preemptions += preempted
        counters.generation_tokens += len(emitted)
        return StepResult(duration_s, emitted, finished, self._step_w, prefill_tokens, preempted)

    def _make_room(self) -> int:
        """Preempts the youngest until every decoding sequence can take one more token."""
        preempted = 0
        while self.running:
            growth = sum(1 for one in self.running if one.total > one.room)
            if self.kv_used + growth <= self.kv_tokens:
                break
            youngest = max(self.running, key=lambda one: one.order)
            self.running.remove(youngest)
            self.kv_used -= youngest.room
            youngest.room = youngest.computed = 0
            self._wait(youngest)
            preempted += 1
        return preempted

    def _schedule(self, now_s: float) -> tuple[list[tuple[Running, int]], int, int, int]:
        """Decodes first, then prefills under way, then new ones: (sequence, tokens) pairs and the step's load."""
        batch: list[tuple[Running, int]] = []
        prefilling: list[Running] = []
        context_tokens = 0
        for one in self.running:
            if one.total - one.computed == 1:
                batch.append((one, 1))
                context_tokens += one.total
                if one.total > one.room:
                    self.kv_used += 1
                    one.room += 1
            else:
                prefilling.append(one)
        decoding = len(batch)
        budget = max(0, self.limits.step_tokens - decoding)
        prefill_tokens = 0
        for one in prefilling:
            tokens = min(one.total - one.computed, budget - prefill_tokens)
            if tokens > 0:
                batch.append((one, tokens))
                prefill_tokens += tokens
        while prefill_tokens < budget and (new := self._admit(now_s)) is not None:
            tokens = min(new.total, budget - prefill_tokens)
            batch.append((new, tokens))
            prefill_tokens += tokens
        return batch, prefill_tokens, decoding, context_tokens

    def _admit(self, now_s: float) -> Running | None:
        """The next waiting sequence, if there is a free slot and its tokens fit; nobody overtakes it."""
        heap = self._waiting
        while heap and heap[0].state != WAITING:
            heapq.heappop(heap)
        if not heap or len(self.running) >= self.limits.max_num_seqs or self.kv_used + heap[0].total > self.kv_tokens:
            return None
        one = heapq.heappop(heap)
        self._waiting_count -= 1
        one.state = RUNNING
        one.room = one.total
        if one.started_s is None:
            one.started_s = now_s
            self.counters.prompt_tokens += len(one.ask.prompt)
        self.kv_used += one.room
        self.running.append(one)
        return one

    def _advance(self, batch: list[tuple[Running, int]]) -> tuple[list[tuple[Running, int]], list[Running]]:
        emitted: list[tuple[Running, int]] = []
        finished: list[Running] = []
        for one, tokens in batch:
            one.computed += tokens
            if one.computed < one.total:
                continue
            token = self._next(one)
            emitted.append((one, token))
            if self._finishes(one, token):
                finished.append(one)
        if finished:
            for one in finished:
                self._forget(one)
            self.running = [one for one in self.running if one.state == RUNNING]
        return emitted, finished

    def _next(self, one: Running) -> int:
        ask, count = one.ask, len(one.generated)
        if ask.forced:
            token = ask.forced[count] if count < len(ask.forced) else END_ID
        elif ask.own_end and count + 1 >= ask.own_end:
            token = END_ID
        else:
            may_end = not ask.own_end and not ask.ignore_eos and count >= ask.min_tokens
            token = self.speech.next_id(one.hash, one.last, one.before_last, one.threshold, may_end, ask.salt)
        one.generated.append(token)
        one.total += 1
        one.hash = roll(one.hash, (token,))
        one.before_last, one.last = one.last, token
        if one.total <= HEAD_IDS:
            one.threshold = end_threshold([*ask.prompt, *one.generated])
        return token

    def _finishes(self, one: Running, token: int) -> bool:
        ask = one.ask
        if token == END_ID:
            one.finish_reason = "stop"
        elif token in ask.stop_ids and len(one.generated) >= ask.min_tokens:
            one.finish_reason, one.stop_reason = "stop", token
        elif len(one.generated) >= ask.max_tokens or one.total >= self.context_limit:
            one.finish_reason = "length"
        return one.finish_reason is not None

    def _wait(self, one: Running) -> None:
        one.state = WAITING
        self._waiting_count += 1
        heapq.heappush(self._waiting, one)

    def _forget(self, one: Running) -> None:
        one.state = FINISHED
        self.kv_used -= one.room
        one.room = 0
        del self._by_id[one.ask.id]
