"""Answers that are right but come in an unusual way: in single bytes, huge, after an interim one, or on a connection
that was closed or says too much."""

import pytest

from tests import fakes
from tests.e2e.process import LIMITS, Gateway, pool, service
from tests.fakes import Stage, events, part, sample, saying, status, until


@pytest.fixture(scope="module")
def gateway(stage: Stage, start) -> Gateway:
    breaker = {"failures": 1_000_000}
    return start({"tiny": service(pool(stage.backends))}, limits=LIMITS, breaker=breaker)


@pytest.fixture(autouse=True)
def _settled(settled: None) -> None:
    return


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_single_bytes(stream: bool, gateway: Gateway, stage: Stage) -> None:
    stage.play(fakes.bytewise)
    body = sample("chat_stream_usage") if stream else sample("chat")
    said = gateway.post(stream=stream, stream_options={"include_usage": True})
    assert (said.status_code, said.content) == (200, body)


def test_a_huge_answer(gateway: Gateway, stage: Stage) -> None:
    body = sample("chat").replace(b'"content":"', b'"content":"' + b"x" * 20_000_000)
    stage.play(status(200, body))
    assert gateway.post().content == body


def test_a_huge_stream(gateway: Gateway, stage: Stage) -> None:
    first, second, *rest = events("chat_stream_usage")
    stage.play(part(1, saying(*[second * 200] * 100, *rest)))
    said = gateway.post(stream=True, stream_options={"include_usage": True})
    assert said.content == first + second * 20_000 + b"".join(rest)


def test_a_keep_alive_connection_that_closed_is_survived(gateway: Gateway, stage: Stage) -> None:
    assert until(lambda: gateway.post() and all(any(c.served for c in b.connections) for b in stage.backends))
    for backend in stage.backends:
        backend.closes_reused = True
    said = gateway.post()
    assert said.content == sample("chat")
    assert sum(b.closed_reused for b in stage.backends) == 1
    assert gateway.row(said.headers["x-request-id"])["attempts"] == 1


def test_what_comes_after_an_answer_is_not_the_next_answer(gateway: Gateway, stage: Stage) -> None:
    false = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{"false":"one"}'

    body = sample("chat")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def twice(talk: fakes.Talk) -> None:
        talk.write(head + body + false)  # in one piece: a later one could meet the next request on its way

    stage.play(twice)
    for _ in range(10):
        assert gateway.post().content == sample("chat")


def test_an_interim_answer_is_not_the_answer(gateway: Gateway, stage: Stage) -> None:
    async def hints_first(talk: fakes.Talk) -> None:
        talk.write(b"HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n")
        await fakes.good(talk)

    stage.play(hints_first)
    said = gateway.post()
    assert (said.content, said.headers.get("link")) == (sample("chat"), None)


@pytest.mark.parametrize("then", [fakes.reset, fakes.refuse, fakes.stall])
def test_a_stream_that_is_whole_but_not_closed_is_whole(then: fakes.Script, gateway: Gateway, stage: Stage) -> None:
    stage.play(part(100, then))
    said = gateway.post(stream=True, stream_options={"include_usage": True})
    assert said.content == sample("chat_stream_usage")
    assert gateway.row(said.headers["x-request-id"])["outcome"] == "completed"
