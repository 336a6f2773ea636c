"""Which GPUs of this host each instance has. Owns the book; reads no hardware and starts nothing.

A GPU is known by its UUID, because NVML's index is not CUDA's. An instance never has GPUs of two islands: an island is
what NVLink joins (all of an HGX board, a bridged pair of PCIe cards), or one node of an emulated cluster."""

from __future__ import annotations

from collections.abc import Sequence

Islands = tuple[tuple[str, ...], ...]


class NoRoom(OSError):
    """No island has as many free GPUs. An instance that cannot be started is an OSError, whatever the reason."""


def islands_of(uuids: Sequence[str], size: int) -> Islands:
    """Neighbours in the order that the driver lists them, `size` at a time."""
    return tuple(tuple(uuids[start : start + size]) for start in range(0, len(uuids), size))


class GpuBook:
    """One per host, shared by all launchers. `islands` None: nobody says which GPUs there are, and an instance gets
    CUDA's indices, as many as it asks for."""

    def __init__(self, islands: Islands | None = None) -> None:
        self.islands = islands
        self._held: dict[str, tuple[str, ...]] = {}
        self._out: frozenset[str] = frozenset()

    def exclude(self, gpus: Sequence[str]) -> None:
        """From now on nobody is given these; who holds one keeps it."""
        self._out = frozenset(gpus)

    def know(self, islands: Islands) -> None:
        """What there is, as the agent tells it. Whoever holds a GPU keeps it."""
        self.islands = islands

    @property
    def held(self) -> dict[str, tuple[str, ...]]:
        return dict(self._held)

    def take(self, holder: str, number: int, near: str = "") -> tuple[str, ...]:
        """On the island of `near` if that has them, else on the fullest that has, so that large groups find room later.
        NoRoom where none has."""
        if self.islands is None:
            self._held[holder] = self._indices(number)
            return self._held[holder]
        taken = {gpu for held in self._held.values() for gpu in held}
        taken |= self._out
        free = [[gpu for gpu in island if gpu not in taken] for island in self.islands]
        room = [gpus for gpus in free if len(gpus) >= number]
        if not room:
            known = f"{sum(map(len, free))} of {sum(map(len, self.islands))} GPUs are free"
            raise NoRoom(
                f"no {number} GPUs that NVLink joins: {known}" if self.islands else "its GPUs are not known yet"
            )
        there = next((island for island in self.islands if near in island), ())
        self._held[holder] = tuple(min(room, key=lambda gpus: (gpus[0] not in there, len(gpus)))[:number])
        return self._held[holder]

    def hold(self, holder: str, gpus: Sequence[str]) -> None:
        """An instance that runs already has these."""
        self._held[holder] = tuple(gpus)

    def give_back(self, holder: str) -> None:
        self._held.pop(holder, None)

    def _indices(self, number: int) -> tuple[str, ...]:
        """The lowest free run of `number` neighbours that starts at a multiple of it: such a group shares its links."""
        taken = {gpu for held in self._held.values() for gpu in held} | self._out
        runs = ([str(gpu) for gpu in range(start, start + number)] for start in range(0, 1 << 20, number))
        return tuple(next(run for run in runs if not taken.intersection(run)))
