"""Profiles for tests: a made-up card whose latency and watts follow simple laws, and single rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from profiles.profile import Point, Profile, Provenance

PROVENANCE = Provenance(
    origin="emulated",
    made_on="2026-11-01",
    command="joulegate profile measure --service test",
    energy_counter="emulated",
    steady_state="made up",
    engine="emulated-vllm",
    engine_version="1.2.3",
    driver="555.1",
    source="test",
    limits={"max_num_seqs": 256},
)
ROW = Point(
    tp=4,
    clock_mhz=1200,
    load="LL",
    input_tokens=4000.0,
    output_tokens=600.0,
    offered_rps=1.0,
    prefill_tps=4000.0,
    running=20.0,
    context_tokens=4300.0,
    ttft_p50_s=0.3,
    ttft_p99_s=0.6,
    tbt_p50_s=0.02,
    tbt_p99_s=0.03,
    watts=1200.0,
    j_per_output_token=2.0,
    output_tps=600.0,
    kv_share=0.3,
    waiting=0.0,
    saturated=False,
    requests=100,
    window_s=60.0,
)


def row(**changed: Any) -> Point:
    """ROW with changes; joules per token follow watts and load unless they are given."""
    point = replace(ROW, **changed)
    if "output_tps" not in changed:
        point = replace(point, output_tps=point.offered_rps * point.output_tokens)
    if "j_per_output_token" not in changed and point.output_tps:
        point = replace(point, j_per_output_token=point.watts / point.output_tps)
    return point


def law(load: str, tp: int, clock_mhz: int, rps: float, cliff: float) -> Point:
    speed = min(1.0, clock_mhz / 1700) * (tp / 4) ** 0.7
    prompt = {"S": 0.03, "M": 0.08, "L": 0.3}[load[0]]
    tokens = {"S": 80.0, "M": 250.0, "L": 600.0}[load[1]]
    used = rps / cliff
    tbt_s = 0.016 / speed * (1 + used)
    return row(
        load=load,
        tp=tp,
        clock_mhz=clock_mhz,
        offered_rps=rps,
        output_tokens=tokens,
        running=rps * tokens * tbt_s,
        ttft_p50_s=prompt / speed * (1 + used),
        ttft_p99_s=2 * prompt / speed * (1 + 2 * used**3),
        tbt_p50_s=tbt_s,
        tbt_p99_s=tbt_s * (1.2 + used),
        watts=tp * (110 + (clock_mhz / 1980) ** 2.2 * (150 + 250 * used**0.5)),
        saturated=used >= 1,
    )


def cliff_of(load: str, tp: int, clock_mhz: int) -> float:
    base = {"S": 3.0, "M": 1.5, "L": 0.6}[load[0]] / {"S": 1.0, "M": 2.0, "L": 4.0}[load[1]]
    return round(4 * base * (tp / 4) ** 1.1 * min(1.0, clock_mhz / 1700), 3)


def sample(
    loads: Sequence[str] = ("SS", "LL"),
    tps: Sequence[int] = (2, 4, 8),
    clocks: Sequence[int] = (800, 1200, 1600, 1980),
    shares: Sequence[float] = (0.1, 0.4, 0.7, 0.9, 1.0),
) -> Profile:
    """Held rows at shares of each cell's cliff and a saturated one at the cliff."""
    points = [
        law(load, tp, clock, round(cliff_of(load, tp, clock) * share, 4), cliff_of(load, tp, clock))
        for load in loads
        for tp in tps
        for clock in clocks
        for share in shares
    ]
    return profile(points)


def profile(points: Sequence[Point]) -> Profile:
    return Profile("H100-SXM-80G", "test-70b", PROVENANCE, tuple(points))
