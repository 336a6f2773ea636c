"""Figures of a run as commands print them. Owns the JSON keys; every energy figure here is modelled, for no counter was
read. A figure that cannot be had is null or left out, never made up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.request import Outcome
from core.service import CLASSES
from simulator.faults import NO_FAULTS
from simulator.run import Ran
from simulator.sketch import Sketch

J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Rates:
    """What is paid and emitted. The defaults, each to be replaced by the operator's own:

    11.06 USD per GPU-hour: DynamoLLM (HPCA 2025, V-F) saves 1362.7 USD an hour with 15.4 servers of eight H100.
    0.0407 USD per kWh: mean of 2024 of CAISO's hourly day-ahead prices (electricity_price_hourly_4zones, US-CAL-CISO).
    240.9 g CO2 per kWh: mean of 2022 of CAISO's hourly carbon intensity (pause_resume_47zones_hourly, US-CAL-CISO).
    """

    usd_per_gpu_hour: float = 11.06
    usd_per_kwh: float = 0.0407
    gco2_per_kwh: float = 240.9


def figures(ran: Ran, rates: Rates, power_cap_w: float | None = None) -> dict[str, Any]:
    """One policy's row."""
    tally, hours = ran.tally, ran.duration_s / 3600
    good, kwh = tally.good_tokens, ran.joules / J_PER_KWH
    gpu_hours = ran.gpu_s.held / 3600
    tbt = tally.gaps.pooled()
    row: dict[str, Any] = {
        "energy_kwh": kwh,
        "energy_owned_kwh": ran.owned_joules / J_PER_KWH,
        "energy_by_cause": {cause: joules / J_PER_KWH for cause, joules in ran.by_cause().items()},
        "energy_quality": "modelled",
        "j_per_good_token": ran.joules / good if good else None,
        "watts_p50": ran.meter.watts_quantile(0.5),
        "watts_p99": ran.meter.watts_quantile(0.99),
        **_times("ttft", tally.ttft()),
        **_times("tbt", tbt),
        **_times("e2e", tally.whole),
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
        "parks": ran.switches.parks,
        "migrations": tally.migrations,
        "shed": tally.outcomes[Outcome.SHED],
        "failed": tally.outcomes[Outcome.FAILED] + tally.outcomes[Outcome.CUT],
        "requests": tally.total_arrived,
        "duration_s": ran.duration_s,
        "cost_usd": gpu_hours * rates.usd_per_gpu_hour + kwh * rates.usd_per_kwh,
        "cost_energy_usd": kwh * rates.usd_per_kwh,
        "gco2": kwh * rates.gco2_per_kwh,
    }
    if ran.setup.faults != NO_FAULTS:
        row["faults"] = ran.met.as_dict()
    if power_cap_w is not None:
        row["over_power_cap"] = ran.meter.share_above(power_cap_w)
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
