"""Who may write to which GPU, and until when. Pure: it takes `now_s` and touches no GPU.

One writer per GPU. Every grant has an epoch that is higher than all before it, also over restarts of the agent (the
first comes from the wall clock in milliseconds); a write with an epoch that is no longer the GPU's is refused, whoever
sends it. A lease ends a tenth before its time, so that clocks are at their default when the time is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from core.errors import BadRequest, Conflict

SHARE = 0.9  # of the lease's time, after which its clocks are undone
SHORTEST_S = 0.2


class LeaseHeld(Conflict):
    """Somebody else writes to one of these GPUs. `retry_after_s` says when their lease ends unless it is renewed."""

    code = "lease_held"


class LeaseLost(Conflict):
    """This epoch writes no more: its lease ended, or somebody else has it."""

    code = "lease_lost"


@dataclass(frozen=True, slots=True)
class Lease:
    epoch: int
    holder: str
    uuids: frozenset[str]
    lease_s: float
    renewed_s: float

    @property
    def ends_s(self) -> float:
        return self.renewed_s + self.lease_s * SHARE


class Leases:
    """All leases of a node, at most one per GPU."""

    def __init__(self, uuids: Iterable[str], longest_s: float, first_epoch: int) -> None:
        self.longest_s = longest_s
        self._all = frozenset(uuids)
        self._next = first_epoch
        self._held: dict[int, Lease] = {}

    @property
    def held(self) -> tuple[Lease, ...]:
        return tuple(self._held.values())

    def acquire(self, now_s: float, holder: str, uuids: Iterable[str], lease_s: float | None = None) -> Lease:
        """Leases that have ended must have been taken out with `expire` before. LeaseHeld or BadRequest."""
        wanted = frozenset(uuids)
        if not wanted or not wanted <= self._all:
            unknown = ", ".join(sorted(wanted - self._all))
            raise BadRequest(f"no GPU here has the UUID {unknown}" if unknown else "name at least one GPU")
        if lease_s is not None and not SHORTEST_S <= lease_s <= self.longest_s:
            raise BadRequest(f"a lease lasts {SHORTEST_S} to {self.longest_s} s, not {lease_s}", param="lease_s")
        for other in self._held.values():
            if other.uuids & wanted:
                raise LeaseHeld(
                    f"{other.holder!r} writes to {', '.join(sorted(other.uuids & wanted))}",
                    retry_after_s=max(0.0, other.ends_s - now_s),
                )
        lease = Lease(self._next, holder, wanted, lease_s or self.longest_s, now_s)
        self._next += 1
        self._held[lease.epoch] = lease
        return lease

    def renew(self, now_s: float, epoch: int) -> Lease:
        lease = self.check(now_s, epoch, ())
        self._held[epoch] = replace(lease, renewed_s=now_s)
        return self._held[epoch]

    def check(self, now_s: float, epoch: int, uuids: Iterable[str]) -> Lease:
        """The lease, if this epoch may write to these GPUs now; else LeaseLost."""
        lease = self._held.get(epoch)
        if lease is None or now_s >= lease.ends_s:
            raise LeaseLost(f"the lease with epoch {epoch} has ended")
        outside = sorted(set(uuids) - lease.uuids)
        if outside:
            raise LeaseLost(f"epoch {epoch} holds no lease of {', '.join(outside)}")
        return lease

    def allows(self, now_s: float, epoch: int) -> bool:
        lease = self._held.get(epoch)
        return lease is not None and now_s < lease.ends_s

    def release(self, epoch: int) -> frozenset[str]:
        """The GPUs to undo. A lease that has gone is released already."""
        lease = self._held.pop(epoch, None)
        return lease.uuids if lease else frozenset()

    def expire(self, now_s: float) -> frozenset[str]:
        """Takes out what has ended; returns the GPUs to undo."""
        ended = [epoch for epoch, lease in self._held.items() if now_s >= lease.ends_s]
        return frozenset().union(*(self._held.pop(epoch).uuids for epoch in ended))

    def revoke(self) -> frozenset[str]:
        """Ends all of them: what they set is no longer what is."""
        return frozenset().union(*(self.release(epoch) for epoch in list(self._held)))
