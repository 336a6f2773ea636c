"""One simulated instance: the router's books of it, its engine, and its energy by cause. Owns its states' meaning in
joules; who gets a request is the router's, when it starts and stops is the cluster's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pools.instance import Instance
from simulator.des_engine import NEVER_S, DesEngine
from simulator.sequence import Seq
from simulator.world import World

OnSeqs = Callable[["Member", list[Seq], list[Seq]], None]  # (who, with their first token, finished)


@dataclass(frozen=True, slots=True)
class EnergyOfInstance:
    """Joules from its start to its end, by cause. `gpu_s`: GPU-seconds held."""

    id: str
    pool: str
    tp: int
    prefill_j: float
    decode_j: float
    idle_j: float
    switching_j: float
    gpu_s: float

    @property
    def total_j(self) -> float:
        return self.prefill_j + self.decode_j + self.idle_j + self.switching_j


class Member:
    """STARTING has no engine yet and, once its GPUs are there, draws loaded idle. DRAINING with nothing to run is
    switching. `engine` is set when it becomes READY and taken away when it ends."""

    def __init__(
        self, instance: Instance, world: World, on_seqs: OnSeqs, starting_w: float, start_s: float
    ) -> None:  # fmt: skip
        self.instance = instance
        self.start_s = start_s
        self.written_mhz = instance.clock_mhz  # the clock last written, which the engine has a little later
        self.keep_gpus = False  # when it ends they stay held
        self.engine: DesEngine | None = None
        self.held_from_s: float | None = None  # since when it has its GPUs
        self.starting_w = starting_w
        self._world = world
        self._on_seqs = on_seqs
        self._planned_s = NEVER_S
        self._started_j: float | None = None
        self._ready_idle_j: float | None = None  # what had gone to idling when draining began
        self._drained_j = 0.0  # empty while draining, of drains that were taken back
        self._asleep_w: float | None = None  # how much more than awake and idle it draws asleep; mostly negative
        self._asleep_s = 0.0
        self._asleep_j = 0.0

    def awake(self, engine: DesEngine, now_s: float) -> None:
        self._started_j = self._starting_j(now_s)
        self.engine = engine

    def touch(self) -> None:
        """Its batch may change: plan it again when this instant is done."""
        self._world.settle_after(self._settle)

    def drains(self, now_s: float) -> None:
        if self.engine is not None:
            self._ready_idle_j = self.engine.joules_at(now_s).idle

    def resumes(self, now_s: float) -> None:
        if self.engine is not None and self._ready_idle_j is not None:
            self._drained_j += self.engine.joules_at(now_s).idle - self._ready_idle_j
            self._ready_idle_j = None

    def parks(self, asleep_w: float, now_s: float, on_watts: Callable[[float, float], None]) -> None:
        self._asleep_w = asleep_w - self.starting_w
        self._asleep_s = now_s
        on_watts(now_s, self._asleep_w)

    def wakes(self, now_s: float, on_watts: Callable[[float, float], None]) -> None:
        """Idempotent: nothing where it does not sleep."""
        if self._asleep_w is not None:
            self._asleep_j += self._asleep_w * (now_s - self._asleep_s)
            on_watts(now_s, -self._asleep_w)
            self._asleep_w = None

    def energy(self, now_s: float) -> EnergyOfInstance:
        instance, engine = self.instance, self.engine
        switching_j = self._starting_j(now_s) if self._started_j is None else self._started_j
        prefill_j, decode_j, idle_j = 0.0, 0.0, 0.0
        if engine is not None:
            spent = engine.joules_at(now_s)
            prefill_j, decode_j, idle_j = spent.prefill, spent.decode, spent.idle
            drained_j = self._drained_j + (0.0 if self._ready_idle_j is None else idle_j - self._ready_idle_j)
            asleep_j = self._asleep_j + (self._asleep_w or 0.0) * (now_s - self._asleep_s)
            switching_j, idle_j = switching_j + drained_j, idle_j - drained_j + asleep_j
        gpu_s = 0.0 if self.held_from_s is None else instance.tp * (now_s - self.held_from_s)
        return EnergyOfInstance(
            instance.id, instance.pool, instance.tp, prefill_j, decode_j, idle_j, switching_j, gpu_s
        )  # fmt: skip

    def _starting_j(self, now_s: float) -> float:
        return 0.0 if self.held_from_s is None else self.starting_w * (now_s - self.held_from_s)

    def _settle(self) -> None:
        if self.engine is not None:
            due_s = self.engine.next_event_s()
            if due_s != self._planned_s:
                self._planned_s = due_s
                if due_s < NEVER_S:
                    self._world.at(due_s, self._due)

    def _due(self) -> None:
        """A batch change, unless it has been planned anew meanwhile."""
        now_s, engine = self._world.now_s, self.engine
        if engine is None or now_s < self._planned_s:
            return
        self._planned_s = NEVER_S
        firsts, finished = engine.advance(now_s)
        self.touch()
        if firsts or finished:
            self._on_seqs(self, firsts, finished)
