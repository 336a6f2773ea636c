"""A circuit breaker for one instance. Owns the count of consecutive failures; refuses to know what a failure is:
the caller reports only the instance's own faults, never a client's error."""

from __future__ import annotations


class Breaker:
    """Closed while healthy; open for a doubling back-off after `failures` in a row; then one trial decides."""

    def __init__(self, failures: int, backoff_s: float, backoff_max_s: float) -> None:
        self._limit = failures
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._failures = 0
        self._wait_s = backoff_s
        self._open_until_s: float | None = None
        self._trial = False

    @property
    def opened(self) -> bool:
        return self._open_until_s is not None

    def allows(self, now_s: float) -> bool:
        if self._open_until_s is None:
            return True
        return not self._trial and now_s >= self._open_until_s

    def begin(self) -> bool:
        """A request is about to be sent. While open it is the one trial, and True is returned."""
        if self._open_until_s is not None:
            self._trial = True
        return self._trial

    def works(self) -> None:
        """An answer has begun. That ends a pause, for a stream may last for minutes; the failures are forgotten only
        when one is complete, so that an instance that breaks every answer off does not pass for healthy."""
        self._open_until_s = None
        self._trial = False

    def success(self) -> None:
        self._failures = 0
        self._wait_s = self._backoff_s
        self._open_until_s = None
        self._trial = False

    def neutral(self) -> None:
        """The trial ended without telling anything about the instance (the client left, or erred)."""
        self._trial = False

    def failure(self, now_s: float, *, trial: bool = False) -> None:
        """While open only the trial counts: requests sent before it opened end late and tell nothing new."""
        if self._open_until_s is not None and not trial:
            return
        self._failures += 1
        if self._open_until_s is not None or self._failures >= self._limit:
            self._open_until_s = now_s + self._wait_s
            self._wait_s = min(self._wait_s * 2, self._backoff_max_s)
        self._trial = False
