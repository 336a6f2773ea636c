"""An embeddings service beside a chat service: the official client, and what happens to requests at the wrong one."""

from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.e2e.process import Gateway
from tests.fakes import until


@pytest.fixture(scope="module")
def gateway(start: Callable[..., Gateway], tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    pool: dict[str, Any] = {"name": "all", "serves": ["S", "M", "L"], "tp": 1, "clock_mhz": 1980, "slots": 16}
    launcher = {"kind": "emulated", "log_dir": str(tmp_path_factory.mktemp("logs"))}
    service = {"model": "small", "profile": "llama-3.1-8b", "pools": [pool], "launcher": launcher}
    gateway = start({"embedder": {**service, "embeddings": True}, "chat": service})
    assert until(gateway.all_ready, 30), gateway.log()
    return gateway


@pytest.fixture
def client(gateway: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0)


def test_texts_become_vectors(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="embedder", input=["one text", "another", "one text"])
    one, another, again = (item.embedding for item in answer.data)
    assert one == again != another
    assert abs(sum(x * x for x in one) - 1) < 1e-6
    assert answer.usage.prompt_tokens > 0


def test_each_kind_of_service_refuses_the_other_kind_of_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="chat", input="x")
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(model="embedder", messages=[{"role": "user", "content": "x"}])
    assert 400 <= refused.value.status_code < 500


def test_models_lists_both(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"embedder", "chat"}
