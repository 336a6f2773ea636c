"""The gateway in front of real vLLM: what a client gets is, byte for byte, what vLLM sent.

Run:  .venv/bin/pytest tests/vllm      (the first run makes .venv-vllm)
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import socket
import time
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.vllm.answers import CHAT, DONE, MESSAGES, RESPONSES, TEXT, events, meaning, strip_usage
from tests.vllm.rig import Answer, Rig, marked

# The first test waits for the servers to start; the limit is on the test alone.
pytestmark = pytest.mark.timeout(90, func_only=True)

PROMPTS = ["import os", "The quick brown fox", "def main(args):\n    return 0\n", "Zażółć gęślą jaźń 漢字 🙂"]
USAGE = {"include_usage": True}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
SAMPLED = {"temperature": 1.0, "seed": 7}
# What a body may hold besides its prompt.  {} is the plain request.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one-token": {"max_tokens": 1},
    "stop-string": {"max_tokens": 60, "stop": ["e", "zz"]},
    "stop-included": {"max_tokens": 60, "stop": ["e"], "include_stop_str_in_output": True},
    "seed": SAMPLED,
    "n2": SAMPLED | {"n": 2},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "logit-bias": {"logit_bias": {"300": 50}},
    "token-ids": {"return_token_ids": True},
    "unknown-field": {"nobody_knows": [1, {"a": "é"}]},
}
CHAT_VARIANTS = VARIANTS | {
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "tools-none": {"tools": [TOOL], "tool_choice": "none"},
}
TEXT_VARIANTS = VARIANTS | {"logprobs": {"logprobs": 3}, "echo": {"echo": True}}


def chat(prompt: str = PROMPTS[0], **more: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}]}
    return body | {"max_tokens": 24, "temperature": 0} | more


def text(prompt: Any = PROMPTS[0], **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 24, "temperature": 0} | more


def responses(prompt: str = PROMPTS[0], **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": prompt, "max_output_tokens": 24, "temperature": 0} | more


# Chat and completions


@pytest.mark.parametrize("prompt", PROMPTS, ids=["code", "words", "lines", "unicode"])
@pytest.mark.parametrize(("path", "make"), [(CHAT, chat), (TEXT, text)], ids=["chat", "completions"])
def test_prompts(rig: Rig, path: str, make: Any, prompt: str) -> None:
    rig.check(path, make(prompt))
    rig.check(path, make(prompt, stream=True))


@pytest.mark.parametrize("variant", CHAT_VARIANTS)
def test_chat(rig: Rig, variant: str) -> None:
    check_all_ways(rig, CHAT, chat(**CHAT_VARIANTS[variant]))


@pytest.mark.parametrize("variant", TEXT_VARIANTS)
def test_completions(rig: Rig, variant: str) -> None:
    check_all_ways(rig, TEXT, text(**TEXT_VARIANTS[variant]))


def check_all_ways(rig: Rig, path: str, body: dict[str, Any]) -> None:
    """Not streamed, streamed, and streamed with usage; all three say the same."""
    whole = rig.check(path, body)
    stream = rig.check(path, body | {"stream": True})
    with_usage = rig.check(path, body | {"stream": True, "stream_options": USAGE})
    said = meaning(path, whole.body)
    assert meaning(path, with_usage.body) == said
    assert meaning(path, stream.body) == said | {"usage": None}
    assert stream.body.endswith(DONE)
    assert with_usage.body.endswith(DONE)


def test_long_prompts_of_every_size(rig: Rig) -> None:
    for count in (200, 800, 2500, 4000):
        rig.check(TEXT, text([500 + i % 700 for i in range(count)], stream=True))


def test_batch_of_prompts(rig: Rig) -> None:
    rig.check(TEXT, text(PROMPTS[:3]))
    rig.check(TEXT, text(PROMPTS[:3], stream=True))


def test_usage_counts_every_token(rig: Rig) -> None:
    answer = rig.check(CHAT, chat(max_tokens=40))
    counted = rig.client.post(rig.servers[0].url + "/tokenize", json=chat()).json()["count"]
    usage = answer.json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (counted, 40, counted + 40)


@pytest.mark.parametrize(
    "options",
    [None, {}, {"include_usage": False}, USAGE, USAGE | {"continuous_usage_stats": True}],
    ids=["null", "empty", "false", "true", "continuous"],
)
def test_stream_options(rig: Rig, options: dict[str, Any] | None) -> None:
    answer = rig.check(CHAT, chat(stream=True, stream_options=options))
    usage = [event for event in events(answer.body) if event.get("choices") == []]
    assert len(usage) == bool((options or {}).get("include_usage"))


@pytest.mark.parametrize("include", [{}, {"include_usage": False}], ids=["alone", "false"])
def test_continuous_usage_without_include_usage(rig: Rig, include: dict[str, Any]) -> None:
    """vLLM then sends no usage at all, so adding include_usage must not bring it into the chunks."""
    answer = rig.check(TEXT, text(stream=True, stream_options=include | {"continuous_usage_stats": True}))
    assert not [event for event in events(answer.body) if event.get("usage")]


# The other routes


def test_responses(rig: Rig) -> None:
    whole = rig.check(RESPONSES, responses())
    stream = rig.check(RESPONSES, responses(stream=True))
    assert meaning(RESPONSES, whole.body) == meaning(RESPONSES, stream.body)


def test_messages(rig: Rig) -> None:
    whole = rig.check(MESSAGES, chat())
    stream = rig.check(MESSAGES, chat(stream=True))
    assert meaning(MESSAGES, whole.body) == meaning(MESSAGES, stream.body)
    assert rig.check(MESSAGES, chat(max_tokens=60, stop_sequences=["e"])).json["stop_reason"] == "stop_sequence"


def test_tokenize_and_detokenize(rig: Rig) -> None:
    tokens = rig.check("/tokenize", {"model": "tiny", "prompt": PROMPTS[3]}, directly=False).json["tokens"]
    rig.check("/tokenize", {"model": "tiny", "messages": chat()["messages"]}, directly=False)
    back = rig.check("/detokenize", {"model": "tiny", "tokens": tokens}, directly=False).json
    assert back == {"prompt": PROMPTS[3]}


def test_models(rig: Rig) -> None:
    listed = rig.client.get(f"{rig.url}/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert listed["data"][0]["object"] == "model"


def test_openai_client(rig: Rig) -> None:
    expected = meaning(CHAT, rig.direct(CHAT, chat()).content)
    with openai.OpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        whole = client.chat.completions.create(**chat())
        stream = list(client.chat.completions.create(**chat(), stream=True, stream_options=USAGE))
        answer = client.responses.create(**responses())
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**chat(max_tokens=0))
    assert whole.choices[0].message.content == expected["text"][0]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == expected["text"][0]
    assert stream[-1].usage.total_tokens == whole.usage.total_tokens == expected["usage"]["total_tokens"]
    assert answer.output_text == expected["text"][0]


def test_anthropic_client(rig: Rig) -> None:
    expected = meaning(MESSAGES, rig.direct(MESSAGES, chat()).content)
    with anthropic.Anthropic(base_url=rig.url, api_key="none", max_retries=0) as client:
        body = chat()
        body.pop("temperature")
        with client.messages.stream(**body, extra_body={"temperature": 0}) as stream:
            final = stream.get_final_message()
    assert final.content[0].text == expected["text"]
    assert final.usage.output_tokens == expected["usage"]["output_tokens"]


# Bad requests

PASSED_ON = {
    "wrong-type": (CHAT, chat(temperature="hot")),
    "max-tokens-zero": (CHAT, chat(max_tokens=0)),
    "temperature": (CHAT, chat(temperature=-1)),
    "stream-options": (CHAT, chat(stream_options=USAGE)),
    "tool-choice-auto": (CHAT, chat(tools=[TOOL], tool_choice="auto")),
    "tool-choice-auto-stream": (CHAT, chat(tools=[TOOL], tool_choice="auto", stream=True)),
    "n2-greedy": (CHAT, chat(n=2)),
    "n2-greedy-stream": (CHAT, chat(n=2, stream=True)),
    "empty-messages": (CHAT, chat(messages=[])),
    "missing-messages": (CHAT, {"model": "tiny"}),
    "missing-prompt": (TEXT, {"model": "tiny"}),
    "token-out-of-vocabulary": (TEXT, text([99999])),
    "too-long": (TEXT, text([7] * 5000)),
    "too-long-stream": (TEXT, text([7] * 5000, stream=True)),
    "chat-too-long": (CHAT, chat("x y " * 4000)),
    "max-tokens-too-big": (CHAT, chat(max_tokens=100000)),
}
# What the gateway must understand itself before it can route it; the words are its own.
OWN = {
    "unknown-model": (CHAT, json.dumps(chat(model="nope")).encode()),
    "unknown-model-stream": (TEXT, json.dumps(text(model="nope", stream=True)).encode()),
    "bad-json": (CHAT, b'{"model": "tiny", '),
    "empty-body": (CHAT, b""),
    "not-an-object": (CHAT, b"[]"),
    "not-utf8": (CHAT, b'{"model": "\xff"}'),
}


@pytest.mark.parametrize("case", PASSED_ON)
def test_bad_request_is_answered_as_vllm_answers_it(rig: Rig, case: str) -> None:
    path, body = PASSED_ON[case]
    answer = rig.client.post(rig.url + path, json=body)
    expected = rig.direct(path, body)
    assert expected.status_code >= 400
    assert answer.status_code == expected.status_code
    assert without_counts(answer.content) == without_counts(expected.content)


def without_counts(body: bytes) -> bytes:
    """vLLM tells how many fields a body has; the gateway adds some, priority for one."""
    return re.sub(rb"<dict of \d+ items>", b"<dict>", body)


@pytest.mark.parametrize("case", OWN)
def test_gateway_refuses_what_vllm_refuses(rig: Rig, case: str) -> None:
    path, body = OWN[case]
    answer = rig.client.post(rig.url + path, content=body, headers={"content-type": "application/json"})
    expected = rig.direct(path, body)
    assert answer.status_code == expected.status_code
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answer.json()["error"]["message"]


def test_bad_messages_request_is_told_in_the_shape_of_its_clients(rig: Rig) -> None:
    """vLLM keeps OpenAI's shape here, which the clients of this route don't read."""
    body = {"model": "tiny", "max_tokens": 4}
    answer = rig.client.post(rig.url + MESSAGES, json=body)
    expected = rig.direct(MESSAGES, body)
    assert answer.status_code == expected.status_code == 400
    assert answer.json()["type"] == "error"
    told = answer.json()["error"]["message"].encode()
    assert without_counts(told) == without_counts(expected.json()["error"]["message"].encode())


def test_no_model_means_the_served_one_or_an_error(rig: Rig) -> None:
    body = chat()
    body.pop("model")
    answer = rig.ask(CHAT, body)
    if answer.status == 200:
        rig.compare(answer, directly=False)
    else:
        assert answer.status in (400, 404)
        assert answer.json["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/nothing", "/sleep", "/pause", "/invocations", "/abort_requests"])
def test_no_way_to_the_engines_own_routes(rig: Rig, path: str) -> None:
    request = marked({"model": "tiny"})
    assert rig.client.post(rig.url + path, json=request).status_code in (403, 404, 405)
    assert not rig.exchanges(request["user"])


# Clients that leave


def eventually(what: Any, bound_s: float = 3.0) -> bool:
    deadline = time.monotonic() + bound_s
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
def test_disconnect_stops_the_engine(rig: Rig, streamed: bool) -> None:
    """The request would run for 4 s and more; a client that leaves must end it at once."""
    assert eventually(lambda: rig.running() == 0)
    request = marked(text(max_tokens=3900, ignore_eos=True, stream=streamed))
    data = json.dumps(request).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(rig.url.rpartition(":")[2]))) as client:
        client.sendall(head.encode() + data)
        if streamed:
            assert client.recv(65536)
        assert eventually(lambda: rig.running() == 1)
    left_s = time.monotonic()
    assert eventually(lambda: rig.running() == 0, bound_s=1.5), "still running after the client left"
    print(f"ended {time.monotonic() - left_s:.3f} s after the client left")
    ((_, exchange),) = rig.exchanges(request["user"])
    assert not exchange.complete


# Many at once


def mix(count: int) -> list[tuple[str, dict[str, Any]]]:
    """Streams of every kind, short and long, in a fixed order."""
    kinds = itertools.cycle(
        [
            (CHAT, chat, {"stream": True}),
            (TEXT, text, {"stream": True}),
            (CHAT, chat, {"stream": True, "stream_options": USAGE}),
            (TEXT, text, {"stream": True, "stream_options": USAGE, "return_token_ids": True}),
            (RESPONSES, responses, {"stream": True}),
            (MESSAGES, chat, {"stream": True}),
            (CHAT, chat, {"stream": True, "stop": [" data"]}),
            (CHAT, chat, {}),
            (TEXT, text, {"stream": True, "temperature": 0.8, "seed": 11}),
        ]
    )
    requests = []
    for i, (path, make, more) in zip(range(count), kinds, strict=False):
        limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
        prompt = f"{PROMPTS[i % len(PROMPTS)]} {i} " * (1 + i % 7)
        requests.append((path, make(prompt, **more, **{limit: (8, 40, 120, 250)[i % 4]})))
    return requests


async def ask_all(url: str, requests: list[tuple[str, dict[str, Any]]]) -> list[Answer | Exception]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:

        async def ask(path: str, body: dict[str, Any]) -> Answer:
            request = marked(body)
            reply = await client.post(url + path, json=request)
            return Answer(path, request, reply.status_code, reply.headers, reply.content)

        return await asyncio.gather(*(ask(path, body) for path, body in requests), return_exceptions=True)


NAMES = re.compile(rb'"id":"[^"]*"|"created":[0-9]+')
WORDS = re.compile(rb'"(?:content|text)":"((?:[^"\\]|\\.)*)"')


def forms_and_words(body: bytes) -> tuple[list[bytes], bytes]:
    """The bytes of a stream's events without their words, ids and times, once where several in a row are alike, and all the
    words: the same however busy vLLM was, which merges the chunks that it had no time to send."""
    forms: list[bytes] = []
    for event in NAMES.sub(b"", body).split(b"\n\n"):
        form = WORDS.sub(b"", event)
        if not forms or form != forms[-1]:
            forms.append(form)
    return forms, b"".join(WORDS.findall(body))


@pytest.mark.parametrize("usage", [False, True], ids=["plain", "usage"])
@pytest.mark.parametrize("prompt", PROMPTS, ids=["code", "words", "lines", "unicode"])
@pytest.mark.parametrize(("path", "make"), [(CHAT, chat), (TEXT, text)], ids=["chat", "completions"])
def test_streams_are_what_vllm_sends_to_who_asks_for_no_ids(
    rig: Rig, path: str, make: Any, prompt: str, usage: bool
) -> None:
    """The gateway asks for token ids and takes them out again. Byte by byte, but for where chunks end, id and time."""
    body = make(prompt, stream=True, max_tokens=12, **({"stream_options": USAGE} if usage else {}))

    def same() -> bool:
        ours, theirs = rig.ask(path, body).body, rig.direct(path, body | {"stream_options": USAGE}).content
        if not usage:
            theirs = strip_usage(theirs)
        assert b'ids":[' not in ours
        return forms_and_words(ours) == forms_and_words(theirs)

    assert any(same() for _ in range(20))  # an answer may have come as one chunk, the last: that form alone


def test_many_at_once(rig: Rig) -> None:
    answers = asyncio.run(ask_all(rig.url, mix(90)))
    problems = []
    for answer in answers:
        try:
            if isinstance(answer, Exception):
                raise AssertionError(repr(answer))
            rig.compare(answer)
        except AssertionError as problem:
            problems.append(str(problem))
    assert not problems, f"{len(problems)} of {len(answers)}: " + "\n".join(problems[:5])
    assert eventually(lambda: rig.running() == 0)


def test_some_leave_while_others_stay(rig: Rig) -> None:
    """Streams that end by themselves are whole even when every second client goes away."""

    async def leave(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        with contextlib.suppress(httpx.TransportError):
            async with client.stream("POST", rig.url + CHAT, json=body) as reply:
                async for _ in reply.aiter_bytes():
                    return

    async def both() -> list[Answer | Exception]:
        async with httpx.AsyncClient(timeout=60) as client:
            leavers = [leave(client, chat(max_tokens=2000, stream=True)) for _ in range(15)]
            answers, *_ = await asyncio.gather(ask_all(rig.url, mix(15)), *leavers)
            return answers

    for answer in asyncio.run(both()):
        assert isinstance(answer, Answer), answer
        rig.compare(answer)
    assert eventually(lambda: rig.running() == 0)
