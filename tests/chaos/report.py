"""What a chaos run says of itself: seams and how soon losses were noticed, from the gateway's run log; leaks; slopes."""

from __future__ import annotations

import argparse
import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.faults import Faults, Strike
from tests.chaos.mix import Tally

# What breaks every connection to an instance in the moment that it is done. A server whose engine was killed has to
# notice that itself first.
SUDDEN = frozenset({"kill9", "cut", "refuse", "half_close"})
SUDDEN_WHYS = frozenset({"cut", "ended", "refused"})
SOON_S = 1.0  # a loss later than this after a strike is not counted as its effect
Seam = Mapping[str, Any]


def slope(samples: Sequence[tuple[int, int]]) -> float | None:
    """Bytes per request, least squares over the later half; None from too few."""
    late = samples[len(samples) // 2 :]
    if len(late) < 5 or late[-1][0] == late[0][0]:
        return None
    mean_x = sum(x for x, _ in late) / len(late)
    mean_y = sum(y for _, y in late) / len(late)
    return sum((x - mean_x) * (y - mean_y) for x, y in late) / sum((x - mean_x) ** 2 for x, _ in late)


def rank(values: Sequence[float], share: float) -> float | None:
    """Nearest rank, to 0.1 ms."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 4) if ordered else None


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Of the run log, all lives of the gateway together. A killed one may have left half a line."""
    lines = [line for path in folder.glob("run.jsonl*") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("}")]


def noticed_s(seams: Sequence[Seam], strikes: Sequence[Strike], numbers: Mapping[str, int]) -> list[float]:
    """From the moment in which an instance was struck dead to the gateway's notice, once per stream that it had."""
    found = []
    for seam in seams:
        if seam["why"] not in SUDDEN_WHYS:
            continue
        mine = [strike for strike in strikes if strike.number == numbers.get(seam["instance"])]
        before = bisect_right([strike.t for strike in mine], seam["t"]) - 1
        if before >= 0 and mine[before].kind in SUDDEN and seam["t"] - mine[before].t <= SOON_S:
            found.append(seam["t"] - mine[before].t)
    return found


def report(
    args: argparse.Namespace,
    tally: Tally,
    faults: Faults,
    took_s: float,
    rows: Sequence[Mapping[str, Any]],
    numbers: Mapping[str, int],
) -> dict[str, Any]:
    """`seam_own`: a pause less the time from the sending of the rest to its first text."""
    streams = [row["seams"] for row in rows if "seams" in row]
    seams = [seam for stream in streams for seam in stream]
    longest = [max(seam["pause_s"] for seam in stream) for stream in streams]
    own = [seam["pause_s"] - seam["ttft_s"] for seam in seams]
    noticed = noticed_s(seams, faults.strikes, numbers)
    return {
        "engine": args.engine,
        "seed": args.seed,
        "duration_s": round(took_s, 1),
        **vars(tally),
        "faults": dict(faults.counts),
        "moved": len(streams),
        "seam_p50_s": rank(longest, 0.5),
        "seam_p99_s": rank(longest, 0.99),
        "seam_own_p50_s": rank(own, 0.5),
        "seam_own_p99_s": rank(own, 0.99),
        "noticed": len(noticed),
        "noticed_p50_s": rank(noticed, 0.5),
        "noticed_p99_s": rank(noticed, 0.99),
        "gave_up": dict(Counter(row["gave_up"] for row in rows if "gave_up" in row)),
        "not_as_ordered": faults.failed,
    }
