"""A comparison as one JSON document. Owns its layout and the table for people; a policy's row is report.py's.

Everything but `sim` follows from the questions and their seeds, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from simulator.compare import Compared, Plan
from simulator.load import TraceLoad, TraceRows
from simulator.registry import policy_of
from simulator.repeats import together

TIMES = (("times_bound", "bound_kwh"), ("times_fluid_bound", "fluid_bound_kwh"))
COLUMNS = (
    ("GPUs", "gpus", 0), ("kWh", "energy_kwh", 3), ("owned kWh", "energy_owned_kwh", 3), ("x bound", "times_bound", 2),
    ("x fluid", "times_fluid_bound", 2), ("J/good tok", "j_per_good_token", 2), ("W p50", "watts_p50", 0),
    ("W p99", "watts_p99", 0), ("TTFT p50", "ttft_p50_s", 3), ("p90", "ttft_p90_s", 3), ("p99", "ttft_p99_s", 3),
    ("TBT p50", "tbt_p50_s", 4), ("p90", "tbt_p90_s", 4), ("p99", "tbt_p99_s", 4), ("attained", "attainment_all", 4),
    ("worst class", "worst", 4), ("GPU-h", "gpu_hours", 1), ("switch/h/100", "switches_per_hour_per_100_gpus", 1),
    ("moved", "migrations", 0), ("shed", "shed", 0), ("USD", "cost_usd", 2), ("gCO2", "gco2", 0),
)  # fmt: skip


def document(compared: Compared, plan: Plan, rows_of_trace: TraceRows) -> dict[str, Any]:
    experiment, first = compared.experiment, plan.seeds[0]
    facts, load = compared.facts[first], experiment.load
    rows = {name: [_bounded(compared, seed, row) for seed, row in found.items()]
            for name, found in compared.rows.items()}  # fmt: skip
    found: dict[str, Any] = {
        "trace": {
            "requests": facts.requests,
            "duration_s": facts.duration_s,
            "scale": load.scale if isinstance(load, TraceLoad) else 1.0,
            "tokens_per_s": (facts.input_tokens + facts.output_tokens) / max(1.0, facts.duration_s),
            "excluded_empty": rows_of_trace.excluded.empty,
            "excluded_too_long": rows_of_trace.too_long(experiment.spec.context_tokens),
        },
        "service": experiment.spec.name,
        "slo": {"ttft_s": dict(experiment.spec.slo.ttft_s), "tbt_s": experiment.spec.slo.tbt_s},
        "edges": {"input": list(experiment.spec.edges.input), "output": list(experiment.spec.edges.output)},
        "predictor": experiment.predictor,
        "faults": asdict(experiment.faults),
        "seed": first,
        "seeds": list(plan.seeds),
        "gpus": compared.gpus[first],
        "static_instances": compared.static.get(first, experiment.static_instances),
        "rates": {
            "usd_per_gpu_hour": plan.rates.usd_per_gpu_hour,
            "usd_per_kwh": plan.rates.usd_per_kwh,
            "gco2_per_kwh": plan.rates.gco2_per_kwh,
        },
    }
    bounds = [compared.bounds[seed] for seed in plan.seeds if seed in compared.bounds]
    of_bounds = together(bounds) if bounds else {}
    found |= {key: of_bounds.get(key) for key in ("bound_kwh", "fluid_bound_kwh", "bound_status", "bound_gap")}
    found["policies"] = {name: {**together(seeds), "source": policy_of(name).source} for name, seeds in rows.items()}
    if len(plan.seeds) > 1:
        found["by_seed"] = {
            str(seed): {name: rows[name][number] for name in rows} for number, seed in enumerate(plan.seeds)
        }
    return found


def sim(all_compared: Sequence[Compared]) -> dict[str, Any]:
    """What the simulating itself took: the one part that differs from run to run."""
    cpu_s = sum(one.cpu_s for one in all_compared)
    requests = sum(one.requests for one in all_compared)
    runs = sum(one.runs for one in all_compared)
    return {
        "requests_per_cpu_s": requests / cpu_s if cpu_s else None, "cpu_s": cpu_s, "requests": requests, "runs": runs,
    }  # fmt: skip


def _bounded(compared: Compared, seed: int, row: dict[str, Any]) -> dict[str, Any]:
    bounds = compared.bounds.get(seed, {})
    found = {}
    for name, bound in TIMES:
        kwh = bounds.get(bound)
        found[name] = row["energy_kwh"] / kwh if kwh else None
    judged = [one["attainment"] for one in row["by_class"].values() if one["requests"] >= 100]
    return {**row, **found, "worst_class_attainment": min(judged, default=None)}


def table_rows(policies: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(heads, a row of cells per policy)."""
    heads = ["policy", *(head for head, _, _ in COLUMNS)]
    lines = []
    for name, row in policies.items():
        lines.append([name, *(_text(row, key, digits) for _, key, digits in COLUMNS)])
    return heads, lines


def summary(title: str, found: Mapping[str, Any]) -> str:
    """The comparison as text."""
    head = f"{title}: {headline(found)}" if title else headline(found)
    heads, lines = table_rows(found["policies"])
    class_heads, by_class = attainment_rows(found["policies"])
    return "\n\n".join((head, aligned([heads, *lines]), aligned([class_heads, *by_class])))


def headline(found: Mapping[str, Any]) -> str:
    trace = found["trace"]
    left_out = trace["excluded_empty"] + trace["excluded_too_long"]
    return (
        f"{trace['requests']} requests in {trace['duration_s']:.0f} s, {trace['tokens_per_s']:.0f} tokens/s, "
        f"{left_out} left out; {found['gpus']} GPUs; bound {_number(found['bound_kwh'], 3)} kWh, "
        f"fluid {_number(found['fluid_bound_kwh'], 3)} kWh; energy is modelled"
    )


def attainment_rows(policies: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    classes = list(dict.fromkeys(name for row in policies.values() for name in row["attainment"]))
    lines = [[name, *(_number(row["attainment"].get(one), 4) for one in classes)] for name, row in policies.items()]
    return ["attainment", *classes], lines


def aligned(lines: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _text(row: dict[str, Any], key: str, digits: int) -> str:
    text = _number(row.get("worst_class_attainment" if key == "worst" else key), digits)
    interval = row.get("ci95", {}).get(key)
    if key == "energy_kwh" and interval:
        text += f" +-{(interval[1] - interval[0]) / 2:.{digits}f}"
    return text


def _number(value: object, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, float | int) else "-"
