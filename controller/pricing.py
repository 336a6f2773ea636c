"""From an engine model to columns: what one instance carries of a pool's mix within the SLO, and what it draws.

Continuous batching in the steady state. With B sequences decoding, a step without prefill lasts D(B); prefill adds
c seconds a token to steps. Every sequence gets one token a step, so lambda (O - 1) = B (1 - lambda I c) / D(B).
Around its mean B is a birth-death chain: a processor-sharing queue, whose distribution does not depend on how lengths
are distributed (Kelly, Reversibility and Stochastic Networks, 1979). The wait for prefill is that of M/G/k with an
exponential tail (Allen-Cunneen, in Whitt, Approximations for the GI/G/m queue, 1993): k instances of a pool behind one
router. Answers are modelled; docs/optimiser.md says how far they are from the simulator. Reads no profile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controller.loads import Load, Mix, rate
from controller.problem import Column, Kind, Taken
from profiles.engine_model import EngineModel

LEVELS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
MOST_SLOTS = 256  # vLLM's default of sequences at once
MISSED = 0.0025  # share of requests that may wait too long for a slot, and as many for prefill: half of 1 % in reserve
Z = 2.807  # standard deviations beyond which lies that share
MOST_USED = 0.85  # share of prefill time in use: sixteen instances keep 99.9 % there, at 0.93 no more (simulated)
HALVINGS = 16
MOST_TOGETHER = 512  # more share a queue no better


@dataclass(frozen=True, slots=True)
class Batch:
    """Who decodes beside each other: mean, standard deviation; their step without prefill and mean watts."""

    running: float
    deviation: float
    step_s: float
    decode_w: float


@dataclass(frozen=True, slots=True)
class Steady:
    """One instance at `rps`, as expected. `in_flight`: requests that decode or are being prefilled."""

    rps: float
    watts: float
    in_flight: float


class Cell:
    """One (TP, clock) under one mix, for instances that take `step_tokens` a step. Tables over B, made once."""

    def __init__(
        self, model: EngineModel, tp: int, clock_mhz: int, mix: Mix, tbt_s: float, step_tokens: int, slots: int
    ) -> None:
        self.tp, self.clock_mhz, self.tbt_s, self.step_tokens = tp, clock_mhz, tbt_s, step_tokens
        self._model = model
        self._mix = tuple(load.completed() for load in mix)
        whole = rate(mix)
        self._shares = [load.rps / whole for load in self._mix]
        self.input_tokens = sum(s * load.input_tokens for s, load in zip(self._shares, self._mix, strict=True))
        self.decoded = max(
            1e-9, sum(s * (load.output_tokens - 1) for s, load in zip(self._shares, self._mix, strict=True))
        )
        tokens = [s * load.output_tokens for s, load in zip(self._shares, self._mix, strict=True)]
        self.context = sum(t * load.context_tokens for t, load in zip(tokens, self._mix, strict=True)) / sum(tokens)
        ends = [t * (load.context_tokens + load.output_tokens / 2) for t, load in zip(tokens, self._mix, strict=True)]
        self.reserved = sum(ends) / sum(tokens)  # KV tokens that the router books for a sequence: what it ends with
        self.slots = self._most(self.context, min(slots, step_tokens - 1))
        self.booked = self._most(self.reserved, self.slots)
        most = 2 * self.slots + 32
        asked = [*range(1, 16), *range(16, most, 8), most]  # straight enough in between
        decode_s = [model.decode_step_s(tp, clock_mhz, b, round(b * self.context)) for b in asked]
        self._counts = np.arange(1, most + 1, dtype=np.float64)
        self._decode_s = np.interp(self._counts, asked, decode_s)
        self._decode_w = np.interp(self._counts, asked, [model.watts(tp, clock_mhz, b) for b in asked])
        self._idle_w = model.watts(tp, clock_mhz, 0)
        self._leaving = np.cumsum(np.log(self._counts / (self.decoded * self._decode_s)))
        self._token_s = (model.prefill_s(tp, clock_mhz, 8192) - model.prefill_s(tp, clock_mhz, 4096)) / 4096

    def _most(self, context_each: float, most: int) -> int:
        """Sequences of so many KV tokens beside which a step that takes all the prompt tokens it can is still within
        the TBT limit, and which fit; 0 if none. What runs fits by what it holds, what is planned by what is booked."""
        model, longest = self._model, max(load.longest_tokens for load in self._mix)
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            chunk, context = round(min(self.step_tokens - middle, longest)), round(middle * context_each)
            step_s = model.step_s(self.tp, self.clock_mhz, chunk, middle, context)
            fits = step_s <= self.tbt_s and max(context, longest) <= model.kv_tokens(self.tp)
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _room(self, beside: int) -> int:
        """Prompt tokens that a step takes beside those that decode."""
        return max(1, self.step_tokens - beside)

    def batch(self, rps: float) -> Batch | None:
        """None: prefill alone takes more time than there is, or the batch never stops growing."""
        busy = rps * self.input_tokens * self._token_s
        if busy >= 1:
            return None
        logs = self._counts * (math.log(rps) - math.log1p(-busy)) - self._leaving
        most = max(0.0, float(logs.max()))
        weights = np.exp(logs - most)
        if weights[-1] > 1e-3:
            return None
        none = math.exp(-most)
        whole = none + float(weights.sum())
        mean = float(weights @ self._counts) / whole
        deviation = math.sqrt(max(0.0, float(weights @ self._counts**2) / whole - mean * mean))
        decode_w = (none * self._idle_w + float(weights @ self._decode_w)) / whole
        return Batch(mean, deviation, float(np.interp(mean, self._counts, self._decode_s)), decode_w)

    def at(self, rps: float) -> Steady | None:
        """One instance at this rate; None if it never gets to a steady state."""
        batch = self.batch(rps)
        if batch is None:
            return None
        mixed, mixed_w = self._mixed(rps, batch.running)
        watts = mixed * mixed_w + (1 - mixed) * batch.decode_w
        return Steady(rps, watts, batch.running + rps * self._service_s(batch.running))

    def _mixed(self, rps: float, running: float) -> tuple[float, float]:
        """Share of time in steps that carry prefill, and the watts of those. Full chunks fill a step; last ones share
        it with whatever else arrived during the step before."""
        beside = round(running)
        room = self._room(beside)
        full_s, full_w = self._step(room, beside)
        share = joules = 0.0
        for part, load in zip(self._shares, self._mix, strict=True):
            full, rest = divmod(load.input_tokens, room)
            rest_s, rest_w = self._step(round(rest), beside)
            met = rps * rest_s
            alone = -math.expm1(-met) / met if met > 0 else 1.0
            rest_share = rps * part * (rest_s * alone + rest * self._token_s * (1 - alone))
            full_share = rps * part * full * full_s
            share += full_share + rest_share
            joules += full_share * full_w + rest_share * rest_w
        return min(1.0, share), joules / share if share > 0 else 0.0

    def _step(self, tokens: int, running: int) -> tuple[float, float]:
        model, context = self._model, round(running * self.context)
        return (
            model.step_s(self.tp, self.clock_mhz, tokens, running, context),
            model.watts(self.tp, self.clock_mhz, running, tokens),
        )

    def _service_s(self, running: float) -> float:
        """How long a prompt keeps the prefill of an instance, on average: its share of full steps, and half a step
        that its last chunk does not fill."""
        beside = round(running)
        room = self._room(beside)
        full_s, empty_s = self._step(room, beside)[0], self._step(0, beside)[0]
        return full_s / room * self.input_tokens + empty_s / 2

    def holds(self, rps: float, instances: int) -> bool:
        """Whether `instances` of these, with `rps` each, keep the SLO: slots are free when they are needed, and the
        first token comes in time, in all classes."""
        batch = self.batch(rps)
        if batch is None:
            return False
        used = rps * self._service_s(batch.running)
        if batch.running + used + Z * batch.deviation / math.sqrt(instances) > self.booked:  # prefill takes slots too
            return False
        if used >= MOST_USED:
            return False
        full_s = self._step(self._room(round(batch.running)), round(batch.running))[0]
        shut, left_s = self._shut(rps, batch)
        waits, left_s = _erlang_c(instances, instances * shut), left_s / instances
        own_s = used * full_s  # the step under way, where it carries prefill
        return all(
            self._wait_s(load, waits, left_s, used) + own_s + self._own_s(load, batch) <= load.ttft_s
            for load in self._mix
        )

    def _shut(self, rps: float, batch: Batch) -> tuple[float, float]:
        """Share of time in which an instance takes no further prompt, for more is left of one than a step holds, and
        how long that lasts on from any moment of it, in seconds. A class's prompts are taken for a + Exp(b), which has
        their mean and their mean square."""
        beside = round(batch.running)
        room = self._room(beside)
        over = squares = 0.0
        for share, load in zip(self._shares, self._mix, strict=True):
            spread = max(1.0, math.sqrt(max(0.0, load.input_sq - load.input_tokens**2)))
            beyond = room - (load.input_tokens - spread)
            if beyond > 0:
                part = share * math.exp(-beyond / spread)
                over, squares = over + part * spread, squares + 2 * part * spread**2
            else:
                over += share * (load.input_tokens - room)
                squares += share * (spread**2 + (load.input_tokens - room) ** 2)
        token_s = self._step(room, beside)[0] / room
        return rps * over * token_s, squares / (2 * over) * token_s if over > 0 else 0.0

    def _wait_s(self, load: Load, waits: float, left_s: float, used: float) -> float:
        """What all but MISSED of a class wait at most. Deadlines go before: those with a looser one are only in the
        way while they are under way (Cobham, Operations Research 2, 1954)."""
        if waits <= MISSED:
            return 0.0
        tokens = [(one.ttft_s, s * one.input_tokens) for s, one in zip(self._shares, self._mix, strict=True)]
        before = used * sum(t for ttft_s, t in tokens if ttft_s < load.ttft_s) / self.input_tokens
        until = used * sum(t for ttft_s, t in tokens if ttft_s <= load.ttft_s) / self.input_tokens
        return left_s / ((1 - before) * (1 - until)) * math.log(waits / MISSED)

    def _own_s(self, load: Load, batch: Batch) -> float:
        """The step under way, then the chunks of a long prompt of its class."""
        beside = round(batch.running)
        room = self._room(beside)
        full, rest = divmod(round(load.longest_tokens), room)
        return batch.step_s + full * self._step(room, beside)[0] + (self._step(rest, beside)[0] if rest else 0.0)

    def capacity(self, instances: int) -> float:
        """Largest rate of one of `instances`, in requests/s of this mix; 0 if even the smallest breaks a promise."""
        if self.booked < 1:
            return 0.0
        low, high = 0.0, 1 / (self.input_tokens * self._token_s)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.holds(middle, instances) else (low, middle)
        return low if low > high * 1e-3 else 0.0

    @property
    def peak_w(self) -> float:
        return max(self._step(self._room(b), b)[1] for b in (1, self.slots))


def _erlang_c(servers: int, load: float) -> float:
    """Probability that an M/M/k queue makes one wait, from Erlang B's recursion."""
    if load >= servers:
        return 1.0
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def sequence_w(model: EngineModel) -> float:
    """What eta counts a request in flight as: its share of the watts of the largest instance when that is full."""
    tp = max(model.points)
    return model.watts(tp, max(model.clocks_mhz), MOST_SLOTS) / MOST_SLOTS


