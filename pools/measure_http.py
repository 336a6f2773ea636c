"""The live target: an OpenAI-compatible server (the emulated engine, vLLM on a CPU or a GPU) under open-loop load.

Owns sending the load, polling /metrics and reading the meter at the window's edges. Starts and stops no server, and
changes no clock but through the knob it is given.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from core.clock import Clock
from core.errors import JoulegateError, UpstreamFailed
from pools.connection import Wires
from pools.load_client import Answer, ask, body_of
from pools.measure import About, ClockKnob, Probe, Rule, Sample, Seen, Window, idle_window
from pools.measure_thermal import Thermal
from pools.measure_window import Watch, arrivals
from pools.meters import EnergyMeter, Reading, spent

TIMEOUT_S = 30.0
TAIL_S = 60.0
DRAIN_S = 60.0
GAUGE = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{[^}]*\} ([0-9.eE+-]+)", re.M
)


class Server:
    """The control routes of one server."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires

    async def call(self, method: bytes, path: bytes, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        data = json.dumps(body).encode() if body is not None else b""
        headers = [(b"content-type", b"application/json")] if data else []
        async with await self._wires.send(method, path, headers, data) as exchange:
            head = await exchange.head(TIMEOUT_S)
            return head.status, await exchange.body(TIMEOUT_S, 16 * 1024 * 1024)

    async def json(self, path: bytes) -> dict[str, Any]:
        status, body = await self.call(b"GET", path)
        if status != 200:
            raise UpstreamFailed(f"{path.decode()} answered {status}")
        answer: dict[str, Any] = json.loads(body)
        return answer

    async def emulated_state(self) -> dict[str, Any]:
        return await self.json(b"/emulated/state")

    async def is_emulated(self) -> bool:
        return (await self.call(b"GET", b"/emulated/state"))[0] == 200

    async def gauges(self) -> tuple[int, int, float]:
        """Running, waiting and the share of KV room in use; engines of one server are added up."""
        status, page = await self.call(b"GET", b"/metrics")
        values: dict[bytes, list[float]] = {}
        for name, value in GAUGE.findall(page):
            values.setdefault(name, []).append(float(value))
        if status != 200 or len(values) < 3:
            raise UpstreamFailed("/metrics does not name running, waiting and kv_cache_usage_perc as vLLM does")
        share = values[b"kv_cache_usage_perc"]
        running, waiting = (int(sum(values[name])) for name in (b"num_requests_running", b"num_requests_waiting"))
        return running, waiting, sum(share) / len(share)


class EmulatedKnob:
    """The emulated engine's clock."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def set_clock(self, clock_mhz: int) -> None:
        status, body = await self._server.call(b"POST", b"/emulated/clock", {"clock_mhz": clock_mhz})
        if status != 200:
            raise UpstreamFailed(f"/emulated/clock answered {status}: {body[:200].decode(errors='replace')}")


@dataclass(frozen=True, slots=True)
class Instance:
    """The instance as it was found: it runs at one TP, and at `clock_mhz` unless there is a knob (0 = unlocked)."""

    model: str
    tp: int
    clock_mhz: int


class HttpTarget:
    def __init__(
        self,
        wires: Wires,
        instance: Instance,
        about: About,
        meter: EnergyMeter,
        clock: Clock,
        *,
        knob: ClockKnob | None = None,
        thermal: Thermal | None = None,
    ) -> None:
        self.about = about
        self._wires = wires
        self._server = Server(wires)
        self._instance = instance
        self._meter = meter
        self._clock = clock
        self._knob = knob
        self._thermal = thermal
        self._clock_mhz = instance.clock_mhz

    async def configure(self, tp: int, clock_mhz: int) -> float:
        if tp != self._instance.tp:
            raise ValueError(f"this instance runs at TP{self._instance.tp}, not TP{tp}: start one per TP and merge")
        if clock_mhz == self._clock_mhz:
            return 0.0
        if self._knob is None:
            raise ValueError(f"nothing here may set a clock of {clock_mhz} MHz: measure at the default one")
        began_s = self._clock.now_s()
        await self._knob.set_clock(clock_mhz)
        self._clock_mhz = clock_mhz
        return self._clock.now_s() - began_s

    async def run(self, probe: Probe, rule: Rule) -> Window:
        began_s = self._clock.now_s()
        if not probe.rps:
            opened = await self._meter.read()
            await self._clock.sleep(rule.idle_s)
            closed = await self._meter.read()
            spent(opened, closed)
            return idle_window(probe, opened, closed, self._clock.now_s() - began_s)
        watch = Watch(probe, rule, began_s)
        load = _Load(self._wires, self._clock, self._instance.model, probe)
        sending = asyncio.create_task(load.send(began_s))
        try:
            opened, closed = await self._watch(watch, rule, load)
            while not watch.saturated and load.owed(watch) and self._clock.now_s() < (watch.closed_s or 0.0) + TAIL_S:
                await self._clock.sleep(rule.sample_s)
        finally:
            sending.cancel()
            await load.end()
        await self._drained(rule)
        load.check()
        return _window(probe, watch, opened, closed, load.answers, self._clock.now_s() - began_s)

    async def _watch(self, watch: Watch, rule: Rule, load: _Load) -> tuple[Reading, Reading]:
        opened = closed = Reading(0.0, 0.0)
        due_s = self._clock.now_s()
        while watch.closed_s is None:
            due_s += rule.sample_s
            await self._clock.sleep_until(due_s)
            load.check()
            for answer in load.just_finished():
                watch.finished(answer.arrived_s, answer.finished_s or 0.0)
            running, waiting, share = await self._server.gauges()
            waiting = max(waiting, load.in_flight - running)  # a queue may also stand in front of the engine
            if self._thermal is not None:
                self._thermal.sample(self._clock.now_s())
            was_open = watch.opened_s is not None
            hold = self._thermal is not None and not self._thermal.settled
            watch.sample(Sample(self._clock.now_s(), running, waiting, share), hold)
            if not was_open and watch.opened_s is not None:
                opened = await self._meter.read()
                watch.opened_s = self._clock.now_s()
            if watch.closed_s is not None:
                closed = await self._meter.read()
                watch.closed_s = self._clock.now_s()
        spent(opened, closed)
        return opened, closed

    async def _drained(self, rule: Rule) -> None:
        """The next window must not begin with this one's work."""
        until_s = self._clock.now_s() + DRAIN_S
        while self._clock.now_s() < until_s:
            running, waiting, _ = await self._server.gauges()
            if running + waiting == 0:
                return
            await self._clock.sleep(rule.sample_s)
        raise UpstreamFailed(f"the instance still works {DRAIN_S:g} s after its load was cancelled: who else uses it?")


class _Load:
    """The requests of one probe. Owns their tasks."""

    def __init__(self, wires: Wires, clock: Clock, model: str, probe: Probe) -> None:
        self._wires = wires
        self._clock = clock
        self._model = model
        self._probe = probe
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None
        self._told = 0
        self._finished: list[Answer] = []
        self.answers: list[Answer] = []

    async def send(self, began_s: float) -> None:
        lengths = self._probe.lengths
        for number, at_s in enumerate(arrivals(self._probe.rps, self._probe.arrival_seed)):
            body = body_of(self._model, lengths, self._probe.arrival_seed + number)
            await self._clock.sleep_until(began_s + at_s)
            answer = Answer(self._clock.now_s())
            self.answers.append(answer)
            task = asyncio.create_task(ask(self._wires, self._clock, body, answer, lengths.output_tokens))
            self._tasks.add(task)
            task.add_done_callback(partial(self._done, answer))

    def _done(self, answer: Answer, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._failed = self._failed or error
        else:
            self._finished.append(answer)

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    def just_finished(self) -> list[Answer]:
        new = self._finished[self._told :]
        self._told = len(self._finished)
        return new

    def owed(self, watch: Watch) -> bool:
        low, high = watch.opened_s or 0.0, watch.closed_s or 0.0
        return any(a.first_s is None for a in self.answers if low <= a.arrived_s <= high)

    def check(self) -> None:
        """A failed request voids the window: its load was not what was asked for."""
        if self._failed is not None:
            if isinstance(self._failed, JoulegateError):
                raise self._failed
            raise UpstreamFailed(f"a request failed: {self._failed!r}")

    async def end(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _window(
    probe: Probe, watch: Watch, opened: Reading, closed: Reading, answers: list[Answer], took_s: float
) -> Window:
    low, high = watch.opened_s or 0.0, watch.closed_s or 0.0
    gaps = tuple((gap_s, count) for a in answers for at_s, gap_s, count in a.gaps if low < at_s <= high)
    firsts = [a.first_tokens for a in answers if a.first_s is not None and low < a.first_s <= high]
    output_tokens = sum(firsts) + sum(count for _, count in gaps)
    watch.judge_output(output_tokens, probe.lengths.output_tokens)
    inside = watch.inside()
    # Times of arrival and first token stay on the client's clock; only their difference counts.
    requests = tuple(Seen(a.arrived_s, a.first_s or high) for a in answers if low <= a.arrived_s <= high)
    return Window(
        probe=probe,
        opened=opened,
        closed=closed,
        requests=requests,
        gaps=gaps,
        first_tokens=len(firsts),
        output_tokens=output_tokens,
        waiting=sum(s.waiting for s in inside) / max(1, len(inside)),
        kv_share=sum(s.kv_share for s in inside) / max(1, len(inside)),
        saturated=watch.saturated,
        reason=watch.reason,
        instance_s=took_s,
    )
