"""A request as routing sees it: frozen facts, a prediction, and how it ended. Holds no text of any prompt."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Prediction(Struct, frozen=True, gc=False):  # a Struct is built in a tenth of a frozen dataclass's time
    """How long the answer will be. `p` are the probabilities of output sizes S, M, L; the others are quantiles of the
    output length in tokens, already capped by the request's own limit."""

    p: tuple[float, float, float]
    q50_tokens: int
    q90_tokens: int
    q99_tokens: int


class Ask(Struct, frozen=True):
    """What one request asks of an instance. Tokens are counts; times are monotonic seconds.

    `sequences` = n x number of prompts; `kv_tokens` = what it will hold at q90; `deadline_s` = latest first token
    that keeps its TTFT objective; `tbt_limit_s` = its TBT objective;
    `key`: whose it is; `batch`: it waits for all who are in a hurry."""

    request_id: str
    pool_index: int
    input_tokens: int
    sequences: int
    kv_tokens: int
    q50_tokens: int
    arrived_s: float
    deadline_s: float
    tbt_limit_s: float
    key: str = ""
    batch: bool = False


def ask_for(
    request_id: str, pool_index: int, input_tokens: int, sequences: int, prediction: Prediction,
    now_s: float, ttft_s: float, tbt_s: float, key: str = "", batch: bool = False,
) -> Ask:  # fmt: skip
    """What routing weighs of a request whose answer is foretold. Its KV tokens are those held at the 90th percentile
    of the answer."""
    return Ask(
        request_id=request_id,
        pool_index=pool_index,
        input_tokens=input_tokens,
        sequences=sequences,
        kv_tokens=sequences * (input_tokens + prediction.q90_tokens),
        q50_tokens=prediction.q50_tokens,
        arrived_s=now_s,
        deadline_s=now_s + ttft_s,
        tbt_limit_s=tbt_s,
        key=key,
        batch=batch,
    )


class Outcome(Enum):
    """The one ending of a request."""

    COMPLETED = "completed"
    CLIENT_ERROR = "client_error"
    CLIENT_GONE = "client_gone"
    SHED = "shed"
    FAILED = "failed"
    CUT = "cut"  # failed after the first byte: the client got an error event
