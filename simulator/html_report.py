"""A comparison as one HTML page that needs nothing from elsewhere: tables and pictures inline. Owns its layout."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from simulator.document import attainment_rows, headline, table_rows

TEMPLATE = Path(__file__).with_name("report.html")
Pictures = Mapping[str, str]  # SVG text by name


def page(title: str, sections: list[str]) -> str:
    text = TEMPLATE.read_text(encoding="utf-8")
    return Template(text).substitute(title=escape(title), body="\n".join(sections))


def section(title: str, report: Mapping[str, Any], pictures: Pictures, notes: tuple[str, ...] = ()) -> str:
    """Tables of one report, then its pictures; those of single policies are folded away."""
    heads, lines = table_rows(report["policies"])
    missed = {name for name, row in report["policies"].items() if not row["keeps_promise"]}
    parts = [f"<h2>{escape(title)}</h2>" if title else "", f"<p>{escape(headline(report))}</p>"]
    parts += [f"<p>{escape(note)}</p>" for note in notes]
    parts += [table(heads, lines, missed), "<h3>Attainment by class</h3>", table(*attainment_rows(report["policies"]))]
    for name, svg in pictures.items():
        drawn = inline(svg)
        if name in report["policies"]:
            parts.append(f"<details><summary>{escape(name)} over time</summary>{drawn}</details>")
        else:
            parts.append(f"<h3>{escape(name)}</h3>{drawn}")
    return "\n".join(parts)


def table(heads: list[str], lines: list[list[str]], marked: set[str] | None = None) -> str:
    def row(cells: list[str], tag: str) -> str:
        kind = ' class="misses"' if marked and tag == "td" and cells[0] in marked else ""
        return f"<tr{kind}>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    rows = "\n".join(row(line, "td") for line in lines)
    return f'<div class="wide"><table>\n{row(heads, "th")}\n{rows}\n</table></div>'


def inline(svg: str) -> str:
    """Without the XML head, which has no place inside a page."""
    return svg[svg.index("<svg") :]
