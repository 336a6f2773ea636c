"""What a run looked like over time: watts by cause, instances, clocks, queue. Owns the samples and their number.

Memory is bounded: past `MOST_SAMPLES` every second sample goes and the period doubles. Sampling reads and changes
nothing of what is simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.instances import State

if TYPE_CHECKING:
    from simulator.cluster import SimCluster
    from simulator.world import World

MOST_SAMPLES = 720
CAUSES = ("prefill", "decode", "idle", "switching")


@dataclass(frozen=True, slots=True)
class Sample:
    """`joules` by cause since second 0, as CAUSES; `clocks_mhz`: mean over the GPUs of each pool's READY instances."""

    at_s: float
    joules: tuple[float, ...]
    states: dict[str, int]
    pools: dict[str, int]
    tp: dict[int, int]
    clocks_mhz: dict[str, float]
    queued: int


class Timeline:
    def __init__(self, every_s: float = 10.0) -> None:
        self.every_s = every_s
        self.samples: list[Sample] = []

    def attach(self, world: World, cluster: SimCluster) -> None:
        def take() -> None:
            self._keep(sample(world.now_s, cluster))
            world.at(world.now_s + self.every_s, take)

        world.at(world.now_s, take)

    def _keep(self, taken: Sample) -> None:
        self.samples.append(taken)
        if len(self.samples) > MOST_SAMPLES:
            self.samples = self.samples[::2]
            self.every_s *= 2

    def columns(self) -> dict[str, object]:
        """As plain lists over time. `watts` are means since the sample before; the first sample has none."""
        pairs = list(zip(self.samples, self.samples[1:], strict=False))
        after = self.samples[1:]
        return {
            "at_s": [one.at_s for one in after],
            "watts": {
                cause: [(b.joules[n] - a.joules[n]) / (b.at_s - a.at_s) for a, b in pairs]
                for n, cause in enumerate(CAUSES)
            },
            "instances": {
                "state": _series(after, lambda one: one.states),
                "pool": _series(after, lambda one: one.pools),
                "tp": _series(after, lambda one: {str(tp): count for tp, count in one.tp.items()}),
            },
            "clock_mhz": _series(after, lambda one: one.clocks_mhz, None),
            "queued": [one.queued for one in after],
        }


def _series(
    samples: list[Sample], pick: Callable[[Sample], dict[str, int] | dict[str, float]], nothing: int | None = 0
) -> dict[str, list[float | None]]:
    names = sorted({name for one in samples for name in pick(one)})
    return {name: [pick(one).get(name, nothing) for one in samples] for name in names}


def sample(now_s: float, cluster: SimCluster) -> Sample:
    prefill_j = decode_j = idle_j = switching_j = 0.0
    for one in cluster.energy():
        prefill_j += one.prefill_j
        decode_j += one.decode_j
        idle_j += one.idle_j
        switching_j += one.switching_j
    cluster.stock.until(now_s)
    idle_j += cluster.stock.seconds.bare * cluster.stock.bare_w
    states, pools, tps = Counter[str](), Counter[str](), Counter[int]()
    gpus, clocks = Counter[str](), Counter[str]()
    for member in cluster.members.values():
        instance = member.instance
        states[instance.state.value] += 1
        if instance.state is State.READY:
            pools[instance.pool] += 1
            tps[instance.tp] += 1
            gpus[instance.pool] += instance.tp
            clocks[instance.pool] += instance.tp * instance.clock_mhz
    queued = sum(cluster.router.queued(index) for index in range(len(cluster.spec.pools)))
    mean = {pool: clocks[pool] / count for pool, count in gpus.items()}
    return Sample(now_s, (prefill_j, decode_j, idle_j, switching_j), dict(states), dict(pools), dict(tps), mean, queued)
