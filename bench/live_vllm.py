"""The controller on and off at true speed on real vLLM servers (CPU): what starts, what ends, what fails, CPU seconds.

    make live-vllm          # both runs; by hand: .venv/bin/python -m bench.live_vllm --only on

One pool of three servers of a tiny model. A small load, then a large one, then the small one. `off` keeps all three;
`on` plans for the least energy: one is drained and ends, and comes back for the large load. There is no energy counter
here: CPU SECONDS of the servers' processes stand in for joules, and the engine model's "watts" are cores in use. Its
constants are set, not fitted: a server is taken to hold about two requests/s, as its share of two cores lets it."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import yaml

from bench.agent_rig import ROOT, Process, until
from bench.machine import cpu_s, family, read_stats
from pools.ports import free_ports
from profiles.engine_model import MODEL_SUFFIX, EngineModel, TpPoint, load_engine_model
from profiles.model_file import save_model

SHIPPED = ROOT / "configs" / "vllm-cpu.yaml"
RUNS = {"off": "configured", "on": "energy"}
SERVERS, SLOTS, ANSWER = 3, 16, 48
CORES_IDLE, CORES_BUSY = 0.02, 0.6


def engine_model() -> EngineModel:
    """One clock, for a CPU has no knob here. Seconds of a step: a server that shares two cores with two others."""
    point = TpPoint(
        running_knots=(1.0, 16.0), decode_knots_s=(0.02, 0.08), decode_per_context_token_s=0.0, prefill_base_s=0.0,
        prefill_per_token_s=0.002, watts_base_w=CORES_BUSY, watts_per_doubling_w=0.1, watts_cap_w=1.0,
        kv_tokens=SLOTS * 1024, tbt=(1.0,), ttft=(1.0,), watts=(1.0,),
    )  # fmt: skip
    return replace(
        load_engine_model("llama-3.1-8b"), model="tiny", clocks_mhz=(1980,), points={1: point}, idle_w=CORES_IDLE,
        bare_idle_w=0.0, parked_w=CORES_IDLE, clip_w=1.0, prefill_watts_base_w=1.0, prefill_watts_per_doubling_w=0.0,
        start_s=25.0, context_tokens=200,
    )  # fmt: skip


def config(folder: Path, port: int, plan: str, python: str, model: str) -> Path:
    """The shipped configuration with one pool that serves everything."""
    tree: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    (service,) = tree["services"].values()
    launcher = service["launcher"]
    known = {".venv-vllm/bin/python": python, "build/tiny-model": model}
    launcher["argv"] = [known.get(word, word) for word in launcher["argv"]]
    launcher["log_dir"] = str(folder)
    service["tokenizer"] = ""
    service["profile"] = str(folder / f"tiny{MODEL_SUFFIX}")
    service["pools"] = [{"name": "all", "serves": ["S", "M", "L"], "tp": 1, "slots": SLOTS, "instances": SERVERS}]
    tree["controller"] = {
        "plan": plan, "plan_interval_s": 30.0, "gpus": SERVERS, "checkpoint": None, "transitions": None,
    }  # fmt: skip
    tree |= {"listen": {"port": port}, "run_log": {"path": str(folder / "run.jsonl")}, "energy": {"path": None}}
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    save_model(engine_model(), folder / f"tiny{MODEL_SUFFIX}", {"constants": "set by bench/live_vllm.py, not fitted"})
    return path


@dataclass(slots=True)
class Used:
    """CPU seconds of the servers since the first look, those of servers that have ended included."""

    gateway: int
    before_s: dict[int, float] = field(default_factory=dict)
    now_s: dict[int, float] = field(default_factory=dict)

    def look(self, *, first: bool = False) -> float:
        for pid in family(self.gateway, read_stats()) - {self.gateway}:
            spent_s = cpu_s([pid])
            if first:
                self.before_s[pid] = spent_s
            self.now_s[pid] = max(spent_s, self.now_s.get(pid, 0.0))
        return sum(self.now_s.values()) - sum(self.before_s.values())


@dataclass(slots=True)
class Callers:
    """Requests at a steady rate, each in a thread of its own."""

    url: str
    took_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def phase(self, rps: float, seconds: float) -> Iterator[None]:
        """Yields about once a second, until the phase is over."""
        start_s = time.monotonic()
        for number in range(int(rps * seconds)):
            while (wait_s := start_s + number / rps - time.monotonic()) > 0:
                time.sleep(min(1.0, wait_s))
                yield
            thread = threading.Thread(target=self._ask, args=(number,))
            thread.start()
            self.threads.append(thread)

    def _ask(self, number: int) -> None:
        body = {
            "model": "tiny", "messages": [{"role": "user", "content": f"tell me more about number {number}"}],
            "max_tokens": ANSWER, "ignore_eos": True, "stream": True,
        }  # fmt: skip
        start_s = time.monotonic()
        try:
            with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=120) as answer:
                said = answer.read()
            if answer.status_code != 200 or not said.rstrip().endswith(b"data: [DONE]"):
                self.failed.append(f"{answer.status_code} {said[-300:]!r}")
        except httpx.HTTPError as error:
            self.failed.append(repr(error))
        self.took_s.append(time.monotonic() - start_s)


def one_run(options: argparse.Namespace, plan: str, folder: Path) -> dict[str, Any]:
    (port,) = free_ports(1)
    argv = ["joulegate.py", "serve", str(config(folder, port, plan, options.vllm, options.model))]
    gateway, url = Process(argv, folder / "gateway.log"), f"http://127.0.0.1:{port}"
    http = httpx.Client(base_url=url, timeout=60)
    try:
        until(lambda: b"listening" in (folder / "gateway.log").read_bytes(), 60)
        if until(lambda: states(http).get("ready") == SERVERS, 240) is None:
            raise RuntimeError((folder / "gateway.log").read_text()[-3000:])
        used, callers, counted = Used(gateway.child.pid), Callers(url), list[int]()
        used.look(first=True)
        start_s = time.monotonic()
        for rps, seconds in ((options.low, options.first_s), (options.high, options.high_s), (options.low, 15.0)):
            for _ in callers.phase(rps, seconds):
                used.look()
                counted.append(states(http).get("ready", 0))
        for thread in callers.threads:
            thread.join()
        spent_s, wall_s = used.look(), time.monotonic() - start_s
        slo = http.get("/admin/slo").json()[0]["total"]
    finally:
        gateway.send(signal.SIGTERM)
        until(lambda: not gateway.alive, 60)
        gateway.end()
    rows = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    acts = [act["action"] for row in rows if row["kind"] == "tick" for act in row.get("actions", ())]
    return {
        "cpu_s": spent_s, "wall_s": wall_s, "requests": len(callers.took_s), "failed": len(callers.failed),
        "first_failed": callers.failed[:3], "attained": slo["attainment"], "starts": acts.count("start") - SERVERS,
        "stops": acts.count("stop"), "ready_mean": sum(counted) / max(1, len(counted)), "ready_least": min(counted),
        "took_p50_s": sorted(callers.took_s)[len(callers.took_s) // 2],
    }  # fmt: skip


def states(http: httpx.Client) -> dict[str, int]:
    time.sleep(0.1)  # not asked more often than an operator's script would
    found: dict[str, int] = {}
    for one in http.get("/admin/instances").json():
        found[one["state"]] = found.get(one["state"], 0) + 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(RUNS), help="one of the two runs")
    parser.add_argument("--low", type=float, default=1.0, help="requests/s of the small load")
    parser.add_argument("--high", type=float, default=6.0, help="requests/s of the large load")
    parser.add_argument("--first-s", type=float, default=210.0, help="seconds of the small load before the large one")
    parser.add_argument("--high-s", type=float, default=90.0, help="seconds of the large load")
    parser.add_argument("--vllm", default=".venv-vllm/bin/python")
    parser.add_argument("--model", default="build/tiny-model")
    parser.add_argument("--out", type=Path, default=Path("build/live-vllm.json"))
    options = parser.parse_args()
    report: dict[str, Any] = {}
    for name, plan in RUNS.items():
        if options.only in (None, name):
            with TemporaryDirectory(prefix="jg-") as folder:
                report[name] = one_run(options, plan, Path(folder))
            print(f"{name}: {json.dumps(report[name])}", flush=True)
    if len(report) == 2:
        report["ratio"] = report["on"]["cpu_s"] / report["off"]["cpu_s"]
        print(f"on / off: {report['ratio']:.3f} of the CPU seconds (a stand-in: no energy was measured)")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1))
    return 1 if any(report[name]["failed"] for name in RUNS if name in report) else 0


if __name__ == "__main__":
    sys.exit(main())
