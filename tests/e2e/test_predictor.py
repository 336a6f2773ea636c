"""The predictor in a running gateway: it learns how long a template's answers are, and requests go where such answers
belong. Prompts stay out of the run log unless the operator says otherwise."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from predictor.model_file import SHIPPED
from predictor.records import read_records
from tests.e2e.process import Gateway, write_config
from tests.fakes import until

QUESTION = "What would you tell a friend about Rome?"
POOLS = [
    {"name": name, "serves": list(serves), "instances": 1, "tp": 1, "clock_mhz": 1980, "slots": 64}
    for name, serves in (("short", "S"), ("long", "ML"))
]
TERSE: dict[str, Any] = {"stop": ["e"]}  # ends with the first e that it writes
WORDY: dict[str, Any] = {"min_tokens": 400}
KINDS = [("Be terse.", TERSE), ("Be wordy.", WORDY)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("predictor")
    launcher = {"kind": "emulated", "start_timeout_s": 60, "log_dir": str(folder)}
    service = {"model": "m", "profile": "llama-3.1-8b", "pools": POOLS, "launcher": launcher, "context_tokens": 4096}
    made = Gateway(write_config(folder, {"m": service}))
    try:
        yield made.wait_ready()
    finally:
        made.kill_all()


def ask(gateway: Gateway, system: str, **more: Any) -> httpx.Response:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}]
    answer = httpx.post(
        f"{gateway.url}/v1/chat/completions", json={"model": "m", "messages": messages, **more}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer


def predictor(gateway: Gateway) -> dict[str, Any]:
    view: dict[str, Any] = gateway.state()["services"][0]["predictor"]
    return view


def test_it_learns_a_templates_length_and_routes_by_it(gateway: Gateway) -> None:
    before = predictor(gateway)
    assert (before["kind"], before["model"], before["answers"]) == ("model", "shipped", 0)
    first = ask(gateway, "Be terse.", **TERSE)
    for _ in range(2):
        with ThreadPoolExecutor(16) as callers:
            list(callers.map(lambda kind: ask(gateway, kind[0], **kind[1]), KINDS * 8))
    terse, wordy = ask(gateway, "Be terse.", **TERSE), ask(gateway, "Be wordy.", **WORDY)
    assert (terse.headers["x-joulegate-pool"], wordy.headers["x-joulegate-pool"]) == ("short", "long")
    rows = {key: gateway.row(one.headers["x-request-id"]) for key, one in
            {"first": first, "terse": terse, "wordy": wordy}.items()}  # fmt: skip
    assert rows["terse"]["class"].endswith("S") and rows["wordy"]["class"].endswith("L")
    assert rows["terse"]["predicted"]["q50"] < rows["first"]["predicted"]["q50"] < rows["wordy"]["predicted"]["q50"]
    assert rows["terse"]["predicted"]["p"][0] > 0.5 > rows["wordy"]["predicted"]["p"][0]
    records = read_records(gateway.run_log)
    assert len(records) >= 35 and len({record.template for record in records}) == 2, "what training reads"
    after = predictor(gateway)
    assert (after["answers"], after["templates"]) == (35, 2)


def test_no_answer_is_foretold_beyond_its_limit(gateway: Gateway) -> None:
    row = gateway.row(ask(gateway, "Be wordy.", max_tokens=40).headers["x-request-id"])
    assert row["predicted"]["p"][0] == 1 and row["predicted"]["q99"] <= 40 and row["class"].endswith("S")


def test_a_hint_is_a_number_of_tokens(gateway: Gateway) -> None:
    def hinted(value: str) -> int:
        body = {"model": "m", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4}
        headers = {"x-joulegate-output-tokens": value}
        return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers).status_code

    assert (hinted("120"), hinted("many")) == (200, 400)


def test_prompts_are_kept_only_where_the_operator_says_so(gateway: Gateway) -> None:
    plain = gateway.row(ask(gateway, "Be terse.", **TERSE).headers["x-request-id"])
    assert plain["features"]["questions"] == 1 and "prompt" not in plain
    assert "friend" not in gateway.run_log.read_text()
    tree = yaml.safe_load(gateway.config.read_text())
    tree["services"]["m"]["predictor"] = {"keep_prompts": True, "challenger": str(SHIPPED)}
    gateway.config.write_text(yaml.safe_dump(tree, sort_keys=False))
    assert httpx.post(f"{gateway.url}/admin/reload").status_code == 200
    kept = gateway.row(ask(gateway, "Be terse.", **TERSE).headers["x-request-id"])
    assert kept["prompt"] == QUESTION
    shown = predictor(gateway)
    assert shown["keep_prompts"] and shown["challenger"] == str(SHIPPED) and shown["challenger_answers"] == 1
    tree["services"]["m"]["predictor"]["challenger"] = "nowhere.json"
    gateway.config.write_text(yaml.safe_dump(tree, sort_keys=False))
    refused = httpx.post(f"{gateway.url}/admin/reload")
    assert refused.status_code == 400 and "nowhere.json" in refused.text
    assert until(lambda: predictor(gateway)["challenger"] == str(SHIPPED))
