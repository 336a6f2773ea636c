"""The emulated engine as a process, read with the official clients: answers, streams, errors, leaving, stopping."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from pools.ports import free_ports

ROOT = Path(__file__).parent.parent.parent
SAMPLES = ROOT / "tests" / "vllm" / "samples"
MODEL = "tiny"
ASK: Any = [{"role": "user", "content": "Tell me about the water and the people of a city."}]
DEADLINE_S = 30


class Server:
    def __init__(self, *flags: str) -> None:
        (self.port,) = free_ports(1)
        argv = [sys.executable, "-m", "simulator.serve", "--port", str(self.port), "--profile", "llama-3.1-8b"]
        argv += ["--served-model-name", MODEL, "--max-model-len", "4096", *flags]
        self.process = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE)
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE_S)
        until(self.is_up)

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.process.stderr
        with contextlib.suppress(httpx.TransportError):
            return self.http.get("/health").status_code == 200
        return False

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)

    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0, timeout=DEADLINE_S)

    def state(self) -> dict[str, Any]:
        return self.http.get("/emulated/state").json()

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, **more)

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(DEADLINE_S)
        self.http.close()
        assert self.process.stderr is not None
        said = self.process.stderr.read().decode()
        self.process.stderr.close()
        assert "Traceback" not in said, said
        return code


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    one = Server("--speed", "10")
    yield one
    assert one.stop() == 0


@pytest.fixture
def own_server() -> Iterator[Callable[..., Server]]:
    """Servers that a test may stop or break."""
    started: list[Server] = []

    def start(*flags: str) -> Server:
        started.append(Server(*flags))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


def events(text: str) -> list[Any]:
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(one) for one in data]


def shape(value: Any) -> Any:
    """A JSON value without its values: the keys and their order."""
    if isinstance(value, dict):
        return [(key, shape(one)) for key, one in value.items()]
    return [shape(one) for one in value[:1]] if isinstance(value, list) else None


# --- answers


def test_chat_with_and_without_stream(server: Server) -> None:
    client = server.openai()
    ask: Any = {"model": MODEL, "messages": ASK, "max_tokens": 30, "extra_body": {"ignore_eos": True}}
    whole = client.chat.completions.create(**ask, temperature=0)
    assert whole.usage and whole.usage.completion_tokens == 30
    assert whole.choices[0].finish_reason == "length"
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == openai.types.CompletionUsage(
        prompt_tokens=whole.usage.prompt_tokens, completion_tokens=30, total_tokens=whole.usage.total_tokens
    )


def test_completions_batches_echo_and_siblings(server: Server) -> None:
    client = server.openai()
    ask: Any = {"model": MODEL, "prompt": ["a city", "the sea"], "n": 2, "max_tokens": 5, "echo": True}
    ask["extra_body"] = {"ignore_eos": True}
    one = client.completions.create(**ask)
    assert [choice.index for choice in one.choices] == [0, 1, 2, 3]
    assert [choice.text[:6] for choice in one.choices] == ["a city", "a city", "the se", "the se"]
    assert len({choice.text for choice in one.choices}) == 4
    assert one.usage and one.usage.completion_tokens == 20
    streamed = ["", "", "", ""]
    for chunk in client.completions.create(**ask, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [choice.text for choice in one.choices]


def test_responses_with_and_without_stream(server: Server) -> None:
    client = server.openai()
    ask: Any = {"model": MODEL, "input": "the people", "max_output_tokens": 12, "extra_body": {"ignore_eos": True}}
    whole = client.responses.create(**ask)
    assert (whole.status, whole.usage and whole.usage.output_tokens) == ("incomplete", 12)
    with client.responses.stream(**ask) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == whole.output_text != ""


def test_messages_with_and_without_stream(server: Server) -> None:
    client = server.anthropic()
    ask: Any = {"model": MODEL, "messages": ASK, "max_tokens": 12, "system": "Be brief."}
    ask["extra_body"] = {"ignore_eos": True}
    whole = client.messages.create(**ask)
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 12)
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content[0].type == "text" and text == whole.content[0].text
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)
    count = client.messages.count_tokens(model=MODEL, messages=ASK, system="Be brief.")
    assert count.input_tokens == whole.usage.input_tokens


def test_tools_and_json(server: Server) -> None:
    client = server.openai()
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    named: Any = {"type": "function", "function": {"name": "add"}}
    for choice, finish in (("required", "tool_calls"), (named, "stop")):
        one = client.chat.completions.create(model=MODEL, messages=ASK, tools=[tool], tool_choice=choice)
        calls = one.choices[0].message.tool_calls
        assert calls and calls[0].type == "function"
        assert (calls[0].function.name, calls[0].function.arguments) == ("add", "{}")
        assert one.choices[0].finish_reason == finish
    with client.chat.completions.stream(model=MODEL, messages=ASK, tools=[tool], tool_choice="required") as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls and message.tool_calls[0].function.arguments == "{}"
    one = client.chat.completions.create(model=MODEL, messages=ASK, response_format={"type": "json_object"})
    assert isinstance(json.loads(one.choices[0].message.content or ""), dict)
    claude = server.anthropic().messages.create(
        model=MODEL,
        messages=ASK,
        max_tokens=50,
        tools=[{"name": "add", "input_schema": {"type": "object"}}],
        tool_choice={"type": "tool", "name": "add"},
    )
    assert (claude.stop_reason, claude.content[0].type) == ("tool_use", "tool_use")
    called = client.responses.create(
        model=MODEL,
        input="hi",
        tools=[{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}],
        tool_choice="required",
    )
    assert called.output[0].type == "function_call" and called.output[0].arguments == "{}"


def test_answers_end_where_they_are_told_to(server: Server) -> None:
    body = {"messages": ASK, "emulated_output_tokens": 25, "max_tokens": 500}
    one = server.post("/v1/chat/completions", body).json()
    assert (one["usage"]["completion_tokens"], one["choices"][0]["finish_reason"]) == (25, "stop")
    text = one["choices"][0]["message"]["content"]
    stop = text.split()[5]
    cut = server.post("/v1/chat/completions", body | {"stop": [stop, "not there at all"]}).json()["choices"][0]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
    assert cut["message"]["content"] == text[: text.index(stop)]
    streamed = events(server.post("/v1/chat/completions", body | {"stop": [stop], "stream": True}).text)
    assert "".join(one["choices"][0]["delta"]["content"] for one in streamed) == cut["message"]["content"]
    assert server.state()["running"] == 0


def test_an_answer_continues_on_another_server(server: Server, own_server: Callable[..., Server]) -> None:
    body = {"messages": ASK, "max_tokens": 300, "ignore_eos": True, "return_token_ids": True}
    whole = server.post("/v1/chat/completions", body).json()
    prompt, ids = whole["prompt_token_ids"], whole["choices"][0]["token_ids"]
    text = whole["choices"][0]["message"]["content"]
    other = own_server("--speed", "10", "--tp", "2", "--clock-mhz", "1200")
    for cut in (1, 100, 299):
        rest = {"prompt": prompt + ids[:cut], "max_tokens": 300 - cut, "ignore_eos": True, "return_token_ids": True}
        choice = other.post("/v1/completions", rest).json()["choices"][0]
        assert ids[:cut] + choice["token_ids"] == ids
        said = other.post("/detokenize", {"tokens": ids[:cut]}).json()["prompt"]
        if not said.endswith("\ufffd"):
            assert said + choice["text"] == text
    started: Any = [*ASK, {"role": "assistant", "content": " the world"}]
    again = {"messages": started, "continue_final_message": True, "add_generation_prompt": False, "max_tokens": 3}
    assert server.post("/v1/chat/completions", again).json()["usage"]["completion_tokens"] == 3


# --- the real server's shapes


@pytest.mark.parametrize(
    "name",
    [
        *("chat", "chat_stop", "chat_stream", "chat_stream_usage", "chat_stream_continuous_usage"),
        *("chat_stream_token_ids", "chat_n2", "completions", "completions_n2", "completions_stream"),
        *("completions_stream_usage", "completions_stream_token_ids", "messages", "messages_stream", "responses"),
        *("messages_count_tokens", "tokenize", "tokenize_chat", "models", "load"),
    ],
)
def test_shapes_are_those_of_the_real_server(server: Server, name: str) -> None:
    asked = json.loads((SAMPLES / "requests.json").read_text())[name]
    real = (SAMPLES / f"{name}.txt").read_bytes().decode().split("\r\n\r\n", 1)[1]
    ours = server.http.request(asked["method"], asked["path"], json=asked["body"])
    assert ours.status_code == 200, ours.text
    if not real.lstrip().startswith(("data:", "event:")):
        assert shape(ours.json()) == shape(json.loads(real))
        return
    theirs, mine = ([line for line in text.split("\n") if line] for text in (real, ours.text))
    for at in (0, 1, -2, -1):
        one, other = theirs[at], mine[at]
        if one.startswith("data: {"):
            assert shape(json.loads(other[6:])) == shape(json.loads(one[6:]))
        else:
            assert other == one


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("error_*.txt")), ids=lambda path: path.stem)
def test_errors_are_those_of_the_real_server(server: Server, path: Path) -> None:
    if path.stem in ("error_chat_too_long", "error_tool_choice_auto"):
        pytest.skip("the emulated engine words the first more exactly and allows the second")
    asked = json.loads((SAMPLES / "requests.json").read_text())[path.stem]
    head, real = path.read_bytes().decode().split("\r\n\r\n", 1)
    body = asked["body"]
    if body == "(long)":
        body = {"model": MODEL, "prompt": [7] * 5000}
    raw = body if isinstance(body, str) else "" if body is None else json.dumps(body)
    headers = {"content-type": "application/json"}
    ours = server.http.request(asked["method"], asked["path"], content=raw.encode(), headers=headers)
    assert ours.status_code == int(head.split()[1])
    assert ours.json() == json.loads(real)


def test_clients_raise_their_own_errors(server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `nope` does not exist"):
        server.openai().chat.completions.create(model="nope", messages=ASK)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096"):
        server.openai().completions.create(model=MODEL, prompt=" the" * 5000)
    with pytest.raises(anthropic.NotFoundError, match="The model `nope` does not exist"):
        server.anthropic().messages.create(model="nope", messages=ASK, max_tokens=5)
    assert server.http.post("/v1/completions", content=b"{}").json()["error"]["type"] == "Bad Request"
    assert server.post("/v1/embeddings", {"input": "a"}).status_code == 404


# --- leaving, pausing, stopping


def test_a_client_that_leaves_ends_its_answer(server: Server) -> None:
    body = {"messages": ASK, "max_tokens": 4000, "ignore_eos": True, "n": 3, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert server.state()["running"] == 3
    until(lambda: server.state()["running"] == 0)
    with pytest.raises(httpx.ReadTimeout):
        server.post("/v1/chat/completions", body | {"stream": False}, timeout=0.3)
    until(lambda: server.state()["running"] == 0)
    assert server.state()["kv_used_tokens"] == 0


def test_pause_aborts_holds_and_resumes(server: Server) -> None:
    async def story() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S) as http:
            body = {"messages": ASK, "max_tokens": 4000, "ignore_eos": True}

            async def generated() -> int:
                return int((await http.get("/emulated/state")).json()["generation_tokens"])

            before = await generated()
            running = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            while await generated() < before + 10:  # it has text to keep
                pass
            assert (await http.post("/pause")).json() == {"status": "paused"}
            aborted = (await running).json()["choices"][0]
            assert (aborted["finish_reason"], aborted["message"]["content"] != "") == ("abort", True)
            held = asyncio.create_task(http.post("/v1/chat/completions", json=body | {"max_tokens": 5}))
            assert (await http.get("/is_paused")).json() == {"is_paused": True}
            assert "vllm:num_requests_waiting{" in (await http.get("/metrics")).text
            assert not held.done()
            await http.post("/resume")
            assert (await held).json()["usage"]["completion_tokens"] == 5
            assert (await http.post("/sleep?level=2")).json() == {"status": "sleeping", "level": 2}
            assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
            weights = await http.post("/wake_up?tags=weights")
            assert weights.json() == {"status": "sleeping", "tags": ["weights"]}
            assert (await http.post("/collective_rpc", json={"method": "reload_weights"})).status_code == 200
            assert (await http.post("/wake_up?tags=kv_cache")).json()["status"] == "awake"
            assert (await http.post("/sleep")).json() == {"status": "sleeping", "level": 1}
            assert (await http.post("/wake_up")).json() == {"status": "awake", "tags": None}
            assert (await http.get("/is_sleeping")).json() == {"is_sleeping": False}

    asyncio.run(story())


def test_sigterm_ends_streams_with_abort(own_server: Callable[..., Server]) -> None:
    one = own_server()
    body = {"messages": ASK, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with one.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        one.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "abort"
    assert rest[-1] == "data: [DONE]"
    assert one.stop() == 0


def test_sigterm_with_a_timeout_finishes_first(own_server: Callable[..., Server]) -> None:
    one = own_server("--shutdown-timeout", "20")
    body = {"messages": ASK, "max_tokens": 250, "ignore_eos": True, "stream": True}
    with one.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        one.process.send_signal(signal.SIGTERM)
        refused: list[httpx.Response] = []

        def is_refused() -> bool:
            refused.append(one.post("/v1/completions", {"prompt": "a", "max_tokens": 1}))
            return refused[-1].status_code == 500

        until(is_refused)
        assert refused[-1].json()["error"]["message"] == "cannot schedule new futures after shutdown"
        assert one.http.get("/health").status_code == 200
        rest = [line for line in lines if line]
    assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert one.stop() == 0


# --- the emulator's own


def test_clock_joules_and_metrics(server: Server) -> None:
    before = server.state()
    assert server.post("/emulated/clock", {"clock_mhz": 1200}).json() == {"clock_mhz": 1200}
    server.post("/v1/completions", {"prompt": "a", "max_tokens": 10, "ignore_eos": True})
    after = server.state()
    assert after["clock_mhz"] == 1200 and after["joules"] > before["joules"] and after["steps"] > before["steps"]
    server.post("/emulated/clock", {"clock_mhz": 1980})
    page = server.http.get("/metrics").text
    for line in (
        'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",model_name="tiny",le="0.001"}',
        'vllm:request_success_total{engine="0",model_name="tiny",finished_reason="length"}',
        'emulated_joules_total{engine="0",model_name="tiny"}',
    ):
        assert line in page
    assert server.post("/emulated/clock", {"clock_mhz": "fast"}).status_code == 400


@pytest.mark.parametrize("stream", [True, False])
def test_injected_faults(server: Server, stream: bool) -> None:
    body = {"messages": ASK, "max_tokens": 50, "ignore_eos": True, "stream": stream}

    def inject(kind: str) -> None:
        assert server.post("/emulated/fault", {"kind": kind, "after_chunks": 3, "times": 1}).status_code == 200

    inject("status500")
    assert server.post("/v1/chat/completions", body).status_code == 500
    inject("cut")
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        server.post("/v1/chat/completions", body)
    inject("garbage")
    assert b"\x00\xff" in server.post("/v1/chat/completions", body).content
    inject("stall")
    with pytest.raises(httpx.ReadTimeout):
        server.post("/v1/chat/completions", body, timeout=0.5)
    assert server.post("/v1/chat/completions", body).status_code == 200
    until(lambda: server.state()["running"] == 0)


def test_embeddings_on_a_pooling_runner(own_server: Callable[..., Server]) -> None:
    one = own_server("--runner", "pooling")
    client = one.openai()
    vectors = [item.embedding for item in client.embeddings.create(model=MODEL, input=["a", "b", "a"]).data]
    assert vectors[0] == vectors[2] != vectors[1]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1)
    assert one.post("/v1/chat/completions", {"messages": ASK}).status_code == 404


def test_a_wrong_flag_says_so() -> None:
    argv = [sys.executable, "-m", "simulator.serve", "--port", "1", "--profile", "gpt-2"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no engine model 'gpt-2'; known: llama-3.1-8b" in done.stderr


def test_an_api_key_guards_v1_only(own_server: Callable[..., Server]) -> None:
    one = own_server("--api-key", "secret")
    assert one.http.get("/v1/models").json() == {"error": "Unauthorized"}
    assert one.http.get("/v1/models").status_code == 401
    assert one.http.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200
    assert one.http.get("/metrics").status_code == 200
