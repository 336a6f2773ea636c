"""Problems for planning tests, small enough to be read, and an oracle that tries everything."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from scipy.optimize import linprog

from controller.plan_books import capacities, peak_w, pool_count, priced, unpacked
from controller.problem import Column, Demand, Exchange, Group, Kind, NodeShape, Plan, Problem, Taken

POOLS = ("short", "medium", "long")
WATTS = {"H100": 500.0, "A100": 300.0}
SPEED = {"H100": 1.0, "A100": 0.5}


def column(
    pool: str = "short", tp: int = 2, rps: float = 2.0, watts: float = 1000.0, *, gpu: str = "H100",
    service: str = "chat", clock_mhz: int = 1980, level: float = 1.0, running: float = 10.0, **takes: float,
) -> Column:  # fmt: skip
    return Column(
        Kind(service, pool, gpu, tp),
        clock_mhz,
        level,
        64,
        rps,
        watts,
        watts * 1.2,
        running,
        tuple(Taken(pool, most, watts) for pool, most in takes.items()),
    )


def ladder(pool: str, tp: int, *, service: str = "chat", gpu: str = "H100", merges: bool = True) -> list[Column]:
    """Columns of one kind: three clocks, two levels; longer pools carry less, and take from the shorter ones."""
    place = POOLS.index(pool)
    best = SPEED[gpu] * (tp**0.9) / (1 + place)
    found = []
    for clock_mhz, speed, draw in ((1980, 1.0, 1.0), (1400, 0.85, 0.75), (1000, 0.6, 0.6)):
        for level in (0.5, 1.0):
            rps = best * speed * level
            takes = {p: rps * (1 + place) / (1 + i) * 0.95 for i, p in enumerate(POOLS[:place])} if merges else {}
            watts = WATTS[gpu] * tp * draw * (0.4 + 0.6 * level)
            found.append(
                column(pool, tp, rps, watts, gpu=gpu, service=service, clock_mhz=clock_mhz, level=level,
                       running=20 * level * level / speed, **takes)
            )  # fmt: skip
    return found


def problem(
    rps: Sequence[float] = (4.0, 2.0, 1.0), tps: Sequence[int] = (2, 4), nodes: Sequence[NodeShape] | None = None,
    *, services: Sequence[str] = ("chat",), merges: bool = True, **more: object,
) -> Problem:  # fmt: skip
    nodes = nodes or (NodeShape("H100", 8, 2),)
    columns = [
        c
        for service in services
        for pool in POOLS[: len(rps)]
        for gpu in dict.fromkeys(node.gpu for node in nodes)
        for tp in tps
        for c in ladder(pool, tp, service=service, gpu=gpu, merges=merges)
    ]
    demands = tuple(Demand(service, pool, load) for service in services for pool, load in zip(POOLS, rps, strict=False))
    return Problem(tuple(columns), demands, tuple(nodes), **more)  # type: ignore[arg-type]


def tried(task: Problem, most: int) -> Iterator[Plan]:
    """Every choice of at most `most` instances of each column that fits and serves all."""
    for counts in product(range(most + 1), repeat=len(task.columns)):
        plan = Plan(tuple(Group(c, n) for c, n in zip(task.columns, counts, strict=True) if n))
        fits = not unpacked(task, plan) and peak_w(plan) <= task.power_cap_w and as_ordered(task, plan)
        if fits and serves_all(task, plan):
            yield priced(task, plan)


def as_ordered(task: Problem, plan: Plan) -> bool:
    counts = [(pool_count(plan, bound.service, bound.pool), bound) for bound in task.bounds]
    return all(bound.least <= count and (bound.most is None or count <= bound.most) for count, bound in counts)


def serves_all(task: Problem, plan: Plan) -> bool:
    """Whether some flows serve every demand: an LP over (demand, kind)."""
    exchange, room = Exchange.of(task.columns), capacities(plan.groups)
    pairs = [
        (place, setting, rate.counts)
        for place, demand in enumerate(task.demands)
        for setting in room
        if setting.kind.service == demand.service and (rate := exchange.serves(setting, demand.pool)) is not None
    ]
    if not pairs:
        return not any(demand.rps for demand in task.demands)
    settings = list(room)
    used, got = np.zeros((len(settings), len(pairs))), np.zeros((len(task.demands), len(pairs)))
    for at, (place, setting, factor) in enumerate(pairs):
        used[settings.index(setting), at] = factor
        got[place, at] = 1
    found = linprog(
        np.zeros(len(pairs)), A_ub=used, b_ub=[room[s] + 1e-9 for s in settings], A_eq=got,
        b_eq=[d.rps for d in task.demands],
    )  # fmt: skip
    return bool(found.status == 0)
