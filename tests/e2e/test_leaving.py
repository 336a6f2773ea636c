"""Clients that leave, or stay and read nothing: their work ends at once and nobody else notices."""

import json
from contextlib import closing

import psutil
import pytest

from tests import fakes
from tests.e2e.process import CHAT, LIMITS, Gateway, connect, pool, service
from tests.fakes import Stage, events, part, sample, saying, status, until


@pytest.fixture(scope="module")
def gateway(stage: Stage, start) -> Gateway:
    breaker = {"failures": 1_000_000}
    return start({"tiny": service(pool(stage.backends))}, limits=LIMITS, breaker=breaker)


@pytest.fixture(autouse=True)
def _settled(settled: None) -> None:
    return


def test_a_client_that_never_reads_is_let_go(gateway: Gateway, stage: Stage) -> None:
    _, second, *rest = events("chat_stream_usage")
    stage.play(part(1, saying(*[second * 200] * 600, *rest)))  # far more than the buffers of all sockets between
    with closing(connect(gateway, True)):
        assert until(lambda: [r["outcome"] for r in gateway.rows()][-1:] == ["client_gone"])
        assert until(gateway.idle)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_work_at_once(stream: bool, gateway: Gateway, stage: Stage) -> None:
    stage.play(fakes.drip)
    with closing(connect(gateway, stream)) as client:
        assert until(lambda: stage.requests)
        if stream:
            assert client.recv(100)
    assert until(lambda: stage.requests[0].gone.is_set())
    assert until(gateway.idle)
    assert until(lambda: [r["outcome"] for r in gateway.rows()][-1:] == ["client_gone"])


def test_a_client_that_leaves_costs_its_neighbour_nothing(gateway: Gateway, stage: Stage, bystander: None) -> None:
    stage.play(fakes.drip)
    with closing(connect(gateway, True)) as client:
        assert client.recv(100)
    assert until(lambda: sum(r.gone.is_set() for r in stage.requests) == 1)


@pytest.fixture(scope="module")
def narrow(stage: Stage, start) -> Gateway:
    """One instance with one slot."""
    return start({"tiny": service(pool(stage.backends[:1], slots=1))}, limits=LIMITS)


def test_a_client_that_leaves_the_queue_is_forgotten(narrow: Gateway, stage: Stage) -> None:
    stage.play(fakes.drip)
    with closing(connect(narrow, True)):
        assert until(lambda: len(stage.requests) == 1)
        with closing(connect(narrow, True)):
            assert until(lambda: narrow.state()["services"][0]["queued"] == 1)
        assert until(lambda: narrow.state()["services"][0]["queued"] == 0)
        assert not stage.requests[0].gone.is_set()
    assert until(narrow.idle)
    assert len(stage.requests) == 1, "what left the queue must never be sent"


def peers(gateway: Gateway) -> set[int]:
    """The ports of the clients that the gateway is connected to."""
    return {c.raddr.port for c in psutil.Process(gateway.process.pid).net_connections("tcp") if c.raddr}


def request(gateway: Gateway, **fields: object) -> bytes:
    body = json.dumps({**CHAT, **fields}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def test_a_client_that_never_reads_is_let_go_whatever_comes_next(gateway: Gateway, stage: Stage) -> None:
    """The buffers still hold the answer before. The one after is handed over, and the connection ends with both."""
    body = sample("chat").replace(b'"content":"', b'"content":"' + b"x" * 20_000_000)
    stage.scripts.append(status(200, body))
    with closing(connect(gateway, False, "first")) as client:
        assert gateway.row("first")
        behind = request(gateway).replace(b"host: x", b"host: x\r\nx-request-id: second", 1)
        client.sendall(behind)
        assert gateway.row("second")
        assert gateway.idle()
        port = client.getsockname()[1]
        assert until(lambda: port not in peers(gateway)), "an answer that nobody reads is not kept"


def test_a_hang_up_behind_a_pipelined_request_is_noticed(gateway: Gateway, stage: Stage) -> None:
    stage.play(fakes.drip)
    with closing(connect(gateway, False, "hangs-up")) as client:
        assert until(lambda: stage.requests)
        client.sendall(request(gateway))
    assert until(lambda: stage.requests[0].gone.is_set())
    assert until(gateway.idle)
    assert gateway.row("hangs-up")["outcome"] == "client_gone"
    assert len(stage.requests) == 1


def test_a_pipelined_request_is_left_to_be_sent_again(gateway: Gateway, stage: Stage) -> None:
    """RFC 9112, 9.3.2: the first answer is whole, and the close tells that the second never came."""
    stage.play(fakes.drip)
    with closing(connect(gateway, False)) as client:
        client.sendall(request(gateway) * 3)
        assert until(lambda: stage.requests)
        stage.open_gate()
        said = client.makefile("rb").read()
    assert said.startswith(b"HTTP/1.1 200 ") and said.endswith(sample("chat")) and said.count(b"HTTP/1.1") == 1
    assert len(stage.requests) == 1
