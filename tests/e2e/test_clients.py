"""The official clients against the gateway: what they parse is what vLLM said, streaming and not.

The backends answer with vLLM's recorded bytes, so the text and the usage that clients must see are known."""

import asyncio
import json

import anthropic
import httpx
import openai
import pytest

from tests.e2e.process import CHAT, Gateway, pool, service
from tests.fakes import Stage, events, sample, status

MESSAGES = CHAT["messages"]
TEXT = json.loads(sample("chat"))["choices"][0]["message"]["content"]
COMPLETION = json.loads(sample("completions"))["choices"][0]["text"]


@pytest.fixture(scope="module")
def gateway(stage: Stage, start) -> Gateway:
    return start({"tiny": service(pool(stage.backends))})


@pytest.fixture(autouse=True)
def _settled(settled: None) -> None:
    return


@pytest.fixture
def client(gateway: Gateway):
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-secret", max_retries=0) as made:
        yield made


@pytest.fixture
def claude(gateway: Gateway):
    with anthropic.Anthropic(base_url=gateway.url, api_key="sk-secret", max_retries=0) as made:
        yield made


def chat_text(chunks) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=6)
    assert answer.choices[0].message.content == TEXT
    assert answer.usage is not None and answer.usage.completion_tokens == 6


def test_chat_stream_has_no_usage_unless_asked(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))
    assert chat_text(chunks) == TEXT
    assert all(chunk.choices for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_chat_stream_with_usage(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, stream_options=options))
    assert chat_text(chunks) == TEXT
    assert not chunks[-1].choices
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (14, 6)


def test_the_engine_is_always_asked_for_usage_and_the_log_has_it(gateway: Gateway, stage: Stage) -> None:
    said = gateway.post(stream=True, stream_options={"include_usage": False})
    assert stage.requests[0].json["stream_options"]["include_usage"] is True
    row = gateway.row(said.headers["x-request-id"])
    assert (row["input_tokens"], row["output_tokens"], row["outcome"]) == (14, 6, "completed")


def test_a_stream_passes_byte_for_byte(gateway: Gateway) -> None:
    said = gateway.post(stream=True, stream_options={"include_usage": True})
    assert said.content == sample("chat_stream_usage")
    without = gateway.post(stream=True)
    assert without.content == b"".join(e for e in events("chat_stream_usage") if b'"choices":[]' not in e)


def test_a_whole_answer_passes_byte_for_byte(gateway: Gateway) -> None:
    assert gateway.post().content == sample("chat")


def test_completions(client: openai.OpenAI) -> None:
    assert client.completions.create(model="tiny", prompt="import os").choices[0].text == COMPLETION
    stream = client.completions.create(model="tiny", prompt="import os", stream=True)
    assert "".join(c.choices[0].text for c in stream) == COMPLETION


def test_responses(client: openai.OpenAI) -> None:
    assert client.responses.create(model="tiny", input="import os").output_text == TEXT
    seen = list(client.responses.create(model="tiny", input="import os", stream=True))
    assert "".join(e.delta for e in seen if e.type == "response.output_text.delta") == TEXT
    assert seen[-1].type == "response.completed"


def test_messages(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(model="tiny", messages=MESSAGES, max_tokens=6)
    assert answer.content[0].text == TEXT
    with claude.messages.stream(model="tiny", messages=MESSAGES, max_tokens=6) as stream:
        assert "".join(stream.text_stream) == TEXT
        assert stream.get_final_message().usage.output_tokens == 6


def test_count_tokens_and_tokenize(claude: anthropic.Anthropic, gateway: Gateway) -> None:
    assert claude.messages.count_tokens(model="tiny", messages=MESSAGES).input_tokens == 14
    assert gateway.post("/tokenize", prompt="import os").json()["count"] == 2


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none-such")


def test_an_engine_without_embeddings_says_so_to_the_client(client: openai.OpenAI, stage: Stage) -> None:
    stage.play(status(404, b'{"detail":"Not Found"}'))
    with pytest.raises(openai.NotFoundError) as raised:
        client.embeddings.create(model="tiny", input="x", encoding_format="float")
    assert "do not serve /v1/" in raised.value.body["message"]


def test_fields_that_routing_does_not_know_reach_the_engine(client: openai.OpenAI, stage: Stage) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    extra = {"top_k": 3, "unknown_field": {"deep": [1, None, "ü"]}}
    client.chat.completions.create(model="tiny", messages=MESSAGES, tools=tools, extra_body=extra)
    sent = stage.requests[0].json
    assert (sent["tools"], sent["top_k"], sent["unknown_field"]) == (tools, 3, {"deep": [1, None, "ü"]})


def test_async_clients_side_by_side(gateway: Gateway) -> None:
    async def one(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        return chat_text([chunk async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(50)))

    assert asyncio.run(all_of_them()) == [TEXT] * 50


def test_async_anthropic(gateway: Gateway) -> None:
    async def one() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=gateway.url, api_key="x", max_retries=0) as client,
            client.messages.stream(model="tiny", messages=MESSAGES, max_tokens=6) as stream,
        ):
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(one()) == TEXT


def test_cold_routes(gateway: Gateway) -> None:
    with httpx.Client(base_url=gateway.url) as http:
        for path in ("/health", "/ping", "/liveness", "/readiness", "/version", "/", "/metrics", "/v1/models"):
            assert http.get(path).status_code == 200, path
        assert http.head("/health").status_code == 200
        assert 'joulegate_instances{pool="all",service="tiny",state="ready"} 3.0' in http.get("/metrics").text


def test_a_prompt_never_reaches_the_run_log(gateway: Gateway) -> None:
    said = gateway.post(messages=[{"role": "user", "content": "correct horse battery staple"}])
    gateway.row(said.headers["x-request-id"])
    assert "horse" not in gateway.run_log.read_text()
    assert "horse" not in gateway.log()
