"""Fixtures of the end-to-end tests: backends and gateways for a whole module, and what must hold after each test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import fakes
from tests.e2e.process import CHAT, Gateway, write_config
from tests.fakes import Stage, sse, until

Start = Callable[..., Gateway]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    made = Stage(3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`start(services, **sections)` runs a gateway; all of them must end cleanly and without a fault of their own."""
    started: list[Gateway] = []

    def run(services: dict[str, Any], *, ready: bool = True, admin_key: str = "", **sections: Any) -> Gateway:
        folder: Path = tmp_path_factory.mktemp("gateway")
        gateway = Gateway(write_config(folder, services, **sections), admin_key=admin_key)
        started.append(gateway)
        return gateway.wait_ready() if ready else gateway

    yield run
    failures: list[str] = []
    for gateway in started:
        try:
            if gateway.process.poll() is None:
                gateway.stop()
            assert not gateway.faults(), gateway.faults()
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)


@pytest.fixture
def settled(stage: Stage, gateway: Gateway) -> Iterator[None]:
    """Good backends before the test; nothing in flight, nothing held and nothing queued after it."""
    stage.reset()
    assert until(gateway.all_ready, 3), gateway.instances()
    yield
    stage.open_gate()
    assert until(gateway.idle), gateway.state()


@pytest.fixture
def bystander(gateway: Gateway, stage: Stage) -> Iterator[None]:
    """Somebody else's stream on the instance that the test's request goes to first. It must come through whole."""
    stage.scripts.append(fakes.drip)
    said: list[bytes] = []
    begun = threading.Event()

    def listen() -> None:
        with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
            for data in answer.iter_raw():
                said.append(data)
                begun.set()

    thread = threading.Thread(target=listen)
    thread.start()
    assert begun.wait(10)
    yield
    stage.open_gate()
    thread.join(10)
    heard = list(sse(b"".join(said)))
    assert heard[-1] == b"data: [DONE]"
    assert not any(b'"error"' in event for event in heard)
