"""`make paper`: DynamoLLM's evaluation on our simulator, its figures beside ours. See docs/paper.md.

Every run is kept under its question, its trace and its code; started again, only what is missing is run. Files are
written after each part: paper.json, paper.html, table.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from html import escape
from pathlib import Path
from typing import Any

from bench.paper_plan import QUICK, SCALE, Part, Sizes, capacity, parts
from simulator.answer_cache import AnswerCache
from simulator.case import CONTEXT_TOKENS
from simulator.compare import Compared, Plan, compare
from simulator.document import document, sim
from simulator.experiment import Experiment
from simulator.html_report import page, section, table
from simulator.load import read_rows
from simulator.plots import bars, energy_by_cause
from simulator.registry import POLICIES

DATA = Path("../shared/data")
HEADS = ["experiment", "policy", "kWh", "ours / SinglePool", "paper", "attained", "worst class", "x bound", "GPU-h"]


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    sizes = QUICK if options.quick else Sizes()
    rows = read_rows(options.trace, CONTEXT_TOKENS)
    cache = AnswerCache(options.out / "runs")
    there = tuple(policy.name for policy in POLICIES)
    chosen = there if options.policies is None else tuple(name for name in there if name in options.policies.split(","))
    done: list[Compared] = []

    def ask(experiments: list[Experiment], names: tuple[str, ...], *, bound: bool = False) -> list[Compared]:
        plan = Plan(names, jobs=options.jobs, bound=bound)
        found = compare(experiments, rows, plan, note, lambda n, of, what: note(f"  {n}/{of} {what}"), cache)
        done.extend(found)
        return found

    note(f"SinglePool's capacity with {sizes.servers} servers")
    rate = capacity(options.trace, sizes, ask)
    found: dict[str, Any] = {"capacity_rps": rate, "sizes": vars_of(sizes), "parts": {}}
    all_parts = parts(options.trace, options.week, sizes, rate, chosen)
    wanted = all_parts if options.only is None else [one for one in all_parts if one.name in options.only.split(",")]
    for part in wanted:
        note(f"{part.title}: {', '.join(part.policies)}")
        plan = Plan(part.policies)
        compared = ask(list(part.experiments.values()), part.policies, bound=part.bounded and not options.quick)
        documents = [document(one, plan, rows) for one in compared]
        found["parts"][part.name] = dict(zip(part.experiments, documents, strict=True))
        write(options.out, {**found, "sim": sim(done)}, [one for one in wanted if one.name in found["parts"]])
    note(f"{cache.found} runs were there already; {options.out}/paper.html")
    return 0


def write(out: Path, found: dict[str, Any], finished: list[Part]) -> None:
    (out / "paper.json").write_text(json.dumps(found, indent=1) + "\n")
    lines, sections = [], []
    for part in finished:
        documents = found["parts"][part.name]
        of_part = [line for label, one in documents.items() for line in beside(part, label, one)]
        lines += of_part
        sections.append(html_of(part, documents, of_part))
    published = {name for part in finished for of in part.paper.values() for name in of}
    missing = sorted(published - {line[1] for line in lines})
    notes = [f"Not run, for the policy is not there: {', '.join(missing)}."] if missing else []
    text = [" | ".join(HEADS), " | ".join("---" for _ in HEADS), *(" | ".join(line) for line in lines)]
    (out / "table.md").write_text("\n".join([*(f"| {line} |" for line in text), "", *notes]) + "\n")
    sections = [*(f"<p>{escape(one)}</p>" for one in notes), *sections]
    (out / "paper.html").write_text(page("DynamoLLM's evaluation, simulated", sections))


def beside(part: Part, label: str, document: dict[str, Any]) -> list[list[str]]:
    """Rows of HEADS."""
    policies, published = document["policies"], part.paper.get(label, {})
    single = policies.get("singlepool", {}).get("energy_kwh")
    lines = []
    for name, row in policies.items():
        ratio = row["energy_kwh"] / single if single else None
        lines.append([
            part.name if label in part.name else f"{part.name} {label}", name, text(row["energy_kwh"]), text(ratio, 2),
            text(published.get(name), 2), text(row["attainment_all"], 4), text(row["worst_class_attainment"], 4),
            text(row["times_bound"], 2), text(row["gpu_hours"], 1),
        ])  # fmt: skip
    return lines


def html_of(part: Part, documents: dict[str, Any], lines: list[list[str]]) -> str:
    ours: dict[str, dict[str, float]] = {}
    for label, one in documents.items():
        single = one["policies"].get("singlepool", {}).get("energy_kwh")
        for name, row in one["policies"].items() if single else ():
            ours.setdefault(f"{name}, ours", {})[label] = row["energy_kwh"] / single
            if name in part.paper.get(label, {}):
                ours.setdefault(f"{name}, paper", {})[label] = part.paper[label][name]
    pictures = {"energy, SinglePool = 1": bars(ours, "kWh / SinglePool's")} if ours else {}
    head = f"<h2>{escape(part.title)}</h2><p>{escape(part.note)}</p>{table(HEADS, lines)}"
    first = next(iter(documents.values()))
    if len(documents) == 1:
        return head + section("", first, {**pictures, "energy by cause": energy_by_cause(first)})
    drawn = "".join(svg[svg.index("<svg") :] for svg in pictures.values())
    each = "".join(section(f"{part.title}: {label}", one, {}) for label, one in documents.items())
    return f"{head}{drawn}<details><summary>each</summary>{each}</details>"


def text(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def vars_of(sizes: Sizes) -> dict[str, float]:
    return {name: getattr(sizes, name) for name in sizes.__slots__}


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=f"DynamoLLM's evaluation, on the conversation hour times {SCALE:g}")
    parser.add_argument("--trace", type=Path, default=DATA / "azure_llm_2023/AzureLLMInferenceTrace_conv.csv")
    parser.add_argument("--week", type=Path, default=DATA / "azure_llm_2024_hourly/azure_llm.csv")
    parser.add_argument("--out", type=Path, default=Path("build/paper"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--policies", help="only these of the parts' policies, separated by commas")
    parser.add_argument("--only", help="only these parts, separated by commas")
    parser.add_argument("--quick", action="store_true", help="seconds of everything: shows that it runs, nothing else")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
