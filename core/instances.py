"""The words pools and controller share about instances: states, observations and actions. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    PARKED = "parked"  # loaded and asleep: takes no request, is back sooner than a start
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SeenInstance:
    """One instance as observed now. `running` counts requests; sequences and tokens are what its slots hold."""

    id: str
    service: str
    pool: str
    tp: int
    state: State
    running: int
    since_s: float
    adopted: bool = False  # runs elsewhere or was added by URL: the controller leaves its lifecycle alone
    held: bool = False  # an operator drained it and may resume it: it still counts towards what the plan wants
    clock_mhz: int = 0
    sequences: int = 0
    kv_tokens: int = 0
    prefill_tokens: int = 0
    tbt_limit_s: float = inf  # the tightest among those who run there
    clock_knob: bool = False  # its clock can be written
    gpus: tuple[str, ...] = ()  # their UUIDs, where they are known
    parks: bool = False  # it can be put to sleep, as far as is known
    age_s: float = 0.0  # how long ago it was as it is shown, in whole seconds
    overdue_s: float = 0.0  # by which a first token misses both its deadline and what was expected here, at worst


@dataclass(frozen=True, slots=True)
class SeenWaiting:
    """A request in a queue: when its first token is due, and how long its prompt is."""

    deadline_s: float
    input_tokens: int


@dataclass(frozen=True, slots=True)
class SeenPool:
    """One pool as observed now: what the operator configured and how many requests wait."""

    service: str
    name: str
    wanted: int
    tp: int
    queued: int
    managed: bool  # False for static pools, whose instances somebody else runs
    waiting: tuple[SeenWaiting, ...] = ()  # the earliest deadlines first; the first WAITING_SEEN of them
    pinned: bool = False  # an operator set `wanted`: no plan changes it until it is let go
    age_s: float = 0.0  # how long ago the queue was like this


@dataclass(frozen=True, slots=True)
class ClassCount:
    """What a class has brought since the process began; only differences mean something.

    A class is (input size, predicted output size). `asked` are requests that arrived; `done` those that completed, with
    their real output tokens; `attained` of the `judged` ones kept their objectives, shed and failed ones did not."""

    asked: int = 0
    input_tokens: int = 0
    done: int = 0
    output_tokens: int = 0
    attained: int = 0
    judged: int = 0


@dataclass(frozen=True, slots=True)
class SeenService:
    """The load of one service: nine counts, in the order of core.service.CLASSES. `watts`: what all its instances draw
    now, `quality` how that is known (measured or modelled); None = not known. `age_s`, `watts_age_s`: how long ago the
    counts and the watts were so."""

    name: str
    counts: tuple[ClassCount, ...]
    watts: float | None = None
    quality: str = "modelled"
    age_s: float = 0.0
    watts_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SeenGpus:
    """GPUs that instances may use. `total` 0: nobody said how many there are. `bare` are held without an instance;
    what is neither used nor bare was given back and returns only after minutes."""

    total: int = 0
    used: int = 0
    bare: int = 0
    islands: tuple[tuple[str, ...], ...] = ()  # UUIDs of GPUs that NVLink joins, where they are known


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything the controller may know at one instant. `wall_s` is Unix time, for what follows the calendar."""

    now_s: float
    pools: tuple[SeenPool, ...]
    instances: tuple[SeenInstance, ...]
    services: tuple[SeenService, ...] = ()
    gpus: SeenGpus = SeenGpus()
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Shape:
    """How an instance is started. 0 = as its pool is configured. `from_tp`: its GPUs come in place from an instance
    of that TP which has drained, so that it is re-sharded and not started anew. `near`: beside which
    GPU, by its UUID, on the same island; empty = wherever there is room."""

    tp: int = 0
    clock_mhz: int = 0
    slots: int = 0
    step_tokens: int = 0
    from_tp: int = 0
    near: str = ""


AS_CONFIGURED = Shape()


@dataclass(frozen=True, slots=True)
class Start:
    service: str
    pool: str
    reason: str
    shape: Shape = AS_CONFIGURED


@dataclass(frozen=True, slots=True)
class Stop:
    """Drain, then end. `keep_gpus`: hold its GPUs bare, for an instance that starts soon."""

    instance_id: str
    reason: str
    keep_gpus: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """Take a drain back while requests still run there."""

    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove a dead instance from the books after its processes are gone."""

    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SetClock:
    instance_id: str
    clock_mhz: int
    reason: str


@dataclass(frozen=True, slots=True)
class Park:
    """Put an instance that runs nothing to sleep; one that has work again is left alone."""

    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wake:
    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Bare GPUs are given back to whoever lends them."""

    gpus: int
    reason: str


@dataclass(frozen=True, slots=True)
class Steer:
    """How one pool's requests are taken from now on, until the next Steer. `spill`: they may go to pools that serve
    shorter answers; `shed_late`: one that still waits when its first token is due is refused, to save those behind;
    `move`: what instances of this pool were given and have not begun when it was due goes where there is room."""

    service: str
    pool: str
    spill: bool
    shed_late: bool
    reason: str
    move: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Drain, but keep it running: an operator will have it back."""

    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """What was held serves again."""

    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Exclude:
    """From now on no instance is started on these GPUs, and on all others again."""

    gpus: tuple[str, ...]
    reason: str


OnInstance = Stop | Resume | Forget | SetClock | Park | Wake | Hold | Release
Action = Start | OnInstance | GiveBack | Steer | Exclude
