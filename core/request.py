"""A request as routing sees it: frozen facts, a prediction, and how it ended. Holds no text of any prompt."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Prediction(Struct, frozen=True):  # a Struct is built in a tenth of a frozen dataclass's time
    """How long the answer will be. `p` are the probabilities of output sizes S, M, L; `q50_tokens` and `q90_tokens`
    are quantiles of the output length in tokens, already capped by the request's own limit."""

    p: tuple[float, float, float]
    q50_tokens: int
    q90_tokens: int


class Ask(Struct, frozen=True):
    """What one request asks of an instance. Tokens are counts; times are monotonic seconds.

    `sequences` = n x number of prompts; `kv_tokens` = what it will hold at q90; `deadline_s` = latest first token
    that keeps its TTFT objective; `tbt_limit_s` = its TBT objective."""

    request_id: str
    pool_index: int
    input_tokens: int
    sequences: int
    kv_tokens: int
    q50_tokens: int
    arrived_s: float
    deadline_s: float
    tbt_limit_s: float


class Outcome(Enum):
    """The one ending of a request."""

    COMPLETED = "completed"
    CLIENT_ERROR = "client_error"
    CLIENT_GONE = "client_gone"
    SHED = "shed"
    FAILED = "failed"
    CUT = "cut"  # failed after the first byte: the client got an error event
