"""The words of measuring: a probe of one load on one instance, the window it leaves, and the target that is probed.

Frozen values and protocols only. What to probe next is measure_sweep's, when a window opens and
closes measure_window's; a target only sets itself up, offers the load it is told and hands back what it saw.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

from pools.meters import Reading
from profiles.profile import Point


@dataclass(frozen=True, slots=True)
class Lengths:
    """A class of requests whose lengths are forced, so that a window does not depend on what the model says."""

    name: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Probe:
    """One window to take; `rps` 0 is the instance with nothing to do."""

    tp: int
    clock_mhz: int
    lengths: Lengths
    rps: float
    repeat: int = 0
    seed: int = 0

    @property
    def key(self) -> str:
        lengths = f"{self.lengths.name}-{self.lengths.input_tokens}-{self.lengths.output_tokens}"
        return f"tp{self.tp}/{self.clock_mhz}/{lengths}/{self.rps:g}/{self.repeat}/{self.seed}"

    @property
    def arrival_seed(self) -> int:
        """The same for every load, TP and clock of a class: what two probes differ in is then not their luck."""
        return crc32(f"{self.lengths}/{self.repeat}/{self.seed}".encode())


@dataclass(frozen=True, slots=True)
class Rule:
    """The steady-state rule for open-loop loads; measure_window applies it and `sentence` states it."""

    residences: float = 1.25
    warm_s: float = 5.0
    warm_max_s: float = 120.0
    window_s: float = 30.0
    window_max_s: float = 50.0
    requests: int = 25
    overload_waiting: int = 12
    overload_share: float = 0.25
    waiting_share: float = 0.05
    overload_s: float = 5.0
    sample_s: float = 0.5
    idle_s: float = 5.0

    @property
    def sentence(self) -> str:
        return (
            f"open-loop Poisson arrivals, their number fixed per block of max(10 s, 5 requests); the window opens when "
            f"{self.residences:g} residence times of the latest finished request and {self.warm_s:g} s have passed and "
            f"the number in flight has stopped climbing; it closes after whole blocks of at least {self.window_s:g} s "
            f"and {self.requests} requests (at most {self.window_max_s:g} s or one block), before the load stops; "
            f"saturated if more than {self.waiting_share:g} wait for each one running (over the window, or at its end "
            f"with the number in flight growing), if at any moment {self.overload_waiting} or more and "
            f"{self.overload_share:g} for each one running wait, or if output falls behind the load while some wait"
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """What the engine says of itself at one moment."""

    at_s: float
    running: int
    waiting: int
    kv_share: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as its client saw it; `first_s` is None while no token has come."""

    arrived_s: float
    first_s: float | None


@dataclass(frozen=True, slots=True)
class Window:
    """What one probe left. Only what lies between `opened` and `closed` counts.

    `gaps` are (seconds, number of tokens that came after such a gap). `instance_s` is all the time the probe took of
    the instance, warm-up and tail included.
    """

    probe: Probe
    opened: Reading
    closed: Reading
    requests: tuple[Seen, ...]
    gaps: tuple[tuple[float, int], ...]
    first_tokens: int
    output_tokens: int
    waiting: float
    kv_share: float
    saturated: bool
    reason: str
    instance_s: float


def idle_window(probe: Probe, opened: Reading, closed: Reading, instance_s: float) -> Window:
    return Window(probe, opened, closed, (), (), 0, 0, 0.0, 0.0, False, "", instance_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """A window boiled down: the row of a profile and what it cost."""

    probe: Probe
    point: Point
    instance_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """What a target knows of itself, for a profile's provenance."""

    gpu: str
    model: str
    engine: str
    engine_version: str
    energy_counter: str
    origin: str
    driver: str = ""
    source: str = ""
    limits: dict[str, int] = field(default_factory=dict)


class Target(Protocol):
    """One instance under test."""

    about: About

    async def configure(self, tp: int, clock_mhz: int) -> float:
        """Makes the instance run with this TP and clock; answers the seconds that took. ValueError if it cannot."""
        ...

    async def run(self, probe: Probe, rule: Rule) -> Window: ...


class ClockKnob(Protocol):
    """What may change the clock of the instance under test. Used only when the operator asks for clocks."""

    async def set_clock(self, clock_mhz: int) -> None: ...
