"""A stream that loses its instance goes on at another one, and its client sees a pause and nothing else.

The emulated engine's next token depends on the ids before it and on nothing else, so that the joined answer can be
compared with the uncut one; now and then it says a dash, whose three tokens may not be parted."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.engines import Engine
from tests.e2e.process import LIMITS, LOOSE, Gateway
from tests.fakes import sse, until

TOKENS = 90
LONG = 2500  # tokens of an answer that still runs when something is done to its instance
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me of the movie"}],
    "max_tokens": TOKENS,
    "stream": True,
}
TEXT = {"model": "tiny", "prompt": "Tell me of the movie", "max_tokens": TOKENS, "stream": True}
ROUTES = {"chat": ("/v1/chat/completions", CHAT), "text": ("/v1/completions", TEXT)}


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    made = [Engine("--speed", "10") for _ in range(2)]
    for engine in made:
        engine.wait_ready()
    yield made
    for engine in made:
        engine.end()


@pytest.fixture(scope="module")
def gateway(engines: list[Engine], start: Any) -> Gateway:
    """Two pools of one instance each: answers come from the first, and from the second only without it."""
    pools = [
        {"name": "first", "serves": ["S", "M", "L"], "slots": 64, "urls": [engines[0].url]},
        {"name": "second", "serves": ["L"], "slots": 64, "urls": [engines[1].url]},
    ]
    tree = {"model": "tiny", "slo": LOOSE, "pools": pools, "context_tokens": 4096, "launcher": {"kind": "static"}}
    limits = {**LIMITS, "stall_timeout_s": 0.5, "max_wait_s": 60, "comeback_s": 60}
    return start({"tiny": tree}, limits=limits, breaker={"failures": 1_000_000}, admin_key="")


@pytest.fixture(autouse=True)
def _settled(gateway: Gateway, engines: list[Engine]) -> Iterator[None]:
    for engine in engines:
        engine.fault("cut", 0, times=0)
    assert until(gateway.all_ready)
    yield
    assert until(gateway.idle), gateway.state()
    assert until(lambda: all(engine.state()["running"] == 0 for engine in engines))


def said(body: bytes) -> dict[str, Any]:
    """What a finished stream says, once it is seen to be well-formed: one id, one time, one end."""
    *events, done = sse(body)
    assert done == b"data: [DONE]", done
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert not any("error" in chunk for chunk in chunks), chunks[-1]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    ends = [(choice["finish_reason"], choice["stop_reason"]) for choice in choices if choice["finish_reason"]]
    assert len(ends) == 1 and choices[-1]["finish_reason"]
    assert all(choice["token_ids"] is None for choice in choices if "token_ids" in choice)
    usage = [chunk["usage"] for chunk in chunks if not chunk["choices"]]
    assert b"\xef\xbf\xbd" not in body
    text = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)
    return {"text": text, "end": ends[0], "usage": usage, "roles": sum("role" in c.get("delta", {}) for c in choices)}


def ask(gateway: Gateway, route: str, **more: Any) -> httpx.Response:
    path, body = ROUTES[route]
    return gateway.http.post(gateway.url + path, json={**body, **more})


def uncut(engine: Engine, route: str, **more: Any) -> dict[str, Any]:
    path, body = ROUTES[route]
    return said(engine.http.post(path, json={**body, **more}).content)


def assert_moved(gateway: Gateway, answer: httpx.Response, moves: int = 1) -> None:
    row = gateway.row(answer.headers["x-request-id"])
    assert (row["outcome"], row.get("moves", 0)) == ("completed", moves), row


@pytest.mark.parametrize("route", ROUTES)
def test_wherever_it_is_cut_the_joined_answer_is_the_uncut_one(
    route: str, gateway: Gateway, engines: list[Engine]
) -> None:
    more = {"stream_options": {"include_usage": True}, "ignore_eos": True}
    whole = uncut(engines[1], route, **more)
    assert "\u2014" in whole["text"], "it has to hold a character of several tokens"
    for at in range(2, TOKENS):
        engines[0].fault("cut", at)
        answer = ask(gateway, route, **more)
        assert said(answer.content) == whole, at
        assert_moved(gateway, answer)


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_across_the_cut(include: bool, gateway: Gateway, engines: list[Engine]) -> None:
    text = uncut(engines[1], "text", ignore_eos=True)["text"]
    stop = text[150:162]
    more = {"ignore_eos": True, "stop": [stop, "never said, and long"], "include_stop_str_in_output": include}
    whole = uncut(engines[1], "text", **more)
    assert whole["end"] == ("stop", stop)
    for at in range(8, 50, 2):
        engines[0].fault("cut", at)
        joined = said(ask(gateway, "text", **more).content)
        assert (joined["text"], joined["end"]) == (whole["text"], whole["end"]), at


@pytest.mark.parametrize("fault", ["stall", "garbage", "cut"])
@pytest.mark.parametrize("route", ROUTES)
def test_every_way_to_fail(fault: str, route: str, gateway: Gateway, engines: list[Engine]) -> None:
    whole = uncut(engines[1], route, ignore_eos=True)
    engines[0].fault(fault, 20)
    answer = ask(gateway, route, ignore_eos=True)
    assert said(answer.content) == whole
    row = gateway.row(answer.headers["x-request-id"])
    assert (row["outcome"], row["attempts"]) == ("completed", 2)
    # Garbage that comes in one piece with all before it, as to a busy gateway, is seen before its client has anything.
    assert row.get("moves", 0) == 1 or fault == "garbage"


def during(gateway: Gateway, route: str, act: Any, **more: Any) -> tuple[bytes, str]:
    """Acts once the first text has come; returns the whole stream and its id."""
    path, body = ROUTES[route]
    with gateway.http.stream("POST", gateway.url + path, json={**body, **more}) as answer:
        pieces = answer.iter_raw()
        got = [next(pieces), next(pieces)]
        act()
        got += pieces
        return b"".join(got), answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/abort_requests", "/pause?mode=abort"])
def test_an_engine_that_gives_up(path: str, gateway: Gateway, engines: list[Engine]) -> None:
    more = {"max_tokens": LONG, "ignore_eos": True, "stream_options": {"include_usage": True}}
    whole = uncut(engines[1], "chat", **more)
    body, _ = during(gateway, "chat", lambda: engines[0].http.post(path), **more)
    engines[0].http.post("/resume")
    assert said(body) == whole


def test_kill_and_sigterm(gateway: Gateway, engines: list[Engine]) -> None:
    more = {"max_tokens": LONG, "ignore_eos": True}
    whole = uncut(engines[1], "chat", **more)
    for number in (signal.SIGKILL, signal.SIGTERM):
        body, request_id = during(gateway, "chat", lambda number=number: engines[0].signal(number), **more)
        assert said(body) == whole
        assert gateway.row(request_id)["seam_s"] < 5
        engines[0].process.wait()
        engines[0].start()
        engines[0].wait_ready()
        assert until(gateway.all_ready)


def test_a_stream_outlives_all_instances_if_one_comes_back(gateway: Gateway, engines: list[Engine]) -> None:
    more = {"max_tokens": LONG, "ignore_eos": True}
    first, second = engines
    whole = uncut(second, "chat", **more)

    def all_die() -> None:
        for engine in (second, first):
            engine.signal(signal.SIGKILL)
            engine.process.wait()
        first.start()

    body, _ = during(gateway, "chat", all_die, **more)
    assert said(body) == whole
    second.start()
    second.wait_ready()
    assert until(gateway.all_ready)


def test_an_engine_that_dies_under_its_server(gateway: Gateway, engines: list[Engine]) -> None:
    more = {"max_tokens": LONG, "ignore_eos": True}
    whole = uncut(engines[1], "chat", **more)
    body, request_id = during(gateway, "chat", lambda: engines[0].http.post("/emulated/die"), **more)
    assert said(body) == whole
    (seam,) = gateway.row(request_id)["seams"]
    assert seam["why"] == "dead" and 0 < seam["ttft_s"] <= seam["pause_s"]
    assert engines[0].process.wait(10) == 0, "its server ends by itself"
    engines[0].start()
    engines[0].wait_ready()
    assert until(gateway.all_ready)


def test_a_server_that_is_stopped_like_a_stone(gateway: Gateway, engines: list[Engine]) -> None:
    more = {"max_tokens": LONG, "ignore_eos": True}
    whole = uncut(engines[1], "chat", **more)
    body, _ = during(gateway, "chat", lambda: engines[0].signal(signal.SIGSTOP), **more)
    engines[0].signal(signal.SIGCONT)
    assert said(body) == whole


def test_a_drain_may_move_what_runs(gateway: Gateway, engines: list[Engine]) -> None:
    more = {"max_tokens": LONG, "ignore_eos": True}
    whole = uncut(engines[1], "chat", **more)
    first = next(i["id"] for url, i in gateway.instances().items() if url == engines[0].url)
    here = f"{gateway.url}/admin/instances/{first}"
    bodies: list[bytes] = []

    def listen() -> None:
        path, body = ROUTES["chat"]
        bodies.append(httpx.post(gateway.url + path, json={**body, **more}, timeout=30).content)

    threads = [threading.Thread(target=listen) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert until(lambda: engines[0].state()["running"] == 4)
    gateway.http.post(f"{here}/drain?move=true").raise_for_status()
    for thread in threads:
        thread.join()
    assert len(bodies) == 4 and all(said(body) == whole for body in bodies)
    gateway.http.post(f"{here}/resume").raise_for_status()


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def test_tools_that_may_not_be_called_keep_no_stream_back(gateway: Gateway, engines: list[Engine]) -> None:
    more = {"tools": [TOOL], "tool_choice": "none", "ignore_eos": True}
    whole = uncut(engines[1], "chat", **more)
    engines[0].fault("cut", 20)
    answer = ask(gateway, "chat", **more)
    assert said(answer.content) == whole
    assert_moved(gateway, answer)


def test_a_stream_that_may_call_tools_is_told(gateway: Gateway, engines: list[Engine]) -> None:
    engines[0].fault("cut", 2)
    answer = ask(gateway, "chat", tools=[TOOL], tool_choice="required")
    error = json.loads(list(sse(answer.content))[-1].removeprefix(b"data: "))["error"]
    assert "token ids are not kept" in error["message"], error


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"n": 2, "temperature": 1}, "token ids are not kept"),
        ({"structured_outputs": {"regex": "a*"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"echo": False}, "token ids are not kept"),
    ],
)
def test_what_cannot_go_on_is_told(more: dict[str, Any], why: str, gateway: Gateway, engines: list[Engine]) -> None:
    engines[0].fault("cut", 4)
    answer = ask(gateway, "text", **more)
    *_, last = sse(answer.content)
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert why in error["message"], error
    assert gateway.row(answer.headers["x-request-id"])["outcome"] == "cut"


def test_a_client_may_forbid_it(gateway: Gateway, engines: list[Engine]) -> None:
    engines[0].fault("cut", 20)
    path, body = ROUTES["chat"]
    answer = gateway.http.post(
        gateway.url + path, json={**body, "ignore_eos": True}, headers={"x-joulegate-migrate": "off"}
    )
    assert b'"error"' in list(sse(answer.content))[-1]


def test_a_request_that_kills_what_it_is_sent_to_does_not_get_a_third_instance(
    gateway: Gateway, engines: list[Engine]
) -> None:
    for engine in engines:
        engine.fault("exit", 3)
    answer = ask(gateway, "chat")
    assert b'"error"' in list(sse(answer.content))[-1]
    assert gateway.row(answer.headers["x-request-id"])["attempts"] == 2
    for engine in engines:
        assert engine.process.wait(10) == 1
        engine.start()
        engine.wait_ready()
    assert until(gateway.all_ready)


def test_cut_connections_are_no_deaths(gateway: Gateway, engines: list[Engine]) -> None:
    whole = uncut(engines[0], "chat", ignore_eos=True)
    for engine in engines:
        engine.fault("cut", 3)
    answer = ask(gateway, "chat", ignore_eos=True)
    assert said(answer.content) == whole
    assert gateway.row(answer.headers["x-request-id"])["attempts"] == 3


def test_an_answer_longer_than_predicted_is_weighed(engines: list[Engine], start: Any) -> None:
    """It is whole whatever is decided."""
    pools = [
        {"name": name, "serves": list(serves), "slots": 64, "tp": 1, "clock_mhz": 1980, "urls": [engine.url]}
        for name, serves, engine in zip(("first", "second"), ("SM", "L"), engines, strict=True)
    ]
    tree = {"model": "tiny", "slo": LOOSE, "pools": pools, "context_tokens": 4096, "launcher": {"kind": "static"}}
    tree |= {"profile": "llama-3.1-8b", "edges": {"input": [256, 1024, 4096], "output": [5, 60]}}
    weighing = start({"tiny": tree}, limits=LIMITS)
    within = {"emulated_output_tokens": 40}  # an end of its own: one at a limit would teach nothing of longer ones
    whole = uncut(engines[0], "chat", **within)
    for _ in range(30):  # and the predictor learns that answers have 40 tokens
        assert said(ask(weighing, "chat", **within).content) == whole
    assert b"joulegate_overruns_total{" not in metrics(weighing)
    whole = uncut(engines[0], "chat", ignore_eos=True)
    assert said(ask(weighing, "chat", ignore_eos=True).content) == whole
    assert b"joulegate_overruns_total{" in metrics(weighing)


def metrics(gateway: Gateway) -> bytes:
    return gateway.http.get(f"{gateway.url}/metrics").content
