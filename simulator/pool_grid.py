"""Any number of pools: requests by the size of their answer and by bands of their prompt's length.

Nine pools are the nine classes. Another number k has k // 3 bands of prompts for each size of answer, one more for the
longest sizes until there are k; a size's bands hold equally many of the trace's requests. (Two pools: S and M
answers, L answers.) DynamoLLM (HPCA 2025, Fig. 14) varies the number and leaves open how; its predictor, as ours, tells
three sizes of answer apart, so what is finer can only be the prompt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.service import CLASSES, SIZES, Edges, ServiceSpec
from simulator.request_life import PoolOf
from simulator.trace import Arrival

NINE = len(CLASSES)
LONGEST = 1 << 60


@dataclass(frozen=True, slots=True)
class Cell:
    """Prompts of more than `above` and at most `up_to` tokens whose answers have one of `sizes`."""

    name: str
    above: int
    up_to: int
    sizes: tuple[str, ...]

    def holds(self, input_tokens: int, size: str) -> bool:
        return self.above < input_tokens <= self.up_to and size in self.sizes


def cells(trace: Iterable[Arrival], edges: Edges, count: int = NINE) -> tuple[Cell, ...]:
    """In the order of pools: short prompts first, then short answers."""
    if count == NINE:
        uppers = (0, edges.input[0], edges.input[1], LONGEST)
        bands = ((name, SIZES.index(name[0]), (name[1],)) for name in CLASSES)
        return tuple(Cell(name, uppers[band], uppers[band + 1], sizes) for name, band, sizes in bands)
    groups: tuple[tuple[str, ...], ...] = tuple((size,) for size in SIZES)
    if count == 2:
        groups = (SIZES[:2], SIZES[2:])
    elif count == 1:
        groups = (SIZES,)
    prompts: dict[str, list[int]] = {size: [] for size in SIZES}
    for arrival in trace:
        prompts[edges.output_size(arrival.output_tokens)].append(arrival.input_tokens)
    found = []
    for place, sizes in enumerate(groups):
        bands_of_it = count // len(groups) + (place >= len(groups) - count % len(groups))
        uppers_of_it = _cuts(sorted(length for size in sizes for length in prompts[size]), bands_of_it)
        for band, (above, up_to) in enumerate(zip((0, *uppers_of_it), (*uppers_of_it, LONGEST), strict=True)):
            found.append(Cell(f"{''.join(sizes)}{band + 1}", above, up_to, sizes))
    return tuple(sorted(found, key=lambda cell: (cell.up_to, SIZES.index(cell.sizes[-1]))))


def pool_of_cells(pools: Sequence[Cell]) -> PoolOf:
    """Each request to its cell's pool; where that was left out, to the next later one, or to the last."""
    by_size = {size: [(cell.up_to, n) for n, cell in enumerate(pools) if size in cell.sizes] for size in SIZES}

    def pool_of(spec: ServiceSpec, arrival: Arrival, output_size: str) -> int:
        fitting = by_size[output_size]
        place = bisect_left(fitting, (arrival.input_tokens, -1))
        return fitting[place][1] if place < len(fitting) else len(pools) - 1

    return pool_of


def _cuts(ordered: Sequence[int], bands: int) -> list[int]:
    """Upper edges between bands of equally many; fewer where lengths coincide."""
    if not ordered:
        return []
    edges = [ordered[max(0, -(-len(ordered) * band // bands) - 1)] for band in range(1, bands)]
    return [edge for edge in dict.fromkeys(edges) if edge < ordered[-1]]
