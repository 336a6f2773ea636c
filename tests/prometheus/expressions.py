"""Every PromQL expression that is shipped: of rules and of dashboards, with what Grafana fills in for its variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
FILLED = {"$__rate_interval": "1m", "$__range": "1h", "$service": ".*"}
METRIC = re.compile(r"\bjoulegate(?:_[a-z_]+|(?::[a-z0-9_]+)+)")


def rules() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in ("recording.yml", "alerts.yml"):
        for group in yaml.safe_load((RULES / name).read_text())["groups"]:
            for rule in group["rules"]:
                yield rule.get("record") or rule["alert"], rule


def panels() -> Iterator[tuple[str, str]]:
    """(where, expression) of all panels and annotations."""
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']} {target['refId']}", filled(target["expr"])
        for note in board["annotations"]["list"]:
            yield f"{path.stem}: {note['name']}", filled(note["expr"])


def filled(expression: str) -> str:
    for variable, value in FILLED.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression


def expressions() -> list[tuple[str, str]]:
    return [*((name, rule["expr"]) for name, rule in rules()), *panels()]


def names_in(expression: str) -> set[str]:
    return set(METRIC.findall(expression))
