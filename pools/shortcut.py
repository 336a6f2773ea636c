"""The base of a connection to an instance: with a C compiler at `make install` it is `_shortcut.c`, which passes the
plain arrivals of a stream on by itself; without one nothing passes, and Python does the same work.

Owns the choice between the two, and the words in which a stream and its connection agree on what may pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

try:
    from pools._shortcut import Shortcut as Native
except ImportError:  # no compiler where it was installed
    Native = None  # type: ignore[assignment, misc]


class NoShortcut:
    """All that arrives goes to `arrived`."""

    heard = False  # something was poured since the watchdog looked
    at_boundary = False  # the parser stands between two chunks

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.data_received = cls.arrived  # type: ignore[attr-defined]  # without a call in between

    def open(self, *_: Any) -> None:
        return

    def shut(self) -> None:
        return None


if TYPE_CHECKING:
    from pools._shortcut import Shortcut as Shortcut
else:
    Shortcut = Native or NoShortcut


class Passed(NamedTuple):
    """What passed by the shortcut. `last_s`, `total_s`: the last arrival, and the sum of all gaps of the stream."""

    events: int
    last_s: float
    total_s: float
    gaps: int
    late: int
    counts: list[int]  # of gaps, by the buckets of `open`


class Stream(Protocol):
    """Whose arrivals may pass. `ease` is asked between two chunks whether the next ones may, and opens the shortcut if
    so; `passed` is told of them before anything else is done with the stream."""

    def ease(self, shortcut: Shortcut) -> None: ...

    def passed(self, passed: Passed) -> None: ...
