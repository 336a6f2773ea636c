"""Owns the stage of these tests: three vLLM servers, a recording relay before each, the gateway.

Starting it takes half a minute and 3 GB, so a run that doesn't name tests/vllm skips these tests.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.gateway_process import POOLS, Gateway, config, program
from tests.vllm.rig import Ledger, Rig
from tests.vllm.servers import ROOT, Server, start_all, stop_all
from tests.vllm.tee import Tee

HERE = Path(__file__).parent
REPORT = ROOT / "build" / "vllm.json"
LEDGER = pytest.StashKey[Ledger]()
STARTED = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEDGER] = Ledger()
    config.stash[STARTED] = time.monotonic()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    paths = [Path(arg.split("::")[0]).resolve() for arg in config.invocation_params.args if not arg.startswith("-")]
    if not any(path == HERE or HERE in path.parents for path in paths):
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="starts real vLLM servers: run pytest tests/vllm"))


@pytest.fixture(scope="session")
def servers() -> Iterator[list[Server]]:
    started = start_all(list(POOLS))
    yield started
    stop_all(started)


@pytest.fixture(scope="session")
def tees(servers: list[Server]) -> Iterator[dict[str, Tee]]:
    """The relays, in an event loop of their own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tees")
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(10)

    relays = {server.name: Tee(server.port) for server in servers}
    for tee in relays.values():
        run(tee.__aenter__())
    yield relays
    for tee in relays.values():
        run(tee.__aexit__())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="session")
def rig(
    servers: list[Server],
    tees: dict[str, Tee],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Rig]:
    REPORT.unlink(missing_ok=True)  # a run that fails to start must not leave an old report
    folder = tmp_path_factory.mktemp("gateway")
    gateway = Gateway(config({name: tee.url for name, tee in tees.items()}, folder))
    try:
        gateway.wait_ready()
        yield Rig(gateway.url, tees, servers, request.config.stash[LEDGER])
    finally:
        gateway.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ledger = terminalreporter.config.stash[LEDGER]
    if not ledger.equal + ledger.different:
        return
    counts = {name: len(reports) for name, reports in terminalreporter.stats.items() if name}
    report = {
        "gateway": program(),
        "byte_comparisons": {"equal": ledger.equal, "different": ledger.different},
        "direct_comparisons": {"equal": ledger.equal_to_direct, "different": ledger.different_from_direct},
        "usage_events_stripped": ledger.usage_events_stripped,
        "streams_with_ids": ledger.streams_with_ids,
        "joined": ledger.joined,
        "paths": ledger.paths,
        "servers": ledger.servers,
        "added_fields": ledger.added_fields,
        "differences": ledger.differences,
        "tests": {name: counts.get(name, 0) for name in ("passed", "failed", "error", "skipped")},
        "wall_s": round(time.monotonic() - terminalreporter.config.stash[STARTED], 1),
    }
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1) + "\n")
    terminalreporter.write_line(f"byte comparisons: {ledger.equal} equal, {ledger.different} different")
