"""The gateway as a process: its configuration, its start, its log, its run log, its end.

Owns the child and ends it by its id. What the gateway answers is judged by the tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.fakes import Backend, until

ROOT = Path(__file__).resolve().parents[2]
LOOSE = {"ttft_p99_ms": {"S": 60_000, "M": 60_000, "L": 60_000}, "tbt_p99_ms": 20_000}
LIMITS = {"first_byte_timeout_s": 0.8, "stall_timeout_s": 0.8, "max_wait_s": 5.0, "connect_timeout_s": 1.0}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "import os"}], "max_tokens": 6}
Tree = dict[str, Any]


class Plain(yaml.SafeDumper):
    """Writes a value out each time: configurations take no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def pool(backends: list[Backend], name: str = "all", serves: str = "SML", slots: int = 64) -> Tree:
    return {"name": name, "serves": list(serves), "slots": slots, "urls": [b.url for b in backends]}


def service(*pools: Tree, **more: Any) -> Tree:
    return {"model": "tiny", "slo": LOOSE, "pools": list(pools), "launcher": {"kind": "static"}, **more}


def write_config(folder: Path, services: Tree, **sections: Any) -> Path:
    """A configuration file on a free port, with probes quick enough for tests."""
    tree = {
        "listen": {"port": 0},
        "health": {"interval_s": 0.1, "fall": 2},
        "controller": {"interval_s": 0.1},
        "run_log": {"path": str(folder / "run.jsonl")},
        "energy": {"path": str(folder / "energy.sqlite")},
        **sections,
        "services": services,
    }
    kept = {name: str(folder / f"{name}.json") for name in ("transitions", "checkpoint")}
    tree["controller"] = {**kept, **tree["controller"]}
    path = folder / "gateway.yaml"
    path.write_text(yaml.dump(tree, Dumper=Plain, sort_keys=False))
    return path


def command(*words: object) -> list[str]:
    return [sys.executable, "joulegate.py", *map(str, words)]


class Gateway:
    """A running gateway. `admin_key` is used for the questions that this class itself asks."""

    PROGRAM: tuple[str, ...] = ("joulegate.py",)

    def __init__(self, config: Path, *options: str, admin_key: str = "") -> None:
        self.config = config
        self.log_path = config.with_suffix(".log")
        self.run_log = config.parent / "run.jsonl"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.PROGRAM, "serve", str(config), *options],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.headers = {"authorization": f"Bearer {admin_key}"} if admin_key else {}
        if not until(lambda: self.process.poll() is not None or self.logged("listening"), 30):
            self.kill()
        assert self.process.poll() is None, self.log()
        self.http = httpx.Client(timeout=30)  # one for all: each new one reads the certificates of the host
        self.url = str(self.logged("listening")[0]["url"])
        self.port = int(self.url.rpartition(":")[2])

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def logged(self, event: str) -> list[Tree]:
        lines = [line for line in self.log().splitlines() if line.startswith("{") and line.endswith("}")]
        return [row for row in map(json.loads, lines) if row.get("event") == event]

    def wait_ready(self) -> Gateway:
        assert until(lambda: self.http.get(f"{self.url}/readiness").status_code == 200, 30), self.log()
        return self

    def state(self) -> Tree:
        return self.http.get(f"{self.url}/admin/state", headers=self.headers).raise_for_status().json()

    def instances(self) -> dict[str, Tree]:
        """By URL."""
        return {i["url"]: i for s in self.state()["services"] for i in s["instances"]}

    def all_ready(self) -> bool:
        return all(i["state"] == "ready" for i in self.instances().values())

    def idle(self) -> bool:
        state = self.state()
        held = ("requests", "sequences", "kv_tokens")
        books = [i[key] for s in state["services"] for i in s["instances"] for key in held]
        return state["in_flight"] == 0 and not any(books) and not any(s["queued"] for s in state["services"])

    def rows(self, kind: str = "request") -> list[Tree]:
        whole = self.run_log.read_text().rpartition("\n")[0] if self.run_log.exists() else ""
        lines = whole.splitlines()  # without the line that is being written
        return [row for row in map(json.loads, lines) if row["kind"] == kind]

    def row(self, request_id: str) -> Tree:
        """The one row of a request, once it is on disk."""
        assert until(lambda: any(row["id"] == request_id for row in self.rows())), f"no row for {request_id}"
        found = [row for row in self.rows() if row["id"] == request_id]
        assert len(found) == 1, found
        return found[0]

    def post(self, path: str = "/v1/chat/completions", **fields: Any) -> httpx.Response:
        return self.http.post(self.url + path, json={**CHAT, **fields})

    def faults(self) -> list[Tree]:
        """What the gateway logged as its own fault."""
        return self.logged("a fault of the gateway's own")

    def stop(self) -> None:
        """SIGTERM; the end must be clean."""
        self.process.terminate()
        try:
            status = self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"SIGTERM did not end the gateway:\n{self.log()}") from None
        assert status == 0, self.log()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def children(self) -> list[int]:
        """Process ids of the instances that this gateway started."""
        named = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return [int(pid) for pid in Path(named).read_text().split()]

    def kill_child(self, instance_id: str) -> None:
        for pid in self.children():
            if f"/{instance_id}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)
                return
        raise AssertionError(f"no process of {instance_id}")

    def kill_all(self) -> None:
        """For the end of a test that went wrong: the gateway and its instances, by id."""
        if self.process.poll() is None:
            children = self.children()
            self.kill()
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def run_command(*words: object, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)


def connect(gateway: Gateway, stream: bool, request_id: str = "") -> socket.socket:
    """A client that sent its request and will hang up."""
    body = json.dumps({**CHAT, "stream": stream}).encode()
    head = [b"POST /v1/chat/completions HTTP/1.1", b"host: x", b"content-length: %d" % len(body)]
    head += [b"x-request-id: " + request_id.encode()] if request_id else []
    made = socket.create_connection(("127.0.0.1", gateway.port), 10)
    made.sendall(b"\r\n".join(head) + b"\r\n\r\n" + body)
    return made
