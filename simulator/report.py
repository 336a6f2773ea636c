"""Figures of a run as commands print them. Owns the JSON keys; every energy figure here is modelled, for no counter was
read. A figure that cannot be had (no such part, no price given) is left out, never made up."""

from __future__ import annotations

from dataclasses import dataclass

from core.request import Outcome
from core.service import CLASSES
from simulator.run import Ran
from simulator.sketch import Sketch

J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Rates:
    """What the operator pays and emits; None = not told."""

    usd_per_gpu_hour: float | None = None
    gco2_per_kwh: float | None = None


def figures(ran: Ran, rates: Rates) -> dict[str, object]:
    """One policy's row."""
    tally, hours = ran.tally, ran.duration_s / 3600
    good, kwh = tally.good_tokens, ran.joules / J_PER_KWH
    gpu_hours = ran.gpu_s.held / 3600
    tbt = tally.gaps.pooled()
    row: dict[str, object] = {
        "energy_kwh": kwh,
        "energy_owned_kwh": ran.owned_joules / J_PER_KWH,
        "energy_by_cause": {cause: joules / J_PER_KWH for cause, joules in ran.by_cause().items()},
        "energy_quality": "modelled",
        "j_per_good_token": ran.joules / good if good else None,
        "watts_p50": ran.meter.watts_quantile(0.5),
        "watts_p99": ran.meter.watts_quantile(0.99),
        **_times("ttft", tally.ttft()),
        **_times("tbt", tbt),
        "attainment": {name: one.attainment for name, one in zip(CLASSES, tally.classes, strict=True) if one.arrived},
        "attainment_all": tally.attainment_all,
        "keeps_promise": tally.keeps_promise(),
        "by_class": _by_class(ran),
        "gpu_hours": gpu_hours,
        "gpus": ran.setup.gpus,
        "instances": {pool.name: pool.instances for pool in ran.setup.spec.pools},
        "switches_per_hour_per_100_gpus": 100 * ran.switches.starts / hours / ran.setup.gpus if hours else 0.0,
        "stops": ran.switches.stops,
        "clock_writes": ran.switches.clock_writes,
        "preemptions": ran.counters.preemptions,
        "shed": tally.outcomes[Outcome.SHED],
        "failed": tally.outcomes[Outcome.FAILED] + tally.outcomes[Outcome.CUT],
        "requests": tally.total_arrived,
        "duration_s": ran.duration_s,
    }
    if rates.usd_per_gpu_hour is not None:
        row["cost_usd"] = gpu_hours * rates.usd_per_gpu_hour
    if rates.gco2_per_kwh is not None:
        row["gco2"] = kwh * rates.gco2_per_kwh
    return row


def _times(name: str, sketch: Sketch) -> dict[str, float | None]:
    return {f"{name}_p{round(q * 100)}_s": sketch.quantile(q) for q in (0.5, 0.9, 0.99)}


def _by_class(ran: Ran) -> dict[str, object]:
    tally = ran.tally
    return {
        name: {
            "requests": one.arrived,
            "attainment": one.attainment,
            **_times("ttft", one.ttft),
            **_times("tbt", tally.gaps.group(group)),
        }
        for group, (name, one) in enumerate(zip(CLASSES, tally.classes, strict=True))
        if one.arrived
    }


def table(policies: dict[str, dict[str, object]]) -> str:
    """A line per policy, for people."""
    head = ("policy", "GPUs", "kWh", "owned kWh", "J/token", "W p50", "W p99", "TTFT p50", "TTFT p99", "TBT p99",
            "attained", "shed")  # fmt: skip
    lines = [head]
    for name, row in policies.items():
        lines.append((
            name, str(row["gpus"]), _text(row["energy_kwh"], 2), _text(row["energy_owned_kwh"], 2),
            _text(row["j_per_good_token"], 2), _text(row["watts_p50"], 0), _text(row["watts_p99"], 0),
            _text(row["ttft_p50_s"], 3), _text(row["ttft_p99_s"], 3), _text(row["tbt_p99_s"], 4),
            _text(row["attainment_all"], 4), str(row["shed"]),
        ))  # fmt: skip
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _text(value: object, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float | int) else "-"
