"""A request that an instance was given and does not begin goes to another one before anybody is shed, by the ladder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.process import Gateway, write_config
from tests.fakes import until

POOL = {"name": "all", "serves": ["S", "M", "L"], "instances": 2, "tp": 4, "clock_mhz": 1980, "slots": 64}
LONG = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4000, "stream": True}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """In shadow nothing is planned away. Probes never fail an instance: only the ladder can help."""
    launcher = {"kind": "emulated", "start_timeout_s": 60, "log_dir": str(tmp_path)}
    service = {"model": "m", "profile": "llama-3.1-70b", "pools": [POOL], "launcher": launcher, "context_tokens": 8192}
    controller = {"interval_s": 0.2, "plan": "energy", "mode": "shadow", "gpus": 8}
    health = {"interval_s": 1.0, "timeout_s": 1.0, "fall": 10_000}
    made = Gateway(write_config(tmp_path, {"m": service}, controller=controller, health=health))
    try:
        assert until(lambda: made.logged("ready") and made.all_ready(), 60), made.log()
        yield made
    finally:
        made.kill_all()


def pid_of(gateway: Gateway, instance_id: str) -> int:
    named = f"/{instance_id}\0".encode()
    return next(pid for pid in gateway.children() if named in Path(f"/proc/{pid}/environ").read_bytes())


def test_what_a_hanging_instance_has_not_begun_goes_elsewhere(gateway: Gateway) -> None:
    with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=LONG, timeout=60) as first:
        here = first.headers["x-joulegate-instance"]
        next(first.iter_raw())
        os.kill(pid_of(gateway, here), signal.SIGSTOP)
        answer = gateway.post(model="m", messages=LONG["messages"], max_tokens=8, stream=True)
        assert answer.status_code == 200 and "[DONE]" in answer.text
        there = answer.headers["x-joulegate-instance"]
        row = gateway.row(answer.headers["x-request-id"])
        assert row["attempts"] == 2 and there != here, "it was given to the one that others ran on"
    rungs = [set(row["rungs"]) for row in gateway.rows("controller") if row["note"] == "ladder"]
    assert {"boost", "spill", "move"} in rungs
    assert not any("shed" in taken for taken in rungs)
