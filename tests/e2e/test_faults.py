"""Failures of instances: who is told what, and that nobody else notices.

Before the first byte another instance answers and the client sees a perfect answer; after it there is one error event
and the end. Whatever happens, nothing stays in flight (the `settled` fixture asks after every test)."""

import asyncio
import json

import anthropic
import openai
import pytest

from tests import fakes
from tests.e2e.process import CHAT, LIMITS, Gateway, pool, service
from tests.fakes import Script, Stage, part, raw, sample, saying, sse, status, until

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


async def pings(talk: fakes.Talk) -> None:
    """Says again and again that it is there, and never begins."""
    talk.stream_head()
    while True:
        talk.chunk(b": ping\n\n")
        await asyncio.sleep(0.05)


EARLY_STREAM = {
    "pings": pings,
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
    breaker = {"failures": 1_000_000}  # breakers are test_breakers.py's
    return start({"tiny": service(pool(stage.backends))}, limits=LIMITS, breaker=breaker)


@pytest.fixture(autouse=True)
def _settled(settled: None) -> None:
    return


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


def test_what_is_held_before_the_first_content_has_a_bound(gateway: Gateway, stage: Stage) -> None:
    """More than that is handed on, and then another instance can no longer take over."""
    created = fakes.events("responses_stream")[0]
    stage.scripts.append(part(0, saying(*[created * 100] * (1 + 2_000_000 // (100 * len(created))), ERROR_EVENT)))
    said = gateway.post("/v1/responses", stream=True, input="x")
    assert said.content.startswith(created) and len(said.content) > 1_000_000
    assert list(sse(said.content))[-1].startswith(b"event: error")
    assert len(stage.requests) == 1


def test_responses_stream_ends_with_its_own_error_event(gateway: Gateway, stage: Stage) -> None:
    stage.scripts.append(part(6, fakes.reset))
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.responses.create(model="tiny", input="x", stream=True)
        with pytest.raises(openai.APIError):
            list(stream)


@pytest.mark.parametrize(("name", "tries"), [("refuse", 5), ("500", 3), ("not_http", 5), ("garbage_200", 5)])
@pytest.mark.parametrize("stream", [False, True])
def test_when_every_instance_fails_the_client_is_told(
    name: str, tries: int, stream: bool, gateway: Gateway, stage: Stage
) -> None:
    """An error that is answered is believed: once each. Who breaks off and then passes a health probe may have been hit
    by something else, so that two more tries follow once each has failed."""
    stage.play(EARLY[name])
    said = gateway.post(stream=stream)
    error = said.json()["error"]
    assert (said.status_code, error["type"], error["code"]) == (502, "server_error", "upstream_failed")
    # Who hangs up and still says that it is healthy did not die of the request.
    counts = [len(backend.requests) for backend in stage.backends]
    assert (min(counts), sum(counts)) == (1, tries), counts
    assert gateway.row(said.headers["x-request-id"])["attempts"] == tries
    claude = gateway.post("/v1/messages", stream=stream)
    assert claude.status_code == 502
    assert claude.json()["type"] == "error" and claude.json()["error"]["type"] == "api_error"


@pytest.mark.parametrize("stream", [False, True])
def test_faults_that_hit_every_instance_once_lose_no_request(stream: bool, gateway: Gateway, stage: Stage) -> None:
    stage.scripts.extend([fakes.refuse, fakes.reset, fakes.half_head, fakes.garbage_200])
    said = gateway.post(stream=stream, stream_options={"include_usage": True})
    assert (said.status_code, said.content) == (200, sample("chat_stream_usage" if stream else "chat"))
    assert gateway.row(said.headers["x-request-id"])["attempts"] == 5


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
