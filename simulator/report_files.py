"""A folder with all of a comparison: report.json, timelines.json, report.html and its pictures. Owns their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.html_report import page, section
from simulator.plots import energy_by_cause, over_time, watts

Timelines = Mapping[str, Mapping[str, Any]]


def write(out: Path, found: Mapping[str, Any], reports: Mapping[str, Any], timelines: Mapping[str, Timelines]) -> None:
    """`found` is written as it is; `reports` and `timelines` its parts by title (one, "", without a sweep)."""
    out.mkdir(parents=True, exist_ok=True)
    sections = []
    for title, report in reports.items():
        drawn = pictures(report, timelines[title])
        for name, svg in drawn.items():
            (out / f"{_file(title, name)}.svg").write_text(svg, encoding="utf-8")
        sections.append(section(title, report, drawn))
    service = next(iter(reports.values()))["service"]
    (out / "report.html").write_text(page(f"joulegate simulate: {service}", sections), encoding="utf-8")
    (out / "report.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (out / "timelines.json").write_text(json.dumps(timelines) + "\n", encoding="utf-8")


def pictures(report: Mapping[str, Any], timelines: Timelines) -> dict[str, str]:
    """SVG text by name: of all policies together, then of each."""
    drawn = {"energy by cause": energy_by_cause(report)}
    if timelines:
        drawn["cluster watts"] = watts(timelines)
    return drawn | {name: over_time(columns) for name, columns in timelines.items()}


def _file(title: str, name: str) -> str:
    whole = f"{title} {name}".strip()
    return "-".join("".join(letter if letter.isalnum() else " " for letter in whole).split())
