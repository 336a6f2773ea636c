"""What a controller decides with besides what it sees: promises, engine models, settings. Frozen; a change of the
configuration replaces it whole. Owns the words, decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.service import ServiceSpec
from profiles.engine_model import EngineModel

STALE_S = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Periods in seconds. `coverage`: the peak of the next plan period that capacity is kept for, with clocks at their
    highest. `tbt_room`: part of the TBT objective that a step may take as planned. `spare`: instances beyond that
    (N+1). `most_changes`: instances of a service that start at once. `switches_per_hour`: starts, by GPUs of the
    cluster / 100. `harm_windows`: minutes in a row under `promised` after which everything goes to its fastest.
    `stale_s`: age from which nothing is given up for what is seen."""

    plan_every_s: float = 300.0
    clock_every_s: float = 5.0
    coverage: float = 0.95
    horizon_s: float = 900.0
    eta: float = 1.0
    tbt_room: float = 1.0
    merge: bool = True  # a pool may hand its classes to the next larger one
    spare: bool = False
    park: bool = False  # what is not needed sleeps for a while before it ends
    learn: bool = False  # clocks by what they are measured to draw (controller/learning.py)
    floor: int = 2
    most_changes: int = 4
    switches_per_hour: float = 24.0
    drift_band: float = 0.15
    settle_s: float = 120.0
    promised: float = 0.99
    harm_windows: int = 3
    stale_s: float = STALE_S
    power_cap_w: float = float("inf")


@dataclass(frozen=True, slots=True)
class ServiceKnowledge:
    """`model` None: what an instance draws and carries is not known, so its pools stay as they are configured.
    `switch_j`: by TP, joules of a start and of a stop as they were recorded; without one the model's are taken.
    `wake_j`: by TP, of waking one that sleeps. `reshard_j`: (TP before, TP after, joules) of re-shards, as recorded."""

    spec: ServiceSpec
    model: EngineModel | None
    step_tokens: Mapping[int, int] = field(default_factory=dict)  # by TP, for instances that are started anew
    switch_j: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    wake_j: Mapping[int, float] = field(default_factory=dict)
    reshard_j: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Knowledge:
    """`gpus` 0: as many as asked for. `node_gpus`: GPUs of a machine, which no TP group straddles. `mode`: shadow and
    advise decide and tell; only enforce acts on a plan of its own."""

    services: Mapping[str, ServiceKnowledge] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    gpus: int = 0
    node_gpus: int = 8
    mode: str = "enforce"
