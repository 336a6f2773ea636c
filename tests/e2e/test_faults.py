"""Failures of instances, and clients that leave: who is told what, and that nobody else notices.

Before the first byte another instance answers and the client sees a perfect answer; after it there is one error event
and the end. Whatever happens, nothing stays in flight (the `settled` fixture asks after every test)."""

import json
import socket
import threading
from contextlib import closing

import anthropic
import httpx
import openai
import pytest

from tests import fakes
from tests.e2e.process import CHAT, Gateway, pool, service
from tests.fakes import Script, Stage, events, part, raw, sample, saying, sse, status, until

LIMITS = {"first_byte_timeout_s": 0.8, "stall_timeout_s": 0.8, "max_wait_s": 5.0, "connect_timeout_s": 1.0}
CANNOT_SCHEDULE = b'{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError"}}'
ERROR_EVENT = (
    b'data: {"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}\n\n'
)
CLAUDE_ERROR = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"EngineCore died"}}\n\n'

EARLY: dict[str, Script] = {  # the client has seen nothing yet
    "refuse": fakes.refuse,
    "reset": fakes.reset,
    "half_head": fakes.half_head,
    "not_http": raw(b"\x00\xff SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "garbage_200": fakes.garbage_200,
    "empty_200": status(200, b""),
    "500": status(500, CANNOT_SCHEDULE),
    "500_text": status(500, b"Internal Server Error", "text/plain"),
    "503": status(503, b'{"error":{"message":"asleep","type":"ServiceUnavailable","code":503}}'),
    "401": status(401, b'{"error":"Unauthorized"}'),
    "stall": fakes.stall,
}
EARLY_STREAM = {
    "no_event": part(0, fakes.refuse),
    "error_first": part(0, saying(ERROR_EVENT)),
    "torn_first": part(0, fakes.torn_event),
}
EARLY_WHOLE = {
    "half_body": part(0, fakes.refuse),
    "half_body_reset": part(0, fakes.reset),
    "half_body_stall": part(0, fakes.stall),
}
LATE: dict[str, Script] = {
    "cut": part(3, fakes.refuse),
    "reset": part(3, fakes.reset),
    "torn": part(3, fakes.torn_event),
    "no_end": part(3, saying()),
    "stall": part(3, fakes.stall),
    "error_event": part(3, saying(ERROR_EVENT)),
    "not_chunked": part(3, raw(b"zzz this is no chunk size\r\n")),
    "aborted": fakes.aborted,
}


@pytest.fixture(scope="module")
def gateway(stage: Stage, start) -> Gateway:
    breaker = {"failures": 1_000_000}  # of breakers there are tests of their own below
    return start({"tiny": service(pool(stage.backends))}, limits=LIMITS, breaker=breaker)


@pytest.fixture(autouse=True)
def _settled(settled: None) -> None:
    return


@pytest.fixture
def bystander(gateway: Gateway, stage: Stage):
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


def assert_retried(stage: Stage) -> None:
    """The failed attempt and the good one, at different instances; the bystander's request is the first."""
    assert len(stage.requests) == 3
    assert sorted(len(b.requests) for b in stage.backends) == [0, 1, 2]


@pytest.mark.parametrize("name", EARLY | EARLY_WHOLE)
def test_whole_answer_is_retried_elsewhere(name: str, gateway: Gateway, stage: Stage, bystander: None) -> None:
    stage.scripts.append((EARLY | EARLY_WHOLE)[name])
    said = gateway.post()
    assert (said.status_code, said.content) == (200, sample("chat"))
    assert_retried(stage)
    assert gateway.row(said.headers["x-request-id"])["attempts"] == 2


@pytest.mark.parametrize("name", EARLY | EARLY_STREAM)
def test_stream_is_retried_elsewhere(name: str, gateway: Gateway, stage: Stage, bystander: None) -> None:
    stage.scripts.append((EARLY | EARLY_STREAM)[name])
    said = gateway.post(stream=True, stream_options={"include_usage": True})
    assert (said.status_code, said.content) == (200, sample("chat_stream_usage"))
    assert_retried(stage)


def test_an_aborted_whole_answer_is_retried(gateway: Gateway, stage: Stage, bystander: None) -> None:
    stage.scripts.append(fakes.aborted)
    said = gateway.post("/v1/completions", prompt="import os")
    assert said.content == sample("completions")
    assert_retried(stage)


@pytest.mark.parametrize("name", EARLY)
def test_messages_are_retried_elsewhere(name: str, gateway: Gateway, stage: Stage, bystander: None) -> None:
    if name == "stall":
        pytest.skip("the dialect plays no part before a head; the OpenAI route waits for it already")
    stage.scripts.append(EARLY[name])
    said = gateway.post("/v1/messages", stream=True)
    assert (said.status_code, said.content) == (200, sample("messages_stream"))
    assert_retried(stage)


def test_a_stream_that_only_began_with_message_start_is_retried(gateway: Gateway, stage: Stage) -> None:
    stage.scripts.append(part(1, fakes.reset))
    assert gateway.post("/v1/messages", stream=True).content == sample("messages_stream")


@pytest.mark.parametrize("name", LATE)
def test_after_the_first_byte_one_error_event_and_the_end(
    name: str, gateway: Gateway, stage: Stage, bystander: None
) -> None:
    stage.scripts.append(LATE[name])
    said = gateway.post(stream=True)
    *before, last = sse(said.content)
    assert said.status_code == 200
    assert not any(b'"error"' in event for event in before)
    assert all(json.loads(event.removeprefix(b"data: "))["choices"] for event in before)
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert error["type"] == "server_error" and error["message"] and error["code"]
    assert len(stage.requests) == 2, "a stream that began must not be sent again"
    row = gateway.row(said.headers["x-request-id"])
    assert (row["outcome"], row["attempts"], row["attained"]) == ("cut", 1, False)


@pytest.mark.parametrize("name", LATE)
def test_openai_client_raises_in_the_middle(name: str, gateway: Gateway, stage: Stage) -> None:
    stage.play(LATE[name])
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(model="tiny", messages=CHAT["messages"], stream=True)
        with pytest.raises(openai.APIError):
            list(stream)


@pytest.mark.parametrize("name", ["cut", "torn", "no_end", "stall", "error_event"])
def test_anthropic_client_raises_in_the_middle(name: str, gateway: Gateway, stage: Stage) -> None:
    late = part(4, saying(CLAUDE_ERROR)) if name == "error_event" else LATE[name]
    stage.scripts.append(late if name != "no_end" else part(4, saying()))
    with anthropic.Anthropic(base_url=gateway.url, api_key="x", max_retries=0) as client:
        stream = client.messages.create(model="tiny", messages=CHAT["messages"], max_tokens=6, stream=True)
        with pytest.raises(anthropic.APIError) as raised:
            list(stream)
    assert raised.value.body["type"] == "error"


def test_responses_stream_ends_with_its_own_error_event(gateway: Gateway, stage: Stage) -> None:
    stage.scripts.append(part(6, fakes.reset))
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.responses.create(model="tiny", input="x", stream=True)
        with pytest.raises(openai.APIError):
            list(stream)


@pytest.mark.parametrize("name", ["refuse", "500", "not_http", "garbage_200"])
@pytest.mark.parametrize("stream", [False, True])
def test_when_every_instance_fails_the_client_is_told(name: str, stream: bool, gateway: Gateway, stage: Stage) -> None:
    stage.play(EARLY[name])
    said = gateway.post(stream=stream)
    error = said.json()["error"]
    assert (said.status_code, error["type"], error["code"]) == (502, "server_error", "upstream_failed")
    assert [len(b.requests) for b in stage.backends] == [1, 1, 1]
    claude = gateway.post("/v1/messages", stream=stream)
    assert claude.status_code == 502
    assert claude.json()["type"] == "error" and claude.json()["error"]["type"] == "api_error"


def test_when_every_instance_stalls_the_client_gets_504(gateway: Gateway, stage: Stage) -> None:
    stage.play(fakes.stall)
    said = gateway.post()
    assert (said.status_code, said.json()["error"]["code"]) == (504, "upstream_timeout")
    assert until(lambda: all(r.gone.is_set() for r in stage.requests)), "a request that timed out must not run on"


@pytest.mark.parametrize("stream", [False, True])
def test_4xx_goes_to_the_client_as_it_is(stream: bool, gateway: Gateway, stage: Stage) -> None:
    stage.play(status(400, sample("error_temperature")))
    said = gateway.post(stream=stream)
    assert (said.status_code, said.content) == (400, sample("error_temperature"))
    assert len(stage.requests) == 1
    assert gateway.row(said.headers["x-request-id"])["outcome"] == "client_error"


def test_4xx_takes_the_shape_of_the_route(gateway: Gateway, stage: Stage) -> None:
    stage.play(status(404, b'{"detail":"Not Found"}'))
    said = "the instances of tiny do not serve /v1/"
    assert gateway.post().json()["error"]["message"] == said + "chat/completions"
    claude = gateway.post("/v1/messages").json()
    assert claude == {"type": "error", "error": {"type": "not_found_error", "message": said + "messages"}}


def test_4xx_in_plain_text_becomes_json_and_says_so(gateway: Gateway, stage: Stage) -> None:
    stage.play(status(400, b"Invalid HTTP request received.", "text/plain; charset=utf-8"))
    said = gateway.post()
    assert said.json()["error"]["message"] == "Invalid HTTP request received."
    assert said.headers["content-type"] == "application/json"


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


def test_a_client_that_never_reads_is_let_go(gateway: Gateway, stage: Stage) -> None:
    _, second, *rest = events("chat_stream_usage")
    stage.play(part(1, saying(*[second * 200] * 600, *rest)))  # far more than the buffers of all sockets between
    with closing(connect(gateway, True)):
        assert until(lambda: [r["outcome"] for r in gateway.rows()][-1:] == ["client_gone"])
        assert until(gateway.idle)


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


def connect(gateway: Gateway, stream: bool):
    """A client that sent its request and will hang up."""
    body = json.dumps({**CHAT, "stream": stream}).encode()
    made = socket.create_connection(("127.0.0.1", gateway.port), 10)
    made.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return made


# --- queueing, breakers, outages: gateways of their own


@pytest.fixture(scope="module")
def narrow(stage: Stage, start) -> Gateway:
    """One instance with one slot behind a quick breaker."""
    return start(
        {"tiny": service(pool(stage.backends[:1], slots=1))},
        limits=LIMITS,
        breaker={"failures": 2, "backoff_s": 0.3, "backoff_max_s": 0.3},
    )


def opened(gateway: Gateway) -> bool:
    return any(i["breaker_open"] for i in gateway.instances().values())


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


def test_4xx_never_opens_the_breaker(narrow: Gateway, stage: Stage) -> None:
    stage.play(status(400, sample("error_temperature")))
    assert [narrow.post().status_code for _ in range(5)] == [400] * 5
    assert not opened(narrow)


def test_a_client_that_leaves_never_opens_the_breaker(narrow: Gateway, stage: Stage) -> None:
    stage.play(fakes.drip)
    for number in range(3):
        with closing(connect(narrow, False)):
            assert until(lambda n=number: len(stage.requests) == n + 1)
        assert until(narrow.idle)
    assert not opened(narrow)


def assert_opens(gateway: Gateway, stage: Stage) -> None:
    stage.play(status(500, CANNOT_SCHEDULE))
    assert [gateway.post().status_code for _ in range(2)] == [502, 502]
    assert opened(gateway)


def test_5xx_opens_the_breaker_and_a_later_success_closes_it(narrow: Gateway, stage: Stage) -> None:
    assert_opens(narrow, stage)
    stage.play(fakes.good)
    said = narrow.post()  # waits for the end of the pause and is the trial
    assert said.content == sample("chat")
    assert not opened(narrow)
    assert len(stage.requests) == 3


def test_only_one_request_tries_a_half_open_instance(narrow: Gateway, stage: Stage) -> None:
    assert_opens(narrow, stage)
    stage.play(fakes.drip)
    with closing(connect(narrow, False)), closing(connect(narrow, False)):
        assert until(lambda: len(stage.requests) == 3)
        assert narrow.state()["services"][0]["queued"] == 1
        stage.open_gate()
        assert until(lambda: len(stage.requests) == 4)
        assert until(narrow.idle)
    assert not opened(narrow)


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
