"""Emulated engines as processes, for tests that need instances which can die. Ends each by its id."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from pools.ports import free_ports
from tests.fakes import until

ROOT = Path(__file__).resolve().parents[2]
MODEL = "tiny"


class Engine:
    """One server on a port of its own, which it keeps when it is started again."""

    def __init__(self, *flags: str) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=10)
        self._flags = flags
        self.start()

    def start(self) -> None:
        argv = [sys.executable, "-m", "simulator.serve", "--port", str(self.port), "--profile", "llama-3.1-8b"]
        argv += ["--served-model-name", MODEL, "--max-model-len", "4096", *self._flags]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(argv, cwd=ROOT, stdin=quiet, stdout=quiet, stderr=quiet)

    def wait_ready(self) -> Engine:
        assert until(self.healthy, 30)
        return self

    def healthy(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.http.get("/health").status_code == 200
        return False

    def fault(self, kind: str, after_chunks: int, times: int = 1) -> None:
        self.http.post("/emulated/fault", json={"kind": kind, "after_chunks": after_chunks, "times": times})

    def state(self) -> dict[str, Any]:
        return self.http.get("/emulated/state").json()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
