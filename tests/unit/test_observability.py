"""Metrics, rules, dashboards and their documents agree: every expression parses, every metric it names exists, every
metric and every alert is explained."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import promql_parser
import pytest
from prometheus_client.core import Metric

from core.clock import SystemClock
from core.recorder import NullRecorder
from gateway.config import Config
from gateway.timing import Timing
from gateway.wiring import Running, build
from tests.prometheus.expressions import DASHBOARDS, ROOT, expressions, names_in, rules

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("_info",)}
AGENTS = re.compile(r"^joulegate_agent_")  # of the node agent's own page


@pytest.fixture(scope="module")
def families() -> list[Metric]:
    service = {
        "model": "m", "profile": "llama-3.1-8b", "launcher": {"kind": "static"},
        "pools": [{"name": "all", "serves": ["S", "M", "L"], "urls": ["http://127.0.0.1:9"]}],
    }  # fmt: skip
    running: Running = build(
        Config.model_validate({"services": {"svc": service}, "energy": {"path": None}}),
        SystemClock(),
        NullRecorder(),
        {},
    )
    running.metrics.finished(
        {"service": "svc", "class": "SS", "attempts": 1, "e2e_s": 1.0, "route": "/v1/completions", "pool": "all",
         "outcome": "completed", "status": 200},
        Timing(0.0, 1.0, 1.0),
    )  # fmt: skip
    return list(running.metrics.collect())


def exposed(families: Iterable[Metric]) -> set[str]:
    return {one.name + suffix for one in families for suffix in SUFFIXES[one.type]} | {"joulegate_run_log_rows_total"}


@pytest.mark.parametrize(("where", "expression"), expressions(), ids=lambda text: text[:60])
def test_an_expression_parses_and_names_what_exists(where: str, expression: str, families: list[Metric]) -> None:
    promql_parser.parse(expression)
    known = exposed(families) | {name for name, _ in rules()}
    unknown = {name for name in names_in(expression) if name not in known and not AGENTS.match(name)}
    assert not unknown, f"{where}: {unknown}"


def test_every_metric_says_what_it_is_and_stands_in_the_document(families: list[Metric]) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for one in families:
        assert one.name.startswith("joulegate_") and one.documentation.endswith("."), one.name
        assert len(one.documentation.split()) >= 2 and "joulegate_" not in one.documentation
        full = one.name + (SUFFIXES[one.type][0] if one.type == "counter" else "")
        assert f"`{full}`" in page, f"docs/metrics.md lacks {full}"


def test_every_alert_has_a_section_in_the_runbook_and_says_how_bad_it_is() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text()
    alerts = {name: rule for name, rule in rules() if "alert" in rule}
    assert len(alerts) >= 15
    for name, rule in alerts.items():
        assert f"### {name}\n" in page, f"docs/runbook.md has no section {name}"
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"]
    assert set(re.findall(r"^### (Joulegate\w+)$", page, re.MULTILINE)) == set(alerts)


def test_dashboards_are_whole() -> None:
    assert {path.stem for path in DASHBOARDS} == {"operator", "energy"}
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        ids = [panel["id"] for panel in board["panels"]]
        assert len(ids) == len(set(ids)) >= 15
        places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
        assert all(x + w <= 24 for x, _, w, _ in places) and len(set(places)) == len(places)
