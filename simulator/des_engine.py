"""The engine of simulations: the emulated engine's batching without text, advanced from one batch change to the next.

Decides step for step what simulator/engine.py decides (a property test holds the two together), but decode steps of
an unchanged batch are one closed-form run. Owns sequences, KV room and the joules of one instance. Takes `now_s`,
reads no clock, draws nothing at random, schedules nothing: whoever drives it asks `next_event_s` and calls `advance`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from copy import copy

from simulator.engine import EngineLimits
from simulator.sequence import DECODING, GONE, PREFILLING, WAITING, EngineCounters, Joules, Segment, Seq
from simulator.sketch import GapSketches
from simulator.step_costs import CostBook

NEVER_S = float("inf")
OnWatts = Callable[[float, float], None]  # (now_s, watts added)


class DesEngine:
    """`tbt_limit_s` is what makes a gap late. `gaps` belongs to the simulation and takes the pooled gaps."""

    def __init__(
        self,
        costs: CostBook,
        tp: int,
        clock_mhz: int,
        limits: EngineLimits,
        gaps: GapSketches,
        *,
        now_s: float = 0.0,
        tbt_limit_s: float = NEVER_S,
        on_watts: OnWatts = lambda now_s, watts: None,
    ) -> None:
        self.tp = tp
        self.clock_mhz = clock_mhz
        self.limits = limits
        self.kv_tokens = costs.model.kv_tokens(tp)
        self.context_limit = min(limits.max_model_len, self.kv_tokens)
        self.counters = EngineCounters()
        self.joules = Joules()
        self._book = costs
        self._costs = costs.at(tp, clock_mhz)
        self._gaps = gaps
        self._members = [0] * gaps.count
        self._tbt_limit_s = tbt_limit_s
        self._on_watts = on_watts
        self._orders = 0
        self._step = 0  # steps in which decoding sequences took a token
        self._late = 0  # those of them that lasted longer than the limit
        self._decoding: dict[Seq, None] = {}
        self._context = 0  # tokens of the decoding, each with the one about to be computed
        self._prefilling: list[Seq] = []
        self._prefill_room = 0
        self._waiting: list[Seq] = []
        self._ends: list[tuple[int, int, Seq]] = []
        self._leaving: list[Seq] = []
        self._segment: Segment | None = None
        self._boundary_s = now_s  # until here everything is settled
        self._watts = self._costs.idle_w
        on_watts(now_s, self._watts)

    # --- what it holds

    @property
    def running_count(self) -> int:
        return len(self._decoding) + len(self._prefilling)

    @property
    def waiting_count(self) -> int:
        return sum(1 for seq in self._waiting if seq.state == WAITING)

    @property
    def has_work(self) -> bool:
        return bool(self._decoding or self._prefilling) or self.waiting_count > 0

    def before_first(self) -> list[Seq]:
        """Those whose first token is still to come, in the order in which they are prefilled."""
        return [seq for seq in (*self._prefilling, *sorted(self._waiting)) if seq.first_s is None and seq.state != GONE]

    def kv_used(self) -> int:
        """As of the last batch change."""
        return self._context - len(self._decoding) + self._prefill_room

    def generated(self, seq: Seq, now_s: float) -> int:
        """Output tokens of `seq` that are out by `now_s`."""
        if seq.state != DECODING:
            return seq.generated
        return seq.generated + self._step - seq.from_step + _steps_out(self._segment, now_s)

    # --- requests and clock

    def add(
        self, prompt_tokens: int, output_tokens: int, now_s: float, *, priority: int = 0, group: int = 0,
        owner: object = None,
    ) -> Seq:  # fmt: skip
        """Joins at the first step that begins at `now_s` or later."""
        if not 1 <= prompt_tokens < self.context_limit:
            raise ValueError(f"a prompt must hold 1 to {self.context_limit - 1} tokens, not {prompt_tokens}")
        self._hold_at(now_s)
        self._orders += 1
        end = max(1, min(output_tokens, self.context_limit - prompt_tokens))
        seq = Seq(prompt_tokens, end, priority, self._orders, group, owner)
        heapq.heappush(self._waiting, seq)
        return seq

    def adopt(self, gone: Seq, now_s: float) -> Seq:
        """Goes on with a sequence that another engine gave up: all it has is computed again, as after a preemption. The
        answer is a new one: the other engine may hold the old one in its heaps, and tells by its state that it went."""
        self._hold_at(now_s)
        self._orders += 1
        seq = copy(gone)
        seq.order, seq.state, seq.computed, seq.adopted = self._orders, WAITING, 0, True
        seq.preemptions += 1
        heapq.heappush(self._waiting, seq)
        return seq

    def abort(self, seq: Seq, now_s: float) -> bool:
        """Frees it when the step under way ends; False if it is no longer here."""
        if seq.state == GONE:
            return False
        self._hold_at(now_s)
        if seq.state == WAITING:
            seq.state = GONE
        elif self._segment is None:
            self._drop(seq)
            self._rest_if_empty()
        else:
            self._leaving.append(seq)
        return True

    def set_clock(self, clock_mhz: int, now_s: float) -> None:
        """Takes effect with the next step."""
        if clock_mhz != self.clock_mhz:
            self._hold_at(now_s)
            self.clock_mhz = clock_mhz
            self._costs = self._book.at(self.tp, clock_mhz)
            if self._segment is None:
                self._draw(self._costs.idle_w)

    # --- time

    def next_event_s(self) -> float:
        """When the batch changes next; infinity when there is nothing to run."""
        if self._segment is None:
            self._plan()
        return self._segment.end_s if self._segment is not None else NEVER_S

    def advance(self, now_s: float) -> tuple[list[Seq], list[Seq]]:
        """Settles everything that ends by `now_s`: (those with their first token, those finished), in order of time."""
        firsts: list[Seq] = []
        finished: list[Seq] = []
        while (segment := self._segment) is not None and segment.end_s <= now_s:
            self._commit(segment, firsts, finished)
            if self._boundary_s < now_s:
                self._plan()
        if self._segment is None:
            self._idle_until(now_s)
        return firsts, finished

    def joules_at(self, now_s: float) -> Joules:
        """Energy by cause until `now_s`, with the share of what is under way."""
        settled, segment = self.joules, self._segment
        here = Joules(settled.prefill, settled.decode, settled.idle)
        if segment is None:
            here.idle += self._watts * (now_s - self._boundary_s)
        else:
            spent_j = segment.watts * (now_s - segment.start_s)
            here.prefill += spent_j * segment.prefill_share
            here.decode += spent_j * (1 - segment.prefill_share)
        return here

    def close(self, now_s: float) -> None:
        """The instance ends and draws nothing more; what it still holds keeps the tokens that are out."""
        self.advance(now_s)
        self.joules = self.joules_at(now_s)
        segment, self._segment = self._segment, None
        steps = _steps_out(segment, now_s)
        if segment is not None and segment.run is not None and steps:
            self._boundary_s = segment.start_s + segment.run.total_s(steps)
            self._took_tokens(segment, steps)
        for seq in (*self._decoding, *self._prefilling):
            self._leave(seq)
        self._boundary_s = now_s
        self._draw(0.0)

    # --- inside

    def _hold_at(self, now_s: float) -> None:
        """Cuts the run under way at the first step boundary from `now_s` on, so that the batch can change there."""
        segment = self._segment
        if segment is None:
            self._idle_until(now_s)
        elif segment.run is not None:
            steps = max(1, segment.run.steps_begun(now_s - segment.start_s))
            if steps < segment.steps:
                segment.steps = steps
                segment.end_s = segment.start_s + segment.run.total_s(steps)

    def _idle_until(self, now_s: float) -> None:
        if now_s > self._boundary_s:
            self.joules.idle += self._watts * (now_s - self._boundary_s)
            self._boundary_s = now_s

    def _draw(self, watts: float) -> None:
        if watts != self._watts:
            self._on_watts(self._boundary_s, watts - self._watts)
            self._watts = watts

    def _plan(self) -> None:
        self._make_room()
        running = len(self._decoding)
        if self._prefilling or self._next_waiting() is not None:
            self._plan_mixed(running)
        elif running:
            run, watts = self._costs.decode(running, self._context)
            steps = min(self._next_end() - self._step, (self.kv_tokens - self._context) // running + 1)
            self._start(Segment(self._boundary_s, self._boundary_s + run.total_s(steps), watts, steps, run, 0.0))
        else:
            self._draw(self._costs.idle_w)

    def _plan_mixed(self, running: int) -> None:
        """Decodes first, then prefills under way, then new ones while their tokens fit; nobody overtakes."""
        context, decoding = self._context, running
        chunks: list[tuple[Seq, int]] = []
        for seq in self._prefilling:
            if seq.total - seq.computed == 1:  # the engine takes a last single token for a decode
                chunks.append((seq, 1))
                decoding += 1
                context += seq.total
        budget = max(0, self.limits.step_tokens - decoding)
        used = 0
        for seq in self._prefilling:
            left = seq.total - seq.computed
            if left > 1 and used < budget:
                tokens = min(left, budget - used)
                chunks.append((seq, tokens))
                used += tokens
        while used < budget and (new := self._next_waiting()) is not None:
            heapq.heappop(self._waiting)
            self._admit(new)
            tokens = min(new.total, budget - used)
            chunks.append((new, tokens))
            used += tokens
        step = self._costs.mixed(used, decoding, context)
        end_s = self._boundary_s + step.duration_s
        self._start(Segment(self._boundary_s, end_s, step.watts, 1, None, step.prefill_share, chunks))

    def _start(self, segment: Segment) -> None:
        self._segment = segment
        self._draw(segment.watts)

    def _next_waiting(self) -> Seq | None:
        """The head of the queue if a slot is free, the budget is not all decode, and its tokens fit."""
        waiting = self._waiting
        while waiting and waiting[0].state != WAITING:
            heapq.heappop(waiting)
        running = len(self._decoding) + len(self._prefilling)
        if not waiting or running >= self.limits.max_num_seqs or len(self._decoding) >= self.limits.step_tokens:
            return None
        head = waiting[0]
        return head if self._context + self._prefill_room + head.total <= self.kv_tokens else None

    def _next_end(self) -> int:
        ends = self._ends
        while ends[0][2].finish_at != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0]

    def _admit(self, seq: Seq) -> None:
        if seq.preemptions == 0:
            self.counters.prompt_tokens += seq.prompt
        seq.state = PREFILLING
        self._prefilling.append(seq)
        self._prefill_room += seq.total

    def _make_room(self) -> None:
        """Preempts the youngest until every decoding sequence can take one more token."""
        while (self._decoding or self._prefilling) and self._context + self._prefill_room > self.kv_tokens:
            youngest = max((*self._decoding, *self._prefilling), key=lambda seq: seq.order)
            self._leave(youngest)
            youngest.state = WAITING
            youngest.computed = 0
            youngest.preemptions += 1
            self.counters.preemptions += 1
            heapq.heappush(self._waiting, youngest)

    def _leave(self, seq: Seq) -> None:
        """Takes it out of the batch, its tokens counted up to here."""
        if seq.state == PREFILLING:
            self._prefilling.remove(seq)
            self._prefill_room -= seq.total
            return
        done = self._step - seq.from_step
        seq.generated += done
        seq.total += done
        seq.gaps_late += self._late - seq.from_late
        seq.last_s = self._boundary_s
        seq.finish_at = -1
        self._context -= seq.total
        self._members[seq.group] -= 1
        del self._decoding[seq]

    def _drop(self, seq: Seq) -> None:
        if seq.state in (PREFILLING, DECODING):
            self._leave(seq)
        seq.state = GONE

    def _commit(self, segment: Segment, firsts: list[Seq], finished: list[Seq]) -> None:
        self._segment = None
        self._boundary_s = segment.end_s
        spent_j = segment.watts * (segment.end_s - segment.start_s)
        self.joules.prefill += spent_j * segment.prefill_share
        self.joules.decode += spent_j * (1 - segment.prefill_share)
        steps = segment.steps
        self.counters.steps += steps
        if self._decoding:
            self._took_tokens(segment, steps)
        for seq, tokens in segment.chunks:
            seq.computed += tokens
            if seq.computed >= seq.total:
                self._prefilled(seq, firsts, finished)
        ends = self._ends
        while ends and ends[0][0] <= self._step:
            finish_at, _, seq = heapq.heappop(ends)
            if seq.finish_at == finish_at:
                self._leave(seq)
                self._finish(seq, finished)
        if self._leaving:
            for seq in self._leaving:
                self._drop(seq)
            self._leaving.clear()
        self._rest_if_empty()

    def _rest_if_empty(self) -> None:
        if not self._decoding and not self._prefilling and self._next_waiting() is None:
            self._draw(self._costs.idle_w)

    def _took_tokens(self, segment: Segment, steps: int) -> None:
        """Each decoding sequence has `steps` tokens more, each after a gap of one step."""
        decoding = len(self._decoding)
        self._step += steps
        self._context += decoding * steps
        self.counters.generation_tokens += decoding * steps
        if segment.run is None:
            duration_s = segment.end_s - segment.start_s
            self._gaps.add_run(duration_s, duration_s, 1, self._members)
            self._late += duration_s > self._tbt_limit_s
        else:
            run = segment.run
            self._gaps.add_run(run.first_s, run.last_s(steps), steps, self._members)
            self._late += run.later_than(self._tbt_limit_s, steps)

    def _prefilled(self, seq: Seq, firsts: list[Seq], finished: list[Seq]) -> None:
        """Its prompt (or, after a preemption, all it had) is computed, which yields one token."""
        self._prefilling.remove(seq)
        self._prefill_room -= seq.total
        seq.generated += 1
        seq.total += 1
        self.counters.generation_tokens += 1
        now_s = self._boundary_s
        if seq.first_s is None or seq.adopted:
            firsts.append(seq)
        seq.adopted = False
        if seq.first_s is None:
            seq.first_s = now_s
        else:
            gap_s = now_s - seq.last_s
            self._gaps.add(gap_s, seq.group)
            seq.gaps_late += gap_s > self._tbt_limit_s
        if seq.generated >= seq.end:
            self._finish(seq, finished)
            return
        seq.state = DECODING
        seq.from_step, seq.from_late = self._step, self._late
        seq.finish_at = self._step + seq.end - seq.generated
        heapq.heappush(self._ends, (seq.finish_at, seq.order, seq))
        self._decoding[seq] = None
        self._members[seq.group] += 1
        self._context += seq.total

    def _finish(self, seq: Seq, finished: list[Seq]) -> None:
        seq.state = GONE
        seq.last_s = seq.finished_s = self._boundary_s
        finished.append(seq)


def _steps_out(segment: Segment | None, now_s: float) -> int:
    """Whole decode steps of the run under way that have ended by `now_s`."""
    if segment is None or segment.run is None or now_s <= segment.start_s:
        return 0
    begun = min(segment.steps, segment.run.steps_begun(now_s - segment.start_s))
    return begun - (segment.start_s + segment.run.total_s(begun) > now_s + 1e-9)
