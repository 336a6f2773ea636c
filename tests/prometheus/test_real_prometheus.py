"""Rules and dashboards in the hands of Prometheus itself: promtool checks and tests the rules; a real Prometheus scrapes a
real gateway and answers every expression. Needs `prometheus` and `promtool`: make test-prometheus."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from pools.ports import free_ports
from tests.e2e.process import Gateway, write_config
from tests.fakes import until
from tests.prometheus.expressions import ROOT, RULES, expressions, rules

MODEL = "m"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hello " * 30}], "max_tokens": 20}
EVER_EMPTY = {
    "operator: plans",
    "energy: plans",
    "energy: GPUs: watts by the node agents A",
}  # no plan and no agent here
QUIET = {  # nothing of the kind has happened, or not for long enough
    "operator: Retries, lost attempts, overruns A", "operator: Retries, lost attempts, overruns B",
    "operator: Retries, lost attempts, overruns C", "operator: Load against the plan B",
    "energy: Expected by the plan, and drawn A", "operator: Emergency ladder A", "operator: Emergency ladder B",
}  # fmt: skip


def tool(name: str) -> str:
    path = shutil.which(name)
    assert path, f"{name} is not on the PATH: apt-get install prometheus"
    return path


@pytest.mark.parametrize("words", [
    ("check", "rules", RULES / "recording.yml", RULES / "alerts.yml"), ("test", "rules", RULES / "tests.yml"),
    ("check", "config", ROOT / "deploy" / "prometheus" / "prometheus.yml"),
], ids=lambda words: "-".join(map(str, words[:2])))  # fmt: skip
def test_promtool_is_content(words: tuple[Any, ...]) -> None:
    done = subprocess.run([tool("promtool"), *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    launcher = {"kind": "emulated", "start_timeout_s": 60, "log_dir": str(folder)}
    pools = [{"name": "all", "serves": ["S", "M", "L"], "instances": 1, "tp": 1, "clock_mhz": 1980}]
    service = {"model": "m", "profile": "llama-3.1-8b", "pools": pools, "launcher": launcher, "context_tokens": 8192}
    made = Gateway(write_config(folder, {MODEL: service}))
    try:
        assert until(lambda: made.logged("ready"), 60), made.log()
        yield made
    finally:
        made.kill_all()


@pytest.fixture(scope="module")
def prometheus(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Scrapes every second, with the rules evaluated as often."""
    folder: Path = tmp_path_factory.mktemp("tsdb")
    for name in ("recording.yml", "alerts.yml"):
        tree = yaml.safe_load((RULES / name).read_text())
        for group in tree["groups"]:
            group["interval"] = "1s"
        (folder / name).write_text(yaml.safe_dump(tree))
    scraped = {"job_name": "joulegate", "static_configs": [{"targets": [f"127.0.0.1:{gateway.port}"]}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["recording.yml", "alerts.yml"], "scrape_configs": [scraped],
    }))  # fmt: skip
    (port,) = free_ports(1)
    argv = [tool("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            assert until(lambda: ready(client), 30)
            for _ in range(12):  # over a dozen scrapes, so that rates have something to see
                for _ in range(2):
                    gateway.http.post(f"{gateway.url}/v1/chat/completions", json={**BODY, "stream": False})
                    gateway.http.post(f"{gateway.url}/v1/chat/completions", json={**BODY, "stream": True})
                passed = scrapes(client)
                assert until(lambda seen=passed: scrapes(client) > seen, 10)
            yield client
    finally:
        process.terminate()
        process.wait(20)


def ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def asked(client: httpx.Client, expression: str) -> list[dict[str, Any]]:
    answer = client.get("/api/v1/query", params={"query": expression})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]["result"]


def scrapes(client: httpx.Client) -> float:
    found = asked(client, "count_over_time(up[1h])")
    return float(found[0]["value"][1]) if found else 0.0


def test_every_expression_is_answered_and_every_panel_shows_something(prometheus: httpx.Client) -> None:
    assert until(lambda: bool(asked(prometheus, "joulegate:j_per_good_token:5m")), 30)
    empty = {where for where, expression in expressions() if not asked(prometheus, expression)}
    alerts = {name for name, rule in rules() if "alert" in rule}
    assert empty - alerts <= EVER_EMPTY | QUIET, empty - alerts - EVER_EMPTY - QUIET


def test_prometheus_loaded_all_rules_and_none_fails(prometheus: httpx.Client) -> None:
    groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    loaded = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(loaded) == {name for name, _ in rules()}
    assert until(lambda: all(
        rule["health"] == "ok" for group in prometheus.get("/api/v1/rules").json()["data"]["groups"]
        for rule in group["rules"]
    ), 10)  # fmt: skip


def test_booked_and_counted_joules_agree_in_prometheus(prometheus: httpx.Client) -> None:
    difference = "abs(sum(joulegate_energy_joules_total) / sum(joulegate_energy_counted_joules_total) - 1)"
    (found,) = asked(prometheus, difference)
    assert float(found["value"][1]) < 0.01
