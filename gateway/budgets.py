"""What a key may spend a minute beside its requests: tokens, and joules. A request reserves what it is foretold to cost
before it is queued, and settles what it did cost.

Owns one bucket per key and kind. A bucket holds a minute's worth and refills evenly. It is never overdrawn by a
reservation, but for one that is larger than a whole minute's worth, which waits for a full bucket; an answer that cost
more than foretold leaves a debt, which the next requests wait for. Many at once cannot spend the same allowance twice:
reserving is one synchronous step. Owner: the event loop."""

from __future__ import annotations

from collections.abc import Callable

from core.clock import Clock
from core.errors import RateLimited
from gateway.auth import Identity
from gateway.job import Job

MINUTE_S = 60.0


class Bucket:
    __slots__ = ("at_s", "left", "limit")

    def __init__(self, limit: float, now_s: float) -> None:
        self.limit = limit
        self.left = limit
        self.at_s = now_s

    def refill(self, limit: float, now_s: float) -> None:
        """`limit` may have changed with a reload."""
        self.left = min(limit, self.left + max(0.0, now_s - self.at_s) * limit / MINUTE_S)
        self.limit, self.at_s = limit, now_s

    def lacks_s(self, amount: float) -> float:
        """Seconds until `amount` may be reserved; 0: now."""
        needed = min(amount, self.limit)
        return max(0.0, needed - self.left) * MINUTE_S / self.limit


class Budgets:
    """`foretell(job)` says how many joules a request is likely to cost. Keys without a limit cost a comparison."""

    def __init__(self, clock: Clock, foretell: Callable[[Job], float]) -> None:
        self._clock = clock
        self._foretell = foretell
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def reserve(self, job: Job) -> None:
        """RateLimited, and nothing is taken, when a bucket lacks what the request is foretold to cost."""
        identity, sized, parsed = job.identity, job.sized, job.parsed
        if identity.tokens_per_minute is None and identity.joules_per_minute is None:
            return
        assert sized is not None and parsed is not None
        output = parsed.sequences * sized.prediction.q50_tokens if job.route.generates and not job.route.embeds else 0
        asked = {"tokens": float(sized.input_tokens + output), "joules": 0.0}
        if identity.joules_per_minute is not None:
            asked["joules"] = self._foretell(job)
        found = [(kind, self._bucket(identity, kind), amount) for kind, amount in asked.items()]
        for kind, bucket, amount in found:
            wait_s = bucket.lacks_s(amount) if bucket is not None else 0.0
            if wait_s > 1e-9 and bucket is not None:
                raise RateLimited(
                    f"Rate limit reached for key '{identity.name}': {bucket.limit:g} {kind} per minute; this request "
                    f"is foretold to take {amount:.0f}.",
                    retry_after_s=wait_s,
                )
        for kind, bucket, amount in found:
            if bucket is not None:
                bucket.left -= amount
                job.reserved[kind] = amount

    def settle(self, job: Job, kind: str, amount: float) -> None:
        """What was reserved is replaced by what was spent, once."""
        reserved = job.reserved.pop(kind, None)
        if reserved is None:
            return
        bucket = self._bucket(job.identity, kind)
        if bucket is not None:
            bucket.left = min(bucket.limit, bucket.left + reserved - amount)

    def _bucket(self, identity: Identity, kind: str) -> Bucket | None:
        limit = identity.tokens_per_minute if kind == "tokens" else identity.joules_per_minute
        if limit is None:
            return None
        now_s, key = self._clock.now_s(), (identity.name, kind)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(float(limit), now_s)
        bucket.refill(float(limit), now_s)
        return bucket


def tokens_spent(job: Job) -> int:
    """Of a request that has ended: as the engine counted them, else what is known to have been sent and said."""
    if job.usage is not None:
        return sum(job.usage)
    if job.stint is None or job.sized is None:
        return 0
    said = 0 if job.timing is None or job.timing.first_s is None else job.timing.gaps + 1
    return job.sized.input_tokens + said
