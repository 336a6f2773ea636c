"""The words pools and controller share about instances: states, observations and actions. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SeenInstance:
    """One instance as observed now."""

    id: str
    service: str
    pool: str
    tp: int
    state: State
    running: int
    since_s: float
    adopted: bool = False  # runs elsewhere or was added by URL: the controller leaves its lifecycle alone
    held: bool = False  # an operator drained it and may resume it: it still counts towards what the plan wants


@dataclass(frozen=True, slots=True)
class SeenPool:
    """One pool as observed now: what the operator configured and how many requests wait."""

    service: str
    name: str
    wanted: int
    tp: int
    queued: int
    managed: bool  # False for static pools, whose instances somebody else runs


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything the controller may know at one instant."""

    now_s: float
    pools: tuple[SeenPool, ...]
    instances: tuple[SeenInstance, ...]


@dataclass(frozen=True, slots=True)
class Start:
    service: str
    pool: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Drain, then end."""

    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove a dead instance from the books after its processes are gone."""

    instance_id: str
    reason: str


Action = Start | Stop | Forget
