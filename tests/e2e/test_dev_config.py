"""configs/dev.yaml as a user runs it: three pools of the emulated engine, as children of the gateway, and the official
clients in front. At the end SIGTERM lets streams finish and leaves no process."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import anthropic
import httpx
import openai
import pytest

from tests.e2e.process import ROOT, Gateway, run_command
from tests.fakes import sse, until

MODEL = "llama-3.1-70b"
MESSAGES = [{"role": "user", "content": "Say something short."}]
CHAT = {"model": MODEL, "messages": MESSAGES, "max_tokens": 20}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("dev")
    config = folder / "dev.yaml"
    config.write_text((ROOT / "configs" / "dev.yaml").read_text())
    run_log = f"run_log.path={folder / 'run.jsonl'}"
    logs = f"services.{MODEL}.launcher.log_dir={folder}"
    ledger = f"energy.path={folder / 'energy.sqlite'}"
    learnt = f"controller.transitions={folder / 'transitions.json'}"
    kept = f"controller.checkpoint={folder / 'checkpoint.json'}"
    still = "controller.plan=configured"  # what a plan changes meanwhile is tests/e2e/test_energy_plan.py's
    with TemporaryDirectory(prefix="jg-") as short:  # the path of a socket has to be
        agent = f"agents.node-1.folder={short}"
        sets = [word for one in (run_log, logs, ledger, learnt, kept, still, agent) for word in ("--set", one)]
        made = Gateway(config, "--port", "0", *sets)
        try:
            assert until(lambda: made.logged("ready"), 60), made.log()
            yield made
            assert not made.faults()
        finally:
            made.kill_all()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as made:
        yield made


@pytest.fixture
def claude(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key="x", max_retries=0) as made:
        yield made


def test_the_file_is_right() -> None:
    assert run_command("check", "configs/dev.yaml").returncode == 0


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT)
    assert answer.choices[0].message.content
    assert 1 <= answer.usage.completion_tokens <= 20


def test_chat_stream_with_and_without_usage(client: openai.OpenAI) -> None:
    plain = list(client.chat.completions.create(**CHAT, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in plain)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in plain)
    counted = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    assert not counted[-1].choices and counted[-1].usage.completion_tokens >= 1


def test_completions(client: openai.OpenAI) -> None:
    assert client.completions.create(model=MODEL, prompt="Once", max_tokens=10).choices[0].text
    stream = client.completions.create(model=MODEL, prompt="Once", max_tokens=10, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream)


def test_responses(client: openai.OpenAI) -> None:
    assert client.responses.create(model=MODEL, input="Hi", max_output_tokens=10).output_text
    seen = list(client.responses.create(model=MODEL, input="Hi", max_output_tokens=10, stream=True))
    assert seen[0].type == "response.created"
    assert seen[-1].type in ("response.completed", "response.incomplete")


def test_messages(claude: anthropic.Anthropic) -> None:
    assert claude.messages.create(model=MODEL, messages=MESSAGES, max_tokens=10).content[0].text
    with claude.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=10) as stream:
        assert "".join(stream.text_stream)
    assert claude.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 0


def test_the_engines_run_on_the_agents_gpus(gateway: Gateway) -> None:
    """Whole chain: gateway, agent, NVML's stand-in where there is a C compiler, engines."""
    agent = gateway.http.get(f"{gateway.url}/readiness").json()["agents"]["node-1"]
    assert agent["ready"] and agent["gpus"] == 24
    assert ("stand-in" if which("cc") else "own process") in agent["emulated"]
    for url, instance in gateway.instances().items():
        engine = httpx.get(f"{url}/emulated/state").json()
        assert engine["gpus"] == instance["gpus"] and len(engine["gpus"]) == instance["tp"]


def test_models_tokenize_and_no_embeddings(client: openai.OpenAI, gateway: Gateway) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    tokens = httpx.post(f"{gateway.url}/tokenize", json={"model": MODEL, "prompt": "one two"}).json()
    assert tokens["count"] == len(tokens["tokens"]) > 0
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="x", encoding_format="float")


def test_the_engine_knows_the_model_by_its_own_name(client: openai.OpenAI) -> None:
    assert client.chat.completions.create(**CHAT).model == "meta-llama/Llama-3.1-70B-Instruct"


def test_tools_are_taken(client: openai.OpenAI) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    assert client.chat.completions.create(**CHAT, tools=tools, tool_choice="none").choices[0].message.content


def test_the_engine_judges_what_makes_no_sense(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**CHAT, temperature=-1)
    assert "temperature" in raised.value.message


def test_fifty_streams_at_once(gateway: Gateway) -> None:
    async def one(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(**CHAT, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(50)))

    assert all(asyncio.run(all_of_them()))
    assert until(gateway.idle)


def ready(gateway: Gateway) -> int:
    """How many there are, when all of them are ready."""
    states = [instance["state"] for instance in gateway.instances().values()]
    return len(states) if set(states) == {"ready"} else 0


def test_a_pool_gets_one_more_and_one_fewer(gateway: Gateway) -> None:
    path = f"{gateway.url}/admin/services/{MODEL}/pools/short"
    assert httpx.patch(path, json={"instances": 2}).status_code == 200
    assert until(lambda: ready(gateway) == 4, 30), gateway.instances()
    assert httpx.patch(path, json={"instances": 1}).status_code == 200
    assert until(lambda: ready(gateway) == 3, 30), gateway.instances()


def test_a_killed_instance_is_replaced_and_nobody_notices(gateway: Gateway, client: openai.OpenAI) -> None:
    answer = client.chat.completions.with_raw_response.create(**CHAT)
    killed = answer.headers["x-joulegate-instance"]
    gateway.kill_child(killed)
    assert client.chat.completions.create(**CHAT).choices[0].message.content
    assert until(lambda: killed not in {i["id"] for i in gateway.instances().values()}, 30)
    assert until(lambda: ready(gateway) == 3, 30), gateway.instances()


def test_sigterm_drains_and_leaves_no_process(gateway: Gateway) -> None:
    """The last test of this module: it ends the gateway."""
    children = gateway.children()
    assert len(children) == 4, "three engines and the agent on whose emulated GPUs they run"
    begun, said = threading.Event(), []

    def listen() -> None:
        body = {**CHAT, "max_tokens": 60, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", json=body, timeout=30) as answer:
            for data in answer.iter_raw():
                said.append(data)
                begun.set()

    thread = threading.Thread(target=listen)
    thread.start()
    assert begun.wait(20)
    gateway.stop()
    thread.join(20)
    assert list(sse(b"".join(said)))[-1] == b"data: [DONE]"
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
