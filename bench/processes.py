"""Starting and ending what the bench needs: the compiled stub and client, the gateways. Each is ended by its own pid.

Every process started here leads a session of its own, so that its CPU time and its end are those of all it starts."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.gateways import HERE, MODEL, Gateway
from bench.machine import family, read_stats

PROMPT = "bench:n=1,i=0"


class NotStarted(Exception):
    """A gateway that ended or never answered; the message says which and why."""


def build(folder: Path) -> None:
    """Compiles what is older than its source."""
    folder.mkdir(parents=True, exist_ok=True)
    common = HERE / "common.h"
    for name in ("stub", "load"):
        source, program = HERE / f"{name}.c", folder / name
        newest = max(source.stat().st_mtime, common.stat().st_mtime)
        if not program.exists() or program.stat().st_mtime < newest:
            subprocess.run(["gcc", "-O2", "-Wall", "-o", str(program), str(source)], check=True)


def pinned(core: int, argv: Sequence[str]) -> list[str]:
    return ["taskset", "-c", str(core), *argv]


@dataclass(slots=True)
class Running:
    """A started process and its family."""

    process: subprocess.Popen[bytes]
    start_s: float = 0.0

    def pids(self) -> set[int]:
        return family(self.process.pid, read_stats())

    def stop(self) -> None:
        for number, patience_s in ((signal.SIGTERM, 8.0), (signal.SIGKILL, 3.0)):
            pids = self.pids()
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            until = time.monotonic() + patience_s
            while time.monotonic() < until:
                self.process.poll()
                stats = read_stats()
                if all(pid not in stats or stats[pid].state == "Z" for pid in pids):
                    return
                time.sleep(0.02)


def start(argv: Sequence[str], core: int, log: Path, gateway: Gateway | None = None) -> Running:
    env = {key: value for key, value in os.environ.items() if not key.startswith("JOULEGATE__")}
    env.update(gateway.env if gateway else {})
    with log.open("ab") as output:
        process = subprocess.Popen(
            pinned(core, argv),
            cwd=gateway.cwd if gateway else None,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return Running(process)


def start_stub(program: Path, ports: Sequence[int], core: int, log: Path) -> Running:
    running = start([str(program), *(str(port) for port in ports)], core, log)
    until = time.monotonic() + 5
    while time.monotonic() < until and running.process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", ports[-1]), timeout=1).close()
            return running
        except OSError:
            time.sleep(0.02)
    running.stop()
    raise NotStarted(f"the stub engine does not listen on {ports}")


def start_gateway(gateway: Gateway, core: int, folder: Path, patience_s: float = 60.0) -> Running:
    """Returns when the first request has been answered."""
    log = folder / f"{gateway.name}.log"
    began = time.monotonic()
    running = start(gateway.argv, core, log, gateway)
    said = "no answer"
    while time.monotonic() - began < patience_s and running.process.poll() is None:
        try:
            status, said = ask(gateway)
            if status == 200:
                running.start_s = time.monotonic() - began
                return running
        except (OSError, http.client.HTTPException) as error:
            said = repr(error)
        time.sleep(0.05)
    running.stop()
    tail = log.read_text(errors="replace")[-400:]
    raise NotStarted(f"{gateway.name} did not start ({said}); {log} ends: {tail}")


def ask(gateway: Gateway) -> tuple[int, str]:
    """One small request: its status and the beginning of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=5)
    body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}
    headers = {"content-type": "application/json"}
    headers.update(dict(header.split(": ", 1) for header in gateway.headers))
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read(200).decode(errors="replace")
    finally:
        connection.close()
