"""Instances that come late and go, and the end of the gateway itself."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest

from tests import fakes
from tests.e2e.process import CHAT, LIMITS, Gateway, connect, pool, service
from tests.fakes import Stage, sample, sse, until


@pytest.fixture(autouse=True)
def _fresh(stage: Stage):
    stage.reset()
    yield
    stage.open_gate()


@pytest.fixture(scope="module")
def late_stage():
    made = Stage(2)
    for backend in made.backends:
        backend.down()
    yield made
    made.close()


def test_instances_that_come_late_and_go(late_stage: Stage, start) -> None:
    gateway = start({"tiny": service(pool(late_stage.backends))}, ready=False, limits={**LIMITS, "max_wait_s": 0.3})
    assert_nobody_ready(gateway)
    first, second = late_stage.backends
    first.up()
    gateway.wait_ready()
    assert gateway.post().content == sample("chat")
    assert until(lambda: gateway.instances()[second.url]["state"] == "failed", 10)  # never up is down, and says so
    second.up()
    assert until(gateway.all_ready)
    first.down()
    assert gateway.post().content == sample("chat")
    assert until(lambda: gateway.instances()[first.url]["state"] == "failed")
    second.down()
    assert until(lambda: gateway.instances()[second.url]["state"] == "failed")
    assert_nobody_ready(gateway)
    first.healthy = False
    first.up()
    assert_nobody_ready(gateway)
    first.healthy = True
    gateway.wait_ready()
    assert gateway.post().content == sample("chat")
    assert until(gateway.idle)


def failing_all(stage: Stage) -> fakes.Script:
    """None is healthy from the first request on. They send garbage: whoever hung up would be taken for killed by it."""

    async def play(talk: fakes.Talk) -> None:
        for backend in stage.backends:
            backend.healthy = False
        await fakes.garbage_200(talk)

    return play


def test_a_request_outlives_an_outage_of_all_instances(stage: Stage, start) -> None:
    """It has reached its client with no byte yet, and waits as others do for whoever is well first."""
    gateway = start({"tiny": service(pool(stage.backends))}, limits={**LIMITS, "max_wait_s": 60, "comeback_s": 60})

    stage.play(failing_all(stage))
    with ThreadPoolExecutor() as pool_of_clients:
        answer = pool_of_clients.submit(gateway.post)
        assert until(lambda: {i["state"] for i in gateway.instances().values()} == {"failed"})
        stage.play(fakes.good)
        for backend in stage.backends:
            backend.healthy = True
        said = answer.result()
    assert (said.status_code, said.content) == (200, sample("chat"))
    assert gateway.row(said.headers["x-request-id"])["attempts"] == 4


def test_an_outage_that_lasts_is_told(stage: Stage, start) -> None:
    gateway = start({"tiny": service(pool(stage.backends))}, limits={**LIMITS, "max_wait_s": 60, "comeback_s": 0.3})

    stage.play(failing_all(stage))
    said = gateway.post()
    assert (said.status_code, said.json()["error"]["code"]) in [(503, "no_instance_ready"), (503, "queue_timeout")]
    row = gateway.row(said.headers["x-request-id"])
    assert (row["outcome"], row["gave_up"]) == ("failed", "nobody_back")


def assert_nobody_ready(gateway: Gateway) -> None:
    said = gateway.post()
    assert (said.status_code, said.json()["error"]["code"]) == (503, "no_instance_ready")
    assert int(said.headers["retry-after"]) >= 1
    assert httpx.get(f"{gateway.url}/readiness").status_code == 503
    claude = gateway.post("/v1/messages")
    assert (claude.status_code, claude.json()["error"]["type"]) == (503, "overloaded_error")


def test_sigterm_lets_a_running_stream_end_and_refuses_new_ones(stage: Stage, start) -> None:
    gateway = start({"tiny": service(pool(stage.backends))}, limits=LIMITS)
    stage.play(fakes.drip)
    with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        pieces = answer.iter_raw()
        said = [next(pieces)]
        gateway.process.terminate()
        assert until(lambda: gateway.state()["closing"])
        refused = gateway.post()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert "retry-after" in refused.headers
        stage.open_gate()
        said += pieces
    assert list(sse(b"".join(said)))[-1] == b"data: [DONE]"
    assert gateway.process.wait(10) == 0


def test_sigterm_ends_a_stream_that_outlives_the_drain(stage: Stage, start) -> None:
    gateway = start({"tiny": service(pool(stage.backends))}, limits={**LIMITS, "drain_timeout_s": 0.3})
    stage.play(fakes.drip)
    with closing(connect(gateway, True)) as client:
        assert client.recv(100)
        gateway.process.terminate()
        assert gateway.process.wait(10) == 0
        said = client.makefile("rb").read()
    assert until(lambda: stage.requests[0].gone.is_set())
    assert said.count(b'data: {"error"') == 1
    assert [row["outcome"] for row in gateway.rows()] == ["cut"]
