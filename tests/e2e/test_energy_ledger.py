"""The energy ledger of a running gateway with emulated engines: joules on answers, sums over REST, events as they happen."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.e2e.process import Gateway, write_config
from tests.fakes import until

MODEL = "m"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hello " * 40}], "max_tokens": 30}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("energy")
    launcher = {"kind": "emulated", "start_timeout_s": 60, "log_dir": str(folder)}
    pools = [{"name": "all", "serves": ["S", "M", "L"], "instances": 1, "tp": 1, "clock_mhz": 1980}]
    service = {"model": "m", "profile": "llama-3.1-8b", "pools": pools, "launcher": launcher, "context_tokens": 8192}
    energy = {"path": str(folder / "energy.sqlite"), "gco2_per_kwh": 300}
    made = Gateway(write_config(folder, {MODEL: service}, energy=energy))
    try:
        assert until(lambda: made.logged("ready"), 60), made.log()
        yield made
        assert not made.faults()
    finally:
        made.kill_all()


def energy(gateway: Gateway, **query: Any) -> dict[str, Any]:
    return gateway.http.get(f"{gateway.url}/admin/energy", params={"window_s": 600, **query}).raise_for_status().json()


def test_an_answer_carries_its_joules_and_the_ledger_agrees(gateway: Gateway) -> None:
    assert until(lambda: gateway.state()["services"][0]["instances"][0]["state"] == "ready", 10)
    ids = []
    for _ in range(3):
        answer = gateway.http.post(f"{gateway.url}/v1/chat/completions", json=BODY)
        ids.append((answer.headers["x-request-id"], float(answer.headers["x-joulegate-joules"])))
        assert answer.headers["x-joulegate-joules-quality"] == "modelled"
    one = f"{gateway.url}/admin/energy/requests/"
    assert until(lambda: all(gateway.http.get(one + name).status_code == 200 for name, _ in ids), 15)
    for name, told in ids:
        row = gateway.http.get(one + name).json()
        assert row["quality"] == "modelled" and row["size_class"][0] == "S" and row["key"] == "anonymous"
        assert row["joules"] == pytest.approx(row["prefill_j"] + row["decode_j"]) and row["decode_j"] > 0
        assert told == pytest.approx(row["joules"], rel=0.3)  # the header is told before its window's counter is read
    assert gateway.http.get(one + "nobody").status_code == 404


def test_lines_add_up_to_the_counter(gateway: Gateway) -> None:
    gateway.http.post(f"{gateway.url}/v1/chat/completions", json=BODY)
    assert until(lambda: energy(gateway)["requests"] >= 1, 15)
    found = energy(gateway)
    lines = found["lines"]
    parts = sum(value for name, value in lines.items() if name != "requests")
    assert parts == pytest.approx(found["meter_j"] + found["filled_j"])
    assert lines["requests"] == pytest.approx(lines["prefill"] + lines["decode"]) and lines["idle"] > 0
    assert abs(found["residual_share"]) < 0.01 and found["quality"] == {"meter": "modelled", "requests": "modelled"}
    assert found["by_key"]["anonymous"]["joules"] == pytest.approx(lines["requests"])
    assert found["by_pool"]["all"]["joules"] == pytest.approx(lines["requests"])
    assert found["co2"]["g"] == pytest.approx(found["meter_j"] / 3.6e6 * 300) and found["cost"] is None
    assert sum(point["total"] for point in found["series"]) * found["step_s"] == pytest.approx(found["meter_j"])


CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
ASKED = [(path, by) for by in ("header", "nothing") for path in (CHAT, TEXT, MESSAGES, RESPONSES)]


@pytest.mark.parametrize(("path", "by"), [*ASKED, (CHAT, "option"), (TEXT, "option")])
def test_a_stream_tells_its_joules_when_asked(path: str, by: str, gateway: Gateway) -> None:
    body: dict[str, Any] = {"model": MODEL, "stream": True, "max_tokens": 20}
    body |= {TEXT: {"prompt": "hello"}, RESPONSES: {"input": "hello"}}.get(path, {"messages": BODY["messages"]})
    if by == "option":
        body["stream_options"] = {"include_energy": True, "include_usage": True}
    headers = {"x-joulegate-energy": "on"} if by == "header" else {}
    said = gateway.http.post(gateway.url + path, json=body, headers=headers).text.strip().split("\n\n")
    comments = [event for event in said if event.startswith(":")]
    usages = [event for event in said if '"joules":' in event]
    if by == "nothing":
        assert not comments and not usages
        return
    (comment,) = comments
    fields = dict(pair.split("=") for pair in comment.split()[2:])
    assert float(fields["joules"]) > 0 and fields["quality"] == "modelled" and said.index(comment) == len(said) - 2
    if by == "option":
        usage = json.loads(usages[0].removeprefix("data: "))["usage"]
        assert usage["joules"] == pytest.approx(float(fields["joules"]), rel=0.05) and usage["completion_tokens"] > 0
    else:
        assert not usages  # no usage was asked for


def test_official_clients_read_streams_with_joules(gateway: Gateway) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
        options = {"include_usage": True, "include_energy": True}
        with client.chat.completions.create(**BODY, stream=True, stream_options=options) as stream:
            chunks = list(stream)
    assert chunks[-1].usage.joules > 0 and chunks[-1].usage.quality == "modelled"
    with anthropic.Anthropic(base_url=gateway.url, api_key="x", max_retries=0) as claude:
        headers = {"x-joulegate-energy": "on"}
        with claude.messages.stream(**BODY, extra_headers=headers) as stream:
            assert stream.get_final_message().usage.output_tokens > 0


def test_bad_spans_are_told(gateway: Gateway) -> None:
    for query in ({"since": 5}, {"since": 9, "until": 5, "window_s": None}, {"window_s": -1}):
        asked = {name: value for name, value in {"window_s": 600, **query}.items() if value is not None}
        assert gateway.http.get(f"{gateway.url}/admin/energy", params=asked).status_code == 400


def test_events_tell_the_past_and_every_second(gateway: Gateway) -> None:
    seen: dict[str, Any] = {}
    with httpx.stream("GET", f"{gateway.url}/admin/events", params={"after": 0}, timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                seen.setdefault(name, json.loads(line.removeprefix("data: ")))
            if {"instance", "energy"} <= seen.keys():
                break
    assert seen["instance"]["kind"] == "instance_starting" and seen["instance"]["id"] >= 1
    assert seen["energy"]["watts"].keys() >= {"prefill", "decode", "idle"} and seen["energy"]["total_w"] > 0
    recent = gateway.http.get(f"{gateway.url}/admin/events/recent", params={"limit": 5}).json()
    assert recent and recent == sorted(recent, key=lambda event: event["id"])
    (last,) = gateway.http.get(f"{gateway.url}/admin/events/recent", params={"limit": 1}).json()
    assert last["id"] == recent[-1]["id"]
