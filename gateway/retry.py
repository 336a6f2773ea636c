"""Whether a request that failed at an instance is tried at another one. Pure; takes `now_s`.

Three bounds. A request after which instances die is taken for poison, so that it does not take the whole fleet along.
One that gets nowhere is tried a few times only. All requests of a service together may be repeated only so often, so
that an outage does not double the load."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

POISON_DEATHS = 2
POISON_S = 2.0  # between the sending of a request and the death it is blamed for
POISON_ARRIVALS = 16  # of tokens: an instance that has given that many died of something else
RETRY_SHARE = 0.2  # repeats per request that arrives, in the long run
RETRY_PER_S = 2.0  # so that a quiet service is not left without any


class Tries:
    """Of one request. `failed` is told of every failed attempt that was the instance's fault."""

    __slots__ = ("deaths", "in_vain", "since_s")

    def __init__(self) -> None:
        self.deaths: list[str] = []  # instances that may have died of it
        self.in_vain = 0  # failures in a row without a token
        self.since_s = 0.0  # the first of them

    def failed(self, instance: str, now_s: float, *, died: bool, after_s: float, arrivals: int) -> None:
        """`died`: the instance broke off `after_s` after it was sent the request, having answered `arrivals` times."""
        if arrivals or not self.in_vain:
            self.since_s = now_s
        self.in_vain = 0 if arrivals else self.in_vain + 1
        if died and after_s <= POISON_S and arrivals < POISON_ARRIVALS:
            self.deaths.append(instance)

    def acquit(self, instances: Collection[str]) -> None:
        """These live: what broke was the connection."""
        self.deaths = [one for one in self.deaths if one not in instances]

    def spent(self, now_s: float, retries: int, within_s: float, *, vanished: bool) -> bool:
        """Whether it has failed often enough. `vanished`: the last instance broke off and did not answer with an error.
        Such failures may be a few faults at once and not the request's fault, so that it is tried twice as often if it
        has not lasted longer than `within_s`."""
        if self.in_vain <= retries:
            return False
        return not vanished or self.in_vain > 2 * retries or now_s - self.since_s > within_s

    @property
    def poison(self) -> bool:
        return len(self.deaths) >= POISON_DEATHS


class RetryBudget:
    """Of one service: a bucket that arriving requests fill. An instance that dies with all it held must not empty it,
    so it holds as many as the service has slots."""

    def __init__(self) -> None:
        self._left = inf
        self._seen_s = 0.0

    def arrived(self) -> None:
        self._left += RETRY_SHARE

    def take(self, now_s: float, slots: int, per_s: float = RETRY_PER_S) -> bool:
        """Whether one more repeat is allowed; `slots`: sequences that all instances of the service may run at once."""
        filled = self._left + per_s * (now_s - self._seen_s)
        self._left, self._seen_s = min(float(max(16, slots)), filled), now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
