"""Budgets of a key on a running gateway with an emulated engine: reserved, settled when the answer has ended, streams and
hang-ups included."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.process import Gateway, write_config
from tests.fakes import until

MODEL = "m"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hello " * 40}], "max_tokens": 40}


def hashed(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


KEYS = [
    {"name": "tokens", "hash": hashed("of-tokens"), "tokens_per_minute": 700},
    {"name": "joules", "hash": hashed("of-joules"), "joules_per_minute": 300},
    {"name": "free", "hash": hashed("of-free")},
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("budgets")
    launcher = {"kind": "emulated", "start_timeout_s": 60, "log_dir": str(folder)}
    pools = [{"name": "all", "serves": ["S", "M", "L"], "instances": 1, "tp": 1, "clock_mhz": 1980}]
    service = {"model": "m", "profile": "llama-3.1-8b", "pools": pools, "launcher": launcher, "context_tokens": 8192}
    made = Gateway(write_config(folder, {MODEL: service}, auth={"keys": KEYS}))
    try:
        assert until(lambda: made.logged("ready"), 60), made.log()
        yield made
        assert not made.faults()
    finally:
        made.kill_all()


def ask(gateway: Gateway, key: str, **more: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json={**BODY, **more}, headers=headers, timeout=30)


def test_many_at_once_spend_no_more_tokens_than_there_are(gateway: Gateway) -> None:
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda n: ask(gateway, "of-tokens", stream=bool(n % 2)), range(12)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert 3 <= len(refused) < 12, [answer.status_code for answer in answers]
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert (
        refused[0].json()["error"]["code"] == "rate_limit_exceeded"
        and "tokens" in refused[0].json()["error"]["message"]
    )


def test_a_hang_up_settles_and_joules_are_a_budget_of_their_own(gateway: Gateway) -> None:
    headers = {"authorization": "Bearer of-joules"}
    with httpx.stream(
        "POST", f"{gateway.url}/v1/chat/completions", json={**BODY, "stream": True, "max_tokens": 4000}, headers=headers
    ) as answer:
        assert answer.status_code == 200
        next(answer.iter_raw())
    statuses = []
    for _ in range(12):
        statuses.append(ask(gateway, "of-joules").status_code)
    assert statuses[0] == 200 and 429 in statuses, statuses
    assert ask(gateway, "of-free").status_code == 200
