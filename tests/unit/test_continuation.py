"""Where a stream may be cut, what is asked of the next instance, and the text across the cut."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.continuation import Cut, Seam, cut_of, left_of, request_of, stays_because
from gateway.joined_stream import JoinedStream, StreamEnded, closing
from gateway.token_stream import Answer
from simulator.tokens import Tokenizer

TOKENIZER = Tokenizer()
HEAD = b'data: {"id":"a","object":"o","created":1,"model":"m","choices":['


def answer_of(text: str, ids: list[int], prompt: str = "Tell me", chat: bool = False) -> Answer:
    answer = Answer(chat=chat)
    answer.head = HEAD
    answer.prompt.extend(TOKENIZER.encode(prompt))
    answer.add(text, ids)
    return answer


def cut(answer: Answer, decode: Any = TOKENIZER.decode) -> Cut | None:
    async def later(ids: list[int]) -> str:
        return decode(ids)

    return asyncio.run(cut_of(answer, later))


def test_a_whole_text_is_cut_at_its_end() -> None:
    ids = TOKENIZER.encode(" the sea and the land")
    assert cut(answer_of(" the sea and the land", ids)) == Cut(ids, "", 0)


@pytest.mark.parametrize("half", [1, 2])
def test_half_a_character_is_left_to_the_next_instance(half: int) -> None:
    ids = TOKENIZER.encode(" the")
    dash = list("\u2014".encode())
    found = cut(answer_of(" the", [*ids, *dash[:half]]))
    assert found == Cut(ids, "", half)


def test_what_was_held_back_for_a_stop_string_goes_along() -> None:
    ids = TOKENIZER.encode(" the sea")
    found = cut(answer_of(" the", ids))
    assert found is not None and (found.ids, found.held) == (ids, " sea")


def test_before_the_first_text_nothing_is_said_anew() -> None:
    assert cut(answer_of("", [0xE2])) == Cut([], "", 1)


def test_ids_that_say_something_else_have_no_place() -> None:
    assert cut(answer_of(" a sea", TOKENIZER.encode(" the land"))) is None


def test_a_tokenizer_that_drops_the_first_space() -> None:
    ids = TOKENIZER.encode(" the sea")
    found = cut(answer_of(" the sea", ids), lambda ids: TOKENIZER.decode(ids).removeprefix(" "))
    assert found is not None and found.ids == ids


def test_after_reasoning_the_end_has_to_fit() -> None:
    answer = answer_of(" the sea", TOKENIZER.encode(" well, then the sea"))
    answer.reasoning = True
    found = cut(answer)
    assert found is not None and (found.held, found.dropped) == ("", 0)


WORDS = st.text(alphabet="ab\u2014", max_size=12)


@given(whole=WORDS, after=WORDS, stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=2))
def test_across_the_cut_a_stop_string_ends_as_in_one_piece(whole: str, after: str, stops: list[str]) -> None:
    """Of stop strings that begin before the cut; those behind it are the next instance's to see. vLLM holds back all but
    one character of the longest, unless the stop string belongs to the answer."""
    assume(not any(stop in whole for stop in stops))  # the first instance would have stopped
    longest = max(map(len, stops), default=1) - 1
    for include in (False, True):
        cut_at = len(whole) if include else max(0, len(whole) - longest)
        sent, kept = whole[:cut_at], whole[cut_at:]
        seam = Seam(sent, kept, stops, include_stop=include)
        out, stopped = "", None
        for at, character in enumerate(after or " "):
            text, stopped = seam.pass_on(character, last=at + 1 == len(after or " "))
            out += text
            if stopped is not None:
                break
        joined = whole + (after or " ")
        found = [(joined.find(s), s) for s in stops if 0 <= joined.find(s) < len(whole)]
        assert (stopped is not None) == bool(found)
        if not found:
            assert sent + out == joined
        else:
            end = joined.find(stopped) + (len(stopped) if include else 0)
            assert sent + out == joined[:end]


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 20, **more}


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_schema"}},
        {"structured_outputs": {"choice": ["a"]}},
        {"use_beam_search": True},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    ],
)
def test_what_stays(more: dict[str, Any]) -> None:
    answer = answer_of(" the", [300])
    assert stays_because(asked(), answer) == ""
    assert stays_because(asked(response_format={"type": "text"}), answer) == ""
    assert stays_because(asked(**more), answer)
    assert stays_because(asked(), None) and stays_because(asked(), Answer(chat=True))


def test_reasoning_stays_until_it_is_over() -> None:
    answer = answer_of("", [300])
    answer.reasoning = True
    assert stays_because(asked(), answer)
    answer.add(" so", [301])
    assert stays_because(asked(), answer) == ""
    assert stays_because(asked(stop="x"), answer)


def test_the_request_for_the_rest() -> None:
    answer = answer_of(" the sea", [300, 301, 302], chat=True)
    body = asked(temperature=0, stop=["x"], min_tokens=5, logprobs=True, top_logprobs=3, tools=None, seed=4)
    left = left_of(body, answer, 4096, chat=True)
    sent = json.loads(request_of(body, answer, Cut([300, 301], "", 1), left, chat=True))
    assert left == 17
    assert sent == {
        "model": "m",
        "temperature": 0,
        "stop": ["x"],
        "seed": 4,
        "prompt": [*answer.prompt, 300, 301],
        "max_tokens": 18,
        "min_tokens": 3,
        "logprobs": 3,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": False},
        "return_token_ids": True,
    }
    assert left_of({}, answer, 4096, chat=False) == 13
    assert left_of({}, answer, 4096, chat=True) == 4096 - len(answer.prompt) - 3


def event(text: str, ids: list[int], finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    choice |= {"prompt_token_ids": [1], "token_ids": ids}
    return b"data: " + json.dumps({"id": "b", "choices": [choice]}).encode() + b"\n\n"


USAGE = b'data: {"id":"b","choices":[],"usage":{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("wanted", [False, True])
def test_the_rest_has_the_first_parts_name_and_one_usage(wanted: bool) -> None:
    answer = answer_of(" the", [300], chat=True)
    stream = JoinedStream(answer, Cut([300], "", 0), Seam(" the", "", (), include_stop=False), wants_usage=wanted)
    out = stream.feed(event(" sea", [301])) + stream.feed(event("", [302], "length") + USAGE + DONE) + stream.finish()
    first, last, *rest = [part for part in out.split(b"\n\n") if part]
    assert first == HEAD + (
        b'{"index":0,"delta":{"content":" sea"},"logprobs":null,"finish_reason":null,"token_ids":null}]}'
    )
    assert b'"finish_reason":"length","stop_reason":null,"token_ids":null}]}' in last
    prompt = len(answer.prompt)
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + 3, "completion_tokens": 3}
    assert rest[-1] == b"data: [DONE]" and len(rest) == 1 + wanted
    if wanted:
        assert json.loads(rest[0][6:])["usage"] == usage
    assert stream.usage() == (prompt, 3) and stream.done


def test_a_stop_string_across_the_cut_ends_the_stream() -> None:
    answer = answer_of(" the", [300, 301])
    seam = Seam(" the", " s", [" sea"], include_stop=False)
    stream = JoinedStream(answer, Cut([300, 301], " s", 0), seam, wants_usage=True)
    with pytest.raises(StreamEnded) as ended:
        stream.feed(event("ea and", [302]))
    said = ended.value.before
    assert b'"text":"","logprobs":null,"finish_reason":"stop","stop_reason":" sea"' in said
    assert said.endswith(DONE) and b'"usage"' in said


def test_an_end_of_which_only_the_end_is_missing() -> None:
    answer = answer_of(" the", [300])
    assert closing(answer, finish="", wants_usage=False) == DONE
    assert b'"finish_reason":"length"' in closing(answer, finish="length", wants_usage=False)
    assert b'"completion_tokens":1' in closing(answer, finish="", wants_usage=True)
