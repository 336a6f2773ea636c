"""Where the instances of a plan go, so that as many as possible stay where they are. Pure; owns no decision but that.

Instances of one size are alike, so what is asked is how many of each kind every island of GPUs has: an integer
programme with a variable per kind and island (generalised assignment), solved by HiGHS (scipy.optimize.milp)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.instances import SeenInstance

Kind = tuple[str, int]  # (pool, TP)


@dataclass(frozen=True, slots=True)
class Ground:
    """The islands of one service: `gpus` that it may use, those of other services and those taken out left out."""

    islands: tuple[frozenset[str], ...]

    def at(self, instance: SeenInstance) -> int | None:
        """The island that it runs on; None where it has no GPU of these."""
        return next((at for at, island in enumerate(self.islands) if not island.isdisjoint(instance.gpus)), None)

    def free(self, instances: Sequence[SeenInstance]) -> list[int]:
        held = {gpu for instance in instances for gpu in instance.gpus}
        return [len(island - held) for island in self.islands]


def room_now(ground: Ground, instances: Sequence[SeenInstance], sizes: Sequence[int]) -> bool:
    """Whether groups of these sizes find free GPUs as things are: then nobody has to move."""
    free = ground.free(instances)
    for size in sorted(sizes, reverse=True):
        room = [gpus for gpus in free if gpus >= size]
        if not room:
            return False
        free[free.index(min(room))] -= size
    return True


def placed(
    ground: Ground, live: Sequence[SeenInstance], instances: Sequence[SeenInstance], counts: Mapping[Kind, int]
) -> dict[tuple[Kind, int], int] | None:
    """How many instances of each kind each island has in the end; None where they cannot all be placed.

    First as many as possible stay; of such layouts the one with the fewest GPUs that somebody has to leave before an
    instance can start there. `instances`: all that hold GPUs, those that drain too."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # half a second that a host with one island never needs

    kinds = [kind for kind, count in counts.items() if count]
    islands = range(len(ground.islands))
    cells = [(kind, at) for kind in kinds for at in islands]
    here = Counter(((instance.pool, instance.tp), ground.at(instance)) for instance in live)
    if not cells:
        return {}
    number, size = len(cells), sum(map(len, ground.islands))
    columns = 2 * number + len(ground.islands)  # there in the end; of these, there now; GPUs to be left, by island
    every, room = np.zeros((len(kinds), columns)), np.zeros((len(islands), columns))
    stays, left = np.zeros((number, columns)), np.zeros((len(islands), columns))
    for column, (kind, at) in enumerate(cells):
        every[kinds.index(kind), column] = 1
        room[at, column] = left[at, column] = kind[1]
        left[at, number + column] = -kind[1]
        stays[column, column], stays[column, number + column] = -1, 1
    for at in islands:
        left[at, 2 * number + at] = -1
    wanted = [counts[kind] for kind in kinds]
    most = [*[np.inf] * number, *(here[cell] for cell in cells), *map(len, ground.islands)]
    found = milp(
        np.concatenate([np.zeros(number), -np.ones(number), np.full(len(ground.islands), 1 / (1 + size))]),
        integrality=np.ones(columns, dtype=int),
        bounds=Bounds(0, most),
        constraints=[
            LinearConstraint(every, wanted, wanted),
            LinearConstraint(room, -np.inf, [len(island) for island in ground.islands]),
            LinearConstraint(stays, -np.inf, 0),
            LinearConstraint(left, -np.inf, ground.free(instances)),
        ],
    )
    if found.x is None:
        return None
    return {cell: round(value) for cell, value in zip(cells, found.x[:number], strict=True) if round(value)}
