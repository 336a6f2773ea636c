"""Re-shards under load on real vLLM servers (CPU): how many requests fail?

    .venv/bin/python -m bench.reshards --minutes 10 [--resume] [--vllm .venv-vllm/bin/python --model build/tiny-model]

One `joulegate serve` with the process launcher and two pools of one service, TP1 and TP2; on a CPU the TP is emulated
by the number of threads (OMP_NUM_THREADS={tp}), so what is shown is the change of instances, not tensor parallelism.
Clients stream answers all the time. The pools' counts are swapped again and again: the new instance is READY before
the old one drains, and it ends when its last answer has. A request has failed when its status is not 200, its stream
has an error, or its last event is missing. Every swap is written at once, and `--resume` adds to those that are in the
file already; the record of transitions goes on too. Exit status 1 when a request has failed."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import yaml

from bench.agent_rig import ROOT, Process, until
from pools.ports import free_ports

POOLS = ("one", "two")
SHIPPED = ROOT / "configs" / "vllm-cpu.yaml"


def config(folder: Path, port: int, python: str, model: str, transitions: Path) -> Path:
    """The shipped configuration with two pools that serve everything."""
    tree: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    (service,) = tree["services"].values()
    launcher = service["launcher"]
    known = {".venv-vllm/bin/python": python, "build/tiny-model": model}
    launcher["argv"] = [known.get(word, word) for word in launcher["argv"]]
    launcher |= {"log_dir": str(folder), "env": {**launcher["env"], "OMP_NUM_THREADS": "{tp}"}}
    service["tokenizer"] = ""
    service["pools"] = [
        {"name": name, "serves": ["S", "M", "L"], "tp": tp, "slots": 16, "instances": int(tp == 1)}
        for tp, name in enumerate(POOLS, start=1)
    ]
    tree["controller"] = {"interval_s": 0.5, "checkpoint": None, "transitions": str(transitions)}
    tree |= {"listen": {"port": port}, "run_log": {"path": None}, "energy": {"path": None}}
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


class Callers:
    """Clients that stream one answer after the other."""

    def __init__(self, url: str, count: int) -> None:
        self.done, self.failed = 0, []  # type: int, list[str]
        self._url = url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        body = {
            "model": "tiny", "messages": [{"role": "user", "content": "tell me more"}], "max_tokens": 64,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        with httpx.Client(timeout=120) as client:
            while not self._stop.is_set():
                try:
                    with client.stream("POST", f"{self._url}/v1/chat/completions", json=body) as answer:
                        said = answer.read()
                    whole = said.rstrip().endswith(b"data: [DONE]") and b'data: {"error"' not in said
                    good = answer.status_code == 200 and whole
                    if not good:
                        self.failed.append(f"{answer.status_code} {said[-300:]!r}")
                except httpx.HTTPError as error:
                    self.failed.append(repr(error))
                self.done += 1

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def settled(http: httpx.Client, pool: str) -> bool:
    """One instance, ready, of this pool. Not asked more often than an operator's script would."""
    time.sleep(0.25)
    shown = http.get("/admin/instances").json()
    return [(one["pool"], one["state"]) for one in shown] == [(pool, "ready")]


def swap(http: httpx.Client, new: str, old: str) -> float | None:
    """Seconds until the new pool serves alone; None when it did not within five minutes."""
    start_s = time.monotonic()
    for pool, instances in ((new, 1), (old, 0)):
        http.patch(f"/admin/services/tiny/pools/{pool}", json={"instances": instances}).raise_for_status()
    return None if until(lambda: settled(http, new), 300) is None else time.monotonic() - start_s


@dataclass(slots=True)
class Results:
    """All swaps so far, and their file."""

    out: Path
    took_s: list[float | None] = field(default_factory=list)
    answers: int = 0
    failed: list[str] = field(default_factory=list)
    transitions: list[dict[str, Any]] = field(default_factory=list)

    def load(self) -> None:
        told = json.loads(self.out.read_text()) if self.out.exists() else {}
        self.took_s, self.answers = told.get("took_s", []), told.get("answers", 0)
        self.failed = told.get("failed", [])

    def write(self, more_answers: int, more_failed: list[str]) -> None:
        """With what was answered since it was loaded."""
        told = {
            "took_s": self.took_s, "answers": self.answers + more_answers, "failed": self.failed + more_failed,
            "transitions": self.transitions,
        }  # fmt: skip
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(told))


def measure(http: httpx.Client, url: str, results: Results, minutes: float, clients: int) -> None:
    callers = Callers(url, clients)
    try:
        end_s, swaps = time.monotonic() + 60 * minutes, 0
        while time.monotonic() < end_s and None not in results.took_s:
            old, new = POOLS if swaps % 2 == 0 else POOLS[::-1]
            results.took_s.append(swap(http, new, old))
            swaps += 1
            results.transitions = http.get("/admin/transitions").json()
            results.write(callers.done, callers.failed)
            told = f"{old} -> {new} in {results.took_s[-1]} s, {callers.done} answers, {len(callers.failed)} failed"
            print(f"{len(results.took_s)}: {told}", file=sys.stderr)
    finally:
        callers.end()
        results.write(callers.done, callers.failed)
        results.answers, results.failed = results.answers + callers.done, results.failed + callers.failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--vllm", default=".venv-vllm/bin/python")
    parser.add_argument("--model", default="build/tiny-model")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/reshards.json"))
    asked = parser.parse_args()
    results = Results(asked.out)
    costs = asked.out.with_name(f"{asked.out.stem}-transitions.json").absolute()
    if asked.resume:
        results.load()
    else:
        costs.unlink(missing_ok=True)
    with TemporaryDirectory(prefix="jg-") as name:
        folder = Path(name)
        (port,) = free_ports(1)
        path = config(folder, port, asked.vllm, asked.model, costs)
        gateway = Process(["joulegate.py", "serve", str(path)], folder / "gateway.log")
        http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        try:
            until(lambda: b"listening" in (folder / "gateway.log").read_bytes(), 60)
            if until(lambda: settled(http, POOLS[0]), 300) is None:
                raise RuntimeError((folder / "gateway.log").read_text()[-3000:])
            measure(http, f"http://127.0.0.1:{port}", results, asked.minutes, asked.clients)
        finally:
            gateway.send(signal.SIGTERM)
            until(lambda: not gateway.alive, 60)
            gateway.end()
    print(json.dumps(results.transitions, indent=1))
    swaps = len(results.took_s)
    print(f"{swaps} re-shards, {results.answers} streamed answers, {len(results.failed)} failed")
    return 0 if not results.failed and None not in results.took_s else 1


if __name__ == "__main__":
    sys.exit(main())
