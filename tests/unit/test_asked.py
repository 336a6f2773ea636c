"""What of a request tells of its answer: every dialect, any body, bounded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadRequest
from gateway.asked import asked_of
from gateway.parse import parse
from predictor.features import Asked, Vocabulary, featurise


def asked(hint: bytes | None = None, **fields: object) -> Asked:
    return asked_of(parse(json.dumps({"model": "m", **fields}, ensure_ascii=False).encode(), b""), hint)


def said(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


def test_the_last_thing_asked_the_last_answer_and_the_turns() -> None:
    found = asked(
        messages=[said("system", "Be brief"), said("user", "one"), said("assistant", "x" * 420), said("user", "two")]
    )
    assert (found.prompt, found.turns, found.last_answer_tokens) == (b"two", 2, 100)
    assert found.prompt_bytes == len("Be brief") + 3 + 420 + 3


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [said("user", 'say "é"\nnow')]},
        {"messages": [said("user", [{"type": "text", "text": 'say "é"\nnow'}])]},
        {"messages": [said("tool", "4"), said("user", 'say "é"\nnow')]},
        {"prompt": 'say "é"\nnow'},
        {"prompt": ['say "é"\nnow']},
        {"input": 'say "é"\nnow'},
        {"input": [said("user", [{"type": "input_text", "text": 'say "é"\nnow'}])]},
    ],
)
def test_every_dialect_and_form_reads_the_same(fields: dict[str, object]) -> None:
    assert asked(**fields).prompt == 'say "é"\nnow'.encode()


def test_what_is_declared() -> None:
    found = asked(
        messages=[said("user", "hi")], max_completion_tokens=64, stop=["\n"], tools=[{}], temperature=0.5, n=2,
        response_format={"type": "json_object"}, reasoning_effort="high",
    )  # fmt: skip
    assert (found.max_tokens, found.stop, found.tools, found.response_format) == (64, True, True, True)
    assert (found.temperature, found.n, found.reasoning_tokens) == (0.5, 2, 16_384)
    assert asked(messages=[], thinking={"type": "enabled", "budget_tokens": 900}).reasoning_tokens == 900
    assert asked(input="x", text={"format": {"type": "json_schema"}}, reasoning={"effort": "low"}).response_format
    plain = asked(messages=[said("user", "hi")], stop=[], tools=[], temperature="warm")
    assert not (plain.stop or plain.tools or plain.response_format) and plain.temperature is None


def test_hints_of_the_header_and_of_the_body() -> None:
    assert asked(b"120", prompt="x").hint_tokens == 120
    assert asked(prompt="x", nvext={"agent_hints": {"osl": 300}}).hint_tokens == 300
    assert asked(b"120", prompt="x", nvext={"agent_hints": {"osl": 300}}).hint_tokens == 120
    assert asked(prompt="x", nvext={"agent_hints": "many"}).hint_tokens is None
    for bad in (b"0", b"-1", b"many", b"1" * 30, b""):
        with pytest.raises(BadRequest):
            asked(bad, prompt="x")


@pytest.mark.parametrize("text", ["a b \n" * 40_000, "é" * 50_000, '"' * 30_000, "\n" * 2048, "字" * 700])
def test_a_long_prompt_is_read_at_its_ends_and_counted_whole(text: str) -> None:
    found = asked(messages=[said("user", text)])
    assert len(found.prompt) <= 2049 and found.last_bytes >= len(text)
    assert featurise(found, Vocabulary([])).numbers[1] == pytest.approx(
        featurise(Asked(text.encode()), Vocabulary([])).numbers[1], rel=0.2
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        st.lists,
    ),
    st.sampled_from(["stop", "tools", "temperature", "reasoning", "thinking", "nvext", "text", "input", "prompt"]),
)
def test_odd_fields_are_the_engines_to_refuse(value: object, name: str) -> None:
    assert asked(**{name: value}).n >= 1
