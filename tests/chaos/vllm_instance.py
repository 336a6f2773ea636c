"""A real vLLM server that is killed and started again on its port, its orphaned EngineCore ended first."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import httpx

from pools.ports import free_ports
from tests.fakes import until
from tests.vllm.servers import MODEL_DIR, READY_S, Server, prepare, session_members

KV_ROOM = "512M"  # SmolLM2-135M in fp32 holds 11,000 tokens in it


class VllmInstance:
    """Serves the tests' tiny model, or the one in the folder `model`."""

    def __init__(self, name: str, model: Path | None) -> None:
        prepare()
        self._model = (MODEL_DIR,) if model is None else (model.resolve(), "--kv-cache-memory-bytes", KV_ROOM)
        self.name = f"chaos-{name}"
        (self.port,) = free_ports(1)
        self.start()

    def start(self) -> None:
        self.server = Server.start(self.name, self.port, *self._model)

    def wait_ready(self) -> None:
        assert until(self.healthy, READY_S), self.server.log.read_text(errors="replace")[-2000:]

    def healthy(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.server.url}/health", timeout=5).status_code == 200
        return False

    def signal(self, number: int) -> None:
        assert self.server.process is not None
        for pid in session_members(self.server.process.pid) if number != signal.SIGTERM else [self.server.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def running(self) -> bool:
        return self.server.process is not None and bool(session_members(self.server.process.pid))

    def kill(self) -> None:
        """The API server alone, as a crash would: the rest of its session is what it leaves behind."""
        assert self.server.process is not None
        self.server.process.kill()
        self.server.process.wait()

    def kill_engine(self) -> None:
        """EngineCore alone: its server tells the clients and ends by itself."""
        assert self.server.process is not None
        for pid in session_members(self.server.process.pid):
            if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    def sequences(self) -> int:
        return int(self.server.gauge("vllm:num_requests_running") + self.server.gauge("vllm:num_requests_waiting"))

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        self.server.stop(grace_s=2.0)
