"""From windows to rows: quantiles, means over repeats and their confidence. Pure; docs/measuring.md defines each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pools.measure import Measured, Window
from profiles.profile import Point

# Two-sided 95 % quantile of Student's t for 1, 2, ... degrees of freedom; beyond them the normal one.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MEANS = (
    *("prefill_tps", "running", "context_tokens", "ttft_p50_s", "ttft_p99_s", "tbt_p50_s", "tbt_p99_s", "watts"),
    *("j_per_output_token", "output_tps", "kv_share", "waiting"),
)


def nearest_rank(values: Sequence[tuple[float, int]], q: float) -> float:
    """The q-quantile of values that each count so many times; 0 if there are none."""
    total = sum(count for _, count in values)
    rank, seen = math.ceil(q * total), 0
    for value, count in sorted(values):
        seen += count
        if seen >= rank:
            return value
    return 0.0


def measured_of(window: Window, origin: str) -> Measured:
    """The row of one window. A request without a first token counts with the time it has waited so far."""
    probe = window.probe
    window_s = window.closed.at_s - window.opened.at_s
    joules = window.closed.joules - window.opened.joules
    waits = [((r.first_s or window.closed.at_s) - r.arrived_s, 1) for r in window.requests]
    gaps_s = sum(gap_s * count for gap_s, count in window.gaps)
    point = Point(
        tp=probe.tp,
        clock_mhz=probe.clock_mhz,
        load=probe.lengths.name,
        input_tokens=probe.lengths.input_tokens,
        output_tokens=probe.lengths.output_tokens,
        offered_rps=probe.rps,
        prefill_tps=window.first_tokens * probe.lengths.input_tokens / window_s,
        # Little's law: the seconds that sequences spent between two of their tokens, per second.
        running=gaps_s / window_s,
        context_tokens=probe.lengths.input_tokens + probe.lengths.output_tokens / 2,
        ttft_p50_s=nearest_rank(waits, 0.5),
        ttft_p99_s=nearest_rank(waits, 0.99),
        tbt_p50_s=nearest_rank(window.gaps, 0.5),
        tbt_p99_s=nearest_rank(window.gaps, 0.99),
        watts=joules / window_s,
        j_per_output_token=joules / max(1, window.output_tokens),
        output_tps=window.output_tokens / window_s,
        kv_share=window.kv_share,
        waiting=window.waiting,
        saturated=window.saturated,
        requests=len(window.requests),
        window_s=window_s,
        origin=origin,
    )
    return Measured(probe, point, window.instance_s, window.reason)


def half_width(values: Sequence[float]) -> float:
    """Half width of the 95 % confidence interval of the mean; 0 for a single value, which has none."""
    n = len(values)
    if n < 2:
        return 0.0
    mean = sum(values) / n
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    return (T95[n - 2] if n - 2 < len(T95) else 1.96) * math.sqrt(variance / n)


def pooled(repeats: Sequence[Point]) -> Point:
    """One row of several windows of the same load: their means, with the confidence of watts and of TTFT p99."""
    first = repeats[0]
    if len(repeats) == 1:
        return first
    means = {name: sum(getattr(p, name) for p in repeats) / len(repeats) for name in MEANS}
    return replace(
        first,
        **means,
        requests=sum(p.requests for p in repeats),
        window_s=sum(p.window_s for p in repeats),
        repeats=len(repeats),
        saturated=sum(p.saturated for p in repeats) * 2 > len(repeats),
        watts_ci=half_width([p.watts for p in repeats]),
        ttft_p99_ci_s=half_width([p.ttft_p99_s for p in repeats]),
    )


def confident(point: Point, watts_share: float = 0.03, ttft_share: float = 0.15) -> bool:
    """Whether more repeats are not worth their time."""
    return (
        point.repeats >= 2
        and point.watts_ci <= watts_share * point.watts
        and point.ttft_p99_ci_s <= ttft_share * point.ttft_p99_s
    )
