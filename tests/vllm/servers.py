"""Owns the life of the real vLLM CPU servers: start, readiness, logs, and a sure end.

Each server is one process session of two processes (API server and EngineCore).  An EngineCore
outlives an API server that is killed, so `stop` ends every process of the session by its id.

By hand:  .venv/bin/python tests/vllm/servers.py [COUNT]   starts servers and keeps them until
Ctrl-C.  With their ports in VLLM_TEST_PORTS=P1,P2,P3 the tests use them and start none.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

from pools.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
MODEL_DIR = Path("build/tiny-model")  # relative to ROOT: /v1/models shows it as it is given here
LOG_DIR = ROOT / "build" / "logs"
MODEL = "tiny"
CONTEXT = 4096
SLOTS = 16
READY_S = 180.0
PR_SET_PDEATHSIG = 1

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # With the "uni" executor: two processes a server, not three.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The default binds the engine of every server to core 0.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # Else the first request with logprobs waits some 12 s for a compiler.
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}
FLAGS = (
    f"--served-model-name {MODEL} --host 127.0.0.1 --dtype float32 --enforce-eager "
    f"--max-model-len {CONTEXT} --kv-cache-memory-bytes 64M --max-num-seqs {SLOTS} "
    "--distributed-executor-backend uni --scheduling-policy priority"
).split()


def prepare() -> None:
    """Make the environment and the model, when they aren't there yet."""
    subprocess.run([ROOT / "tests" / "vllm" / "install.sh"], check=True)
    subprocess.run([PYTHON, ROOT / "tests" / "vllm" / "build_tiny_model.py"], check=True)


def _end_with_parent() -> None:
    """Runs in the child: be asked to stop when the tests die without cleaning up."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def session_members(session: int) -> list[int]:
    """The ids of all living processes of a session, read from /proc."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3]) == session:
            members.append(int(entry.name))
    return members


class Server:
    """One vLLM server; `process` is None for one that somebody else started."""

    def __init__(self, name: str, port: int, process: subprocess.Popen | None = None) -> None:
        self.name = name
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = LOG_DIR / f"vllm-{name}.log"
        self.process = process

    @classmethod
    def start(cls, name: str, port: int = 0, model: Path = MODEL_DIR, *flags: str) -> Server:
        """`flags` of vLLM come last, and so win."""
        server = cls(name, port or free_ports(1)[0])
        LOG_DIR.mkdir(parents=True, exist_ok=True)
        command = [PYTHON, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", model, "--port", str(server.port), *FLAGS, *flags]
        with server.log.open("wb") as log:
            server.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        return server

    def wait_ready(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self.process and self.process.poll() is not None:
                raise RuntimeError(self._failure(f"exited with {self.process.returncode}"))
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.25)
        raise TimeoutError(self._failure(f"was not ready within {READY_S:.0f} s"))

    def _failure(self, what: str) -> str:
        tail = self.log.read_text(errors="replace").splitlines()[-40:] if self.process else []
        return "\n".join([f"vLLM server {self.name} {what}; the end of {self.log}:", *tail])

    def gauge(self, name: str) -> float:
        """The sum over the labels of one metric of the server."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM to the API server, then SIGKILL to whatever is left of the session."""
        if self.process is None:
            return
        session = self.process.pid
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s)
        for pid in session_members(session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def start_all(names: list[str]) -> list[Server]:
    """Start servers side by side and return when all are ready; on failure none is left."""
    given = os.environ.get("VLLM_TEST_PORTS")
    if given:
        servers = [Server(name, int(port)) for name, port in zip(names, given.split(","), strict=False)]
    else:
        prepare()
        servers = []
    try:
        if not given:
            for name in names:
                servers.append(Server.start(name))
        deadline = time.monotonic() + READY_S
        for server in servers:
            server.wait_ready(deadline)
    except BaseException:
        stop_all(servers)
        raise
    return servers


def stop_all(servers: list[Server]) -> None:
    for server in servers:
        if server.process and server.process.poll() is None:
            server.process.terminate()
    for server in servers:
        server.stop()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    servers = start_all(["short", "medium", "long", *map(str, range(3, count))][:count])
    print("VLLM_TEST_PORTS=" + ",".join(str(server.port) for server in servers), flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        signal.pause()
    except KeyboardInterrupt:
        stop_all(servers)


if __name__ == "__main__":
    main()
