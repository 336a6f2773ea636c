"""Owns the gateway under test: its configuration, its process, and its readiness.

The configuration is a static one: three pools with one URL each.  JOULEGATE_PROGRAM names another
program to start in place of joulegate.py, with the same arguments.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import yaml

from pools.ports import free_ports
from tests.vllm.servers import CONTEXT, LOG_DIR, MODEL, ROOT, SLOTS

READY_S = 60.0
POOLS = {"short": "S", "medium": "M", "long": "L"}


def program() -> str:
    return os.environ.get("JOULEGATE_PROGRAM", str(ROOT / "joulegate.py"))


def config(urls: dict[str, str], folder: Path) -> Path:
    """Write the YAML for one URL per pool.  The promises are so loose that nothing is shed."""
    service = {
        "model": MODEL,
        "context_tokens": CONTEXT,
        "tokenizer": str(ROOT / "build" / "tiny-model" / "tokenizer.json"),
        "engine_priority": True,
        "slo": {"ttft_p99_ms": {"S": 60000, "M": 60000, "L": 60000}, "tbt_p99_ms": 20000},
        "edges": {"input": [256, 1024, 4096], "output": [100, 350]},
        "pools": [
            {"name": name, "serves": [size], "tp": 1, "slots": SLOTS, "urls": [urls[name]]}
            for name, size in POOLS.items()
        ],
        "launcher": {"kind": "static"},
    }
    tree = {
        "controller": {"mode": "shadow", "checkpoint": None},
        "breaker": {"failures": 1_000_000},  # a relay that cuts streams in test after test stays in use
        "limits": {"retries_per_s": 1000},  # and every one of its cuts may be mended
        "run_log": {"path": str(folder / "run.jsonl")},
        "energy": {"path": str(folder / "energy.sqlite")},
        "services": {MODEL: service},
    }
    path = folder / "static.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


class Gateway:
    """A gateway process on a free port of 127.0.0.1."""

    def __init__(self, config_path: Path) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = LOG_DIR / "gateway.log"
        LOG_DIR.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, program(), "serve", config_path, "--port", str(self.port)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        seen = "nothing listens"
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                answer = httpx.get(f"{self.url}/readiness", timeout=5)
                if answer.status_code == 200:
                    return
                seen = f"/readiness gives {answer.status_code} {answer.text[:200]}"
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        tail = self.log.read_text(errors="replace").splitlines()[-40:]
        what = f"the gateway isn't ready ({seen}, exit status {self.process.poll()}); the end of {self.log}:"
        raise RuntimeError("\n".join([what, *tail]))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
