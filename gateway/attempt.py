"""How an attempt at an instance can fail, apart from the ways that are the client's own."""

from __future__ import annotations

from core.errors import JoulegateError, UpstreamFailed, UpstreamTimeout
from gateway.sse import StreamBroken
from pools.connection import ConnectionLost, Unreachable

UNBEGUN = "unbegun"
LEAVING = ("drain", "overrun", UNBEGUN)  # the stream left an instance that works, or may work yet


class AttemptFailed(Exception):
    """An instance failed. `ill` counts against its breaker; `answered` says that it failed by an answer, which may be
    the fault of the request. `final`: no other instance would do better. `kind` is a word for the metrics."""

    def __init__(
        self,
        error: JoulegateError,
        *,
        kind: str = "refused",
        ill: bool = True,
        vanished: bool = False,
        answered: bool = False,
        final: bool = False,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.kind = kind
        self.ill = ill
        self.vanished = vanished
        self.answered = answered
        self.final = final


class Leave(Exception):
    """The stream is to leave its instance, which works: `kind` says why."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def broken_off(error: UpstreamFailed | UpstreamTimeout) -> AttemptFailed:
    """What the connection or the stream raised, as the end of the attempt."""
    if isinstance(error, StreamBroken):
        return AttemptFailed(error, kind=error.kind, vanished=True, answered=True)
    return AttemptFailed(error, kind=_kind(error), vanished=True)


def _kind(error: UpstreamFailed | UpstreamTimeout) -> str:
    if isinstance(error, UpstreamTimeout):
        return "stall"
    if isinstance(error, Unreachable):
        return "refused"
    return "cut" if isinstance(error, ConnectionLost) else "garbage"


def died(failure: AttemptFailed) -> bool:
    """Whether the instance may have died of what it was sent."""
    return failure.kind in ("cut", "dead")