def capacity_for(cell: Cell, demand_rps: float) -> tuple[float, int]:
    """Capacity of one instance among the fewest that carry the demand together, and how many those are. What many
    carry each is no price for a few: four may hold a third of what each of sixteen holds."""
    if cell.booked < 1:
        return 0.0, 1
    fewest, most = 0, 1
    while most < MOST_TOGETHER and not cell.holds(demand_rps / most, most):
        fewest, most = most, 2 * most
    while most - fewest > 1:
        middle = (fewest + most) // 2
        fewest, most = (fewest, middle) if cell.holds(demand_rps / middle, middle) else (middle, most)
    return cell.capacity(most), most


def columns_of(
    service: str, pools: Sequence[tuple[str, Mix]], model: EngineModel, tbt_s: float, step_tokens: Mapping[int, int],
    *, tps: Sequence[int] | None = None, levels: Sequence[float] = LEVELS, slots: int = MOST_SLOTS,
) -> tuple[Column, ...]:  # fmt: skip
    """Every feasible way to run one instance for each pool with load, pools in their order. A mix's rates say how many
    instances share its queue; `step_tokens` is each TP's --max-num-batched-tokens."""
    found: list[Column] = []
    for tp in tps or sorted(model.points):
        for clock_mhz in model.clocks_mhz:
            able: list[tuple[str, float, Cell]] = []
            for pool, mix in pools:
                if rate(mix) <= 0:
                    continue
                cell = Cell(model, tp, clock_mhz, mix, tbt_s, step_tokens[tp], slots)
                capacity, _ = capacity_for(cell, rate(mix))
                if capacity <= 0:
                    continue
                found += _levels(cell, Kind(service, pool, model.gpu, tp), capacity, able, levels)
                able.append((pool, capacity, cell))
    return tuple(found)


def _levels(
    cell: Cell, kind: Kind, capacity: float, able: Sequence[tuple[str, float, Cell]], levels: Sequence[float]
) -> list[Column]:
    columns = []
    for level in levels:
        steady = _held(cell, capacity * level)
        takes = tuple(Taken(pool, rps * level, _held(other, rps * level).watts) for pool, rps, other in able)
        found = steady.rps, steady.watts, cell.peak_w, steady.in_flight, takes
        columns.append(Column(kind, cell.clock_mhz, level, cell.slots, *found))
    return columns


def _held(cell: Cell, rps: float) -> Steady:
    steady = cell.at(rps)
    assert steady is not None, "what holds its capacity holds less"
    return steady
