"""A stream that loses its vLLM server goes on at another one: what its client gets is what an uncut stream says.

Greedy and in fp32, so that both servers say the same. The relay before the first server breaks the connection off after
a number of events; the request goes there because its answer is short."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.vllm.answers import CHAT, DONE, TEXT, events, meaning
from tests.vllm.rig import Rig
from tests.vllm.test_real_vllm import PROMPTS, USAGE, chat, text

pytestmark = pytest.mark.timeout(180, func_only=True)

CUTS = (2, 3, 4, 5, 7, 9, 12, 16, 21, 30)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "usage": {"stream_options": USAGE},
    "running-usage": {"stream_options": USAGE | {"continuous_usage_stats": True}},
    "stop": {"stop": ["zz", "qqqqqqqqq", "wait and see"]},
    "min-tokens": {"min_tokens": 35, "max_tokens": 50},
    "logit-bias": {"logit_bias": {"300": 5}},
    "repetition-penalty": {"repetition_penalty": 1.2},
    "bad-words": {"bad_words": [" builtin"]},
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
LOGPROBS = {CHAT: {"logprobs": True, "top_logprobs": 2}, TEXT: {"logprobs": 2}}


def joined(rig: Rig, path: str, body: dict[str, Any], cut: int) -> tuple[bytes, bool]:
    """The answer, and whether it was cut."""
    tee = rig.tees["short"]
    tee.cut_after = cut
    answer = rig.ask(path, body)
    was_cut, tee.cut_after = tee.cut_after == 0, 0
    assert answer.status == 200
    return answer.body, was_cut


def assert_one_stream(body: bytes) -> None:
    assert body.endswith(DONE)
    said = events(body)
    assert not any("error" in event for event in said), said[-1]
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in said}) == 1
    assert sum(1 for event in said for choice in event["choices"] if choice.get("finish_reason")) == 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("path", "make"), [(CHAT, chat), (TEXT, text)], ids=["chat", "completions"])
def test_joined_streams_say_what_uncut_ones_say(rig: Rig, path: str, make: Any, variant: str) -> None:
    compared = 0
    cases = list(itertools.product(PROMPTS, CUTS))[:: 1 if variant == "plain" else 3]
    for prompt, cut in cases:
        body = make(prompt, stream=True, **{"max_tokens": 40, **VARIANTS[variant]})
        got, was_cut = joined(rig, path, body, cut)
        assert_one_stream(got)
        uncut = meaning(path, rig.direct(path, body).content)
        assert meaning(path, got) == uncut, (prompt, cut)
        compared += was_cut
    rig.ledger.joined += compared
    assert compared >= len(cases) * 0.7  # a fast stream comes in fewer events than it has tokens


def test_tools_that_may_not_be_called_keep_no_stream_back(rig: Rig) -> None:
    for prompt, cut in itertools.product(PROMPTS, (3, 7, 16)):
        body = chat(prompt, stream=True, max_tokens=40, tools=TOOLS, tool_choice="none")
        got, was_cut = joined(rig, CHAT, body, cut)
        assert_one_stream(got)
        assert meaning(CHAT, got) == meaning(CHAT, rig.direct(CHAT, body).content), (prompt, cut)
        rig.ledger.joined += was_cut


@pytest.mark.parametrize("include", [False, True], ids=["left-out", "included"])
@pytest.mark.parametrize("prompt", PROMPTS, ids=["code", "words", "lines", "unicode"])
def test_a_stop_string_anywhere_about_the_cut(rig: Rig, prompt: str, include: bool) -> None:
    plain = text(prompt, stream=True, max_tokens=40)
    whole = meaning(TEXT, rig.direct(TEXT, plain).content)["text"][0]
    for at, cut in itertools.product((20, 60), (3, 6, 9, 14, 20)):
        stop = whole[at : at + 9]
        body = plain | {"stop": [stop, "never said, and long"], "include_stop_str_in_output": include}
        got, was_cut = joined(rig, TEXT, body, cut)
        assert_one_stream(got)
        uncut = meaning(TEXT, rig.direct(TEXT, body).content)
        said = meaning(TEXT, got)
        assert (said["text"], said["ends"]) == (uncut["text"], uncut["ends"]), (stop, cut)
        rig.ledger.joined += was_cut


@pytest.mark.parametrize(("path", "make"), [(CHAT, chat), (TEXT, text)], ids=["chat", "completions"])
def test_logprobs_go_on(rig: Rig, path: str, make: Any) -> None:
    """The same tokens in the same places; their logprobs to within what a prefill rounds differently."""
    for prompt, cut in itertools.product(PROMPTS, (3, 6, 12)):
        body = make(prompt, stream=True, max_tokens=30, **LOGPROBS[path])
        got, was_cut = joined(rig, path, body, cut)
        assert_one_stream(got)
        ours, theirs = (logprobs(path, said) for said in (got, rig.direct(path, body).content))
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert one[0] == other[0] and one[2] == other[2]
            assert one[1] == pytest.approx(other[1], abs=1e-3)
        rig.ledger.joined += was_cut


def logprobs(path: str, body: bytes) -> list[tuple[str, float, Any]]:
    """(token, logprob, offset or bytes) of every token."""
    out = []
    for event in events(body):
        for choice in event["choices"]:
            given = choice.get("logprobs")
            if given and path == TEXT:
                out += zip(given["tokens"], given["token_logprobs"], given["text_offset"], strict=True)
            elif given:
                out += [(entry["token"], entry["logprob"], entry["bytes"]) for entry in given["content"]]
    return out


def test_without_max_tokens_a_stream_runs_to_the_end_of_the_context(rig: Rig) -> None:
    body = chat(PROMPTS[0], stream=True, stream_options=USAGE)
    del body["max_tokens"]
    rig.tees["short"].cut_after = rig.tees["medium"].cut_after = rig.tees["long"].cut_after = 400
    got = rig.ask(CHAT, body).body
    for tee in rig.tees.values():
        tee.cut_after = 0
    assert_one_stream(got)
    assert meaning(CHAT, got) == meaning(CHAT, rig.direct(CHAT, body).content)


def test_a_sampled_stream_goes_on_plausibly(rig: Rig) -> None:
    for seed, cut in itertools.product(range(5), (3, 9)):
        body = chat(stream=True, max_tokens=40, temperature=1.0, seed=seed, frequency_penalty=0.3, stream_options=USAGE)
        got, _ = joined(rig, CHAT, body, cut)
        assert_one_stream(got)
        assert meaning(CHAT, got)["usage"]["completion_tokens"] <= 40
