"""The target of `profile measure` under simulated time: the emulated engine's batching, its loads and its meter.

Owns a lean engine that decides step for step what simulator/engine.py decides (a test holds the two together) but keeps
no text, and runs the decode steps of an unchanged batch as one. Hours of an instance pass in seconds.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace

from pools.measure import About, Probe, Rule, Sample, Seen, Window, idle_window
from pools.measure_window import Watch, arrivals
from pools.meters import Reading
from profiles.engine_model import EngineModel
from simulator.engine import EngineLimits

VERSION = "0.32.0+emulated"
TAIL_S = 60.0  # how long the first tokens of what arrived in a window are waited for


@dataclass(slots=True, eq=False)
class Seq:
    """A sequence. Only the engine writes to it."""

    order: int
    arrived_s: float
    prompt: int
    output: int
    total: int
    computed: int = 0
    room: int = 0
    generated: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    finished_s: float | None = None

    def __lt__(self, other: Seq) -> bool:
        return self.order < other.order


@dataclass(slots=True)
class Heard:
    """What came out since it was last emptied: runs of steps (end of the first, gap of the first, growth of the gap,
    steps, tokens a step), single gaps after a preemption, first tokens, and finished sequences."""

    runs: list[tuple[float, float, float, int, int]] = field(default_factory=list)
    singles: list[tuple[float, float]] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    finished: list[Seq] = field(default_factory=list)

    def gaps(self, opened_s: float, closed_s: float) -> list[tuple[float, int]]:
        """Gaps whose token came inside."""
        found = [(gap_s, 1) for end_s, gap_s in self.singles if opened_s < end_s <= closed_s]
        for end_s, gap_s, growth_s, steps, tokens in self.runs:
            for _ in range(steps):
                if opened_s < end_s <= closed_s:
                    found.append((gap_s, tokens))
                gap_s += growth_s
                end_s += gap_s
        return found


class LeanEngine:
    """Decodes first, then prefills under way, then new ones in order of arrival; preempts the youngest for KV room."""

    def __init__(self, model: EngineModel, tp: int, clock_mhz: int, limits: EngineLimits) -> None:
        self.model = model
        self.tp = tp
        self.clock_mhz = clock_mhz
        self.limits = limits
        self.kv_tokens = model.kv_tokens(tp)
        self.kv_used = 0
        self.running: list[Seq] = []
        self.waiting: list[Seq] = []
        self.heard = Heard()
        self.now_s = 0.0  # the end of the last step
        self._joules = 0.0
        self._step_w = 0.0
        self._idle_w = model.watts(tp, clock_mhz, 0)
        self._orders = 0

    def add(self, arrived_s: float, prompt: int, output: int) -> Seq:
        if prompt + output > min(self.limits.max_model_len, self.kv_tokens):
            raise ValueError(f"{prompt} + {output} tokens are more than this instance's context")
        self._orders += 1
        seq = Seq(self._orders, arrived_s, prompt, output, prompt)
        heapq.heappush(self.waiting, seq)
        return seq

    def joules(self, at_s: float) -> float:
        """`at_s` lies in the last step, or in the idle time after it."""
        watts = self._step_w if at_s < self.now_s else self._idle_w
        return self._joules + watts * (at_s - self.now_s)

    def run_until(self, until_s: float) -> None:
        """Every step that begins before `until_s`; the last may end after it."""
        while self.now_s < until_s:
            if not self.running and not self.waiting:
                self._joules += self._idle_w * (until_s - self.now_s)
                self.now_s = until_s
            elif self._only_decodes():
                self._decode(until_s)
            else:
                self._mixed()

    def _only_decodes(self) -> bool:
        """Nobody prefills and nobody can be admitted until somebody finishes."""
        count = len(self.running)
        # One token of a prompt may be left; the step that computes it gives the first token, which is no gap.
        if not count or any(one.total - one.computed != 1 or one.first_s is None for one in self.running):
            return False
        if self.kv_used + count > self.kv_tokens:
            return False
        return not self.waiting or not self._admissible(self.kv_used + count, self.limits.step_tokens - count)

    def _admissible(self, kv_used: int, budget: int) -> bool:
        full = len(self.running) >= self.limits.max_num_seqs
        return budget > 0 and not full and kv_used + self.waiting[0].total <= self.kv_tokens

    def _decode(self, until_s: float) -> None:
        count = len(self.running)
        context = sum(one.total for one in self.running)
        first_s = self.model.decode_step_s(self.tp, self.clock_mhz, count, context)
        growth_s = self.model.decode_step_s(self.tp, self.clock_mhz, count, context + count) - first_s
        most = min(one.output - one.generated for one in self.running)
        most = min(most, (self.kv_tokens - self.kv_used) // count)
        steps = steps_begun(first_s, growth_s, until_s - self.now_s, most)
        total_s = steps * first_s + growth_s * (steps * (steps - 1) / 2)
        self.heard.runs.append((self.now_s + first_s, first_s, growth_s, steps, count))
        self._settle(self.model.watts(self.tp, self.clock_mhz, count, 0), total_s)
        self.kv_used += steps * count
        for one in self.running:
            one.total += steps
            one.computed += steps
            one.room += steps
            one.generated += steps
            one.last_s = self.now_s
        self._leave()

    def _mixed(self) -> None:
        self._make_room()
        batch: list[tuple[Seq, int]] = []
        prefilling: list[Seq] = []
        context = 0
        for one in self.running:
            if one.total - one.computed == 1:
                batch.append((one, 1))
                context += one.total
                self.kv_used += one.total - one.room
                one.room = one.total
            else:
                prefilling.append(one)
        decoding = len(batch)
        budget = max(0, self.limits.step_tokens - decoding)
        prefill = 0
        for one in prefilling:
            tokens = min(one.total - one.computed, budget - prefill)
            if tokens > 0:
                batch.append((one, tokens))
                prefill += tokens
        while self.waiting and self._admissible(self.kv_used, budget - prefill):
            new = heapq.heappop(self.waiting)
            new.room = new.total
            self.kv_used += new.room
            self.running.append(new)
            tokens = min(new.total, budget - prefill)
            batch.append((new, tokens))
            prefill += tokens
        duration_s = self.model.step_s(self.tp, self.clock_mhz, prefill, decoding, context)
        self._settle(self.model.watts(self.tp, self.clock_mhz, decoding, prefill), duration_s)
        gaps = sum(1 for one, _ in batch[:decoding] if one.first_s is not None)
        if gaps:
            self.heard.runs.append((self.now_s, duration_s, 0.0, 1, gaps))
        for index, (one, tokens) in enumerate(batch):
            one.computed += tokens
            if one.computed >= one.total:
                self._emit(one, index < decoding)
        self._leave()

    def _emit(self, one: Seq, decoded: bool) -> None:
        if one.first_s is None:
            one.first_s = self.now_s
            self.heard.firsts.append(self.now_s)
        elif not decoded:
            self.heard.singles.append((self.now_s, self.now_s - one.last_s))
        one.generated += 1
        one.total += 1
        one.last_s = self.now_s

    def _make_room(self) -> None:
        while self.running:
            growth = sum(1 for one in self.running if one.total > one.room)
            if self.kv_used + growth <= self.kv_tokens:
                return
            youngest = max(self.running)
            self.running.remove(youngest)
            self.kv_used -= youngest.room
            youngest.room = youngest.computed = 0
            heapq.heappush(self.waiting, youngest)

    def _settle(self, watts: float, duration_s: float) -> None:
        self._step_w = watts
        self._joules += watts * duration_s
        self.now_s += duration_s

    def _leave(self) -> None:
        done = [one for one in self.running if one.generated >= one.output]
        if not done:
            return
        for one in done:
            one.finished_s = self.now_s
            self.kv_used -= one.room
        self.heard.finished += done
        self.running = [one for one in self.running if one.finished_s is None]


def steps_begun(first_s: float, growth_s: float, elapsed_s: float, most: int) -> int:
    """How many steps begin in less than `elapsed_s`, at most `most`; step i lasts `first_s + i * growth_s`."""
    half = growth_s / 2
    linear = first_s - half
    steps = math.ceil(2 * elapsed_s / (linear + math.sqrt(linear * linear + 4 * half * elapsed_s)))
    steps = max(1, min(steps, most))
    while steps < most and steps * linear + half * steps * steps < elapsed_s:
        steps += 1
    while steps > 1 and (steps - 1) * linear + half * (steps - 1) * (steps - 1) >= elapsed_s:
        steps -= 1
    return steps


class SimulatedTarget:
    """An instance that exists only in simulated time. A new engine for each probe: nothing of the last one is left."""

    def __init__(self, model: EngineModel, limits: EngineLimits) -> None:
        self._model = model
        self._limits = limits
        self._tp = 0
        self._clock_mhz = 0
        self.about = About(
            gpu=model.gpu,
            model=model.model,
            engine="emulated-vllm",
            engine_version=VERSION,
            energy_counter="emulated",
            origin="emulated",
            source=f"engine model {model.model} on {model.gpu}",
            limits={
                "max_num_seqs": limits.max_num_seqs,
                "max_num_batched_tokens": limits.step_tokens,
                "max_model_len": limits.max_model_len,
            },
        )

    def at(self, tp: int, clock_mhz: int) -> None:
        self._tp, self._clock_mhz = tp, clock_mhz

    async def configure(self, tp: int, clock_mhz: int) -> float:
        self._model.point(tp)
        took_s = self._model.start_s if tp != self._tp else 0.0
        self.at(tp, clock_mhz)
        return took_s

    async def run(self, probe: Probe, rule: Rule) -> Window:
        return self.window(probe, rule)

    def window(self, probe: Probe, rule: Rule) -> Window:
        engine = LeanEngine(self._model, self._tp, self._clock_mhz, self._limits)
        if not probe.rps:
            engine.run_until(rule.idle_s)
            return idle_window(probe, Reading(0.0, 0.0), Reading(engine.joules(rule.idle_s), rule.idle_s), rule.idle_s)
        watch = Watch(probe, rule, 0.0)
        coming = arrivals(probe.rps, probe.arrival_seed)
        next_s = next(coming)
        lengths = probe.lengths
        seqs: list[Seq] = []
        told = 0
        sample_s = rule.sample_s
        opened = closed = Reading(0.0, 0.0)
        while watch.closed_s is None or _owed(seqs, opened.at_s, closed.at_s, sample_s, watch.saturated):
            while next_s <= sample_s:
                engine.run_until(next_s)
                seqs.append(engine.add(next_s, lengths.input_tokens, lengths.output_tokens))
                next_s = next(coming)
            engine.run_until(sample_s)
            for one in engine.heard.finished[told:]:
                watch.finished(one.arrived_s, one.finished_s or 0.0)
            told = len(engine.heard.finished)
            if watch.closed_s is None:
                was_open = watch.opened_s is not None
                share = engine.kv_used / engine.kv_tokens
                watch.sample(Sample(sample_s, len(engine.running), len(engine.waiting), share))
                reading = Reading(engine.joules(sample_s), sample_s)
                opened = opened if was_open or watch.opened_s is None else reading
                closed = reading
            sample_s += rule.sample_s
        window = _window(probe, watch, opened, closed, engine.heard, seqs, sample_s)
        front_s = self._model.front_s
        return replace(window, requests=tuple(_later(one, front_s) for one in window.requests)) if front_s else window


def _later(seen: Seen, front_s: float) -> Seen:
    return seen if seen.first_s is None else Seen(seen.arrived_s, seen.first_s + front_s)


def _owed(seqs: list[Seq], opened_s: float, closed_s: float, now_s: float, saturated: bool) -> bool:
    """Whether a request that arrived in the window still waits for its first token."""
    if saturated or now_s > closed_s + TAIL_S:
        return False
    return any(one.first_s is None for one in seqs if opened_s <= one.arrived_s <= closed_s)


def _window(
    probe: Probe, watch: Watch, opened: Reading, closed: Reading, heard: Heard, seqs: list[Seq], took_s: float
) -> Window:
    gaps = heard.gaps(opened.at_s, closed.at_s)
    firsts = sum(1 for at_s in heard.firsts if opened.at_s < at_s <= closed.at_s)
    output_tokens = firsts + sum(count for _, count in gaps)
    watch.judge_output(output_tokens, probe.lengths.output_tokens)
    inside = watch.inside()
    return Window(
        probe=probe,
        opened=opened,
        closed=closed,
        requests=tuple(Seen(s.arrived_s, s.first_s) for s in seqs if opened.at_s <= s.arrived_s <= closed.at_s),
        gaps=tuple(gaps),
        first_tokens=firsts,
        output_tokens=output_tokens,
        waiting=sum(s.waiting for s in inside) / max(1, len(inside)),
        kv_share=sum(s.kv_share for s in inside) / max(1, len(inside)),
        saturated=watch.saturated,
        reason=watch.reason,
        instance_s=took_s,
    )
