"""Token ids read off a stream and taken out of it: on bytes that real vLLM sent, cut wherever a network may cut them."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialect import Dialect
from gateway.sse import EventStream, StreamBroken
from gateway.token_stream import FOLD_AT, Answer, TokenStream

SAMPLES = Path(__file__).parent.parent / "vllm" / "samples"
CHAT_IDS = [742, 1943, 864, 183, 368, 236]
TEXT_IDS = [787, 1669, 1002, 1334, 1941, 20]
STREAMS = {
    "chat_stream_token_ids": ([1, 87, 505, 201, 786, 654, 2, 201, 1, 67, 321, 793, 821, 201], CHAT_IDS),
    "completions_stream_token_ids": ([786, 654], TEXT_IDS),
}
CHUNK = b'data: {"id":"x","object":"o","created":1,"model":"m","choices":[{"index":0,%b}]}\n\n'
END = b'"logprobs":null,"finish_reason":null,"token_ids":[%b]'


def body_of(name: str) -> bytes:
    return (SAMPLES / f"{name}.txt").read_bytes().partition(b"\r\n\r\n")[2]


def stream(chat: bool = True, strip_usage: bool = False) -> TokenStream:
    return TokenStream(Answer(chat=chat), strip_usage=strip_usage)


def relay(parts: list[bytes], events: EventStream) -> bytes:
    return b"".join(events.feed(part) for part in parts if part) + events.finish()


def without_ids(body: bytes) -> bytes:
    return re.sub(rb'token_ids":\[[^]]*\]', b'token_ids":null', body)


def text_chunk(text: bytes, ids: bytes) -> bytes:
    return CHUNK % (b'"delta":{"content":"' + text + b'"},' + END % ids)


@pytest.mark.parametrize("name", STREAMS)
def test_every_cut_gives_the_same_bytes_and_the_same_ids(name: str) -> None:
    body, (prompt, ids) = body_of(name), STREAMS[name]
    for cut in range(1, len(body)):
        events = stream(chat=name.startswith("chat"))
        assert relay([body[:cut], body[cut:]], events) == without_ids(body)
        assert list(events.answer.fold().prompt) == prompt
        assert list(events.answer.fold().ids) == ids
        assert events.done and events.usage() == (len(prompt), len(ids))


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_cuts(name: str, data: st.DataObject) -> None:
    body, (_, ids) = body_of(name), STREAMS[name]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=40)))
    events = stream(chat=name.startswith("chat"))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert relay(parts, events) == without_ids(body)
    assert list(events.answer.fold().ids) == ids


@pytest.mark.parametrize("name", STREAMS)
def test_event_by_event_as_a_network_brings_them(name: str) -> None:
    body = body_of(name)
    parts = [part + b"\n\n" for part in body.split(b"\n\n") if part]
    events = stream(chat=name.startswith("chat"), strip_usage=True)
    usage = next(part for part in parts if b'"choices":[]' in part)
    assert relay(parts, events) == without_ids(body.replace(usage, b""))
    assert list(events.answer.fold().ids) == STREAMS[name][1]
    assert events.events == len(parts) - 1


def test_the_text_and_the_beginning_are_kept() -> None:
    chat, text = stream(), stream(chat=False)
    relay([body_of("chat_stream_token_ids")], chat)
    relay([body_of("completions_stream_token_ids")], text)
    assert chat.answer.fold().text == " la datetimeSE\ufffdval"
    assert text.answer.fold().text == "lp yearoptackage builtin2"
    assert chat.answer.head == b"data: " + chat.answer.head[6:] and chat.answer.head.endswith(
        b'"model":"tiny","choices":['
    )
    assert chat.answer.finish == text.answer.finish == "length"


def test_text_that_looks_like_ids_stays() -> None:
    tricky = rb"say \"token_ids\":[1,2] and \"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":["
    chunks = [text_chunk(tricky, b"7,8"), text_chunk(b"x\\n\xe2\x80\x94", b"9")]
    events = stream()
    out = b"".join(events.feed(chunk) for chunk in chunks * 2)
    assert out == b"".join(chunk.replace(b"[7,8]}", b"null}").replace(b"[9]}", b"null}") for chunk in chunks * 2)
    assert list(events.answer.fold().ids) == [7, 8, 9] * 2
    assert events.answer.fold().text == (tricky.replace(b'\\"', b'"').decode() + "x\n\u2014") * 2


def test_chunks_that_the_engine_sends_for_the_sake_of_ids_alone_are_dropped() -> None:
    nothing = CHUNK % (b'"delta":{},' + END % b"5")
    events = stream()
    assert events.feed(text_chunk(b"a", b"4") + nothing + text_chunk(b"b", b"6")).count(b"data:") == 2
    assert events.feed(nothing) == b""
    assert list(events.answer.fold().ids) == [4, 5, 6, 5]


def test_what_is_kept_of_a_long_stream_is_read_now_and_then() -> None:
    events = stream()
    for at in range(3 * FOLD_AT):
        events.feed(text_chunk(b"w", b"%d" % at))
        assert len(events.answer.raw) < FOLD_AT
    assert list(events.answer.fold().ids) == list(range(3 * FOLD_AT)) and len(events.answer.text) == 3 * FOLD_AT


def test_reasoning_is_noticed() -> None:
    events = stream()
    thought = CHUNK % (b'"delta":{"reasoning":"hm"},' + END % b"5")
    assert events.feed(thought) == thought.replace(b"[5]", b"null")
    assert events.answer.fold().reasoning and events.answer.text == "" and list(events.answer.fold().ids) == [5]


def test_an_engine_without_ids_is_left_alone() -> None:
    body = body_of("chat_stream")
    events = stream()
    assert relay([part + b"\n\n" for part in body.split(b"\n\n") if part], events) == body
    assert not events.answer.raw


def test_what_came_before_a_failure_is_stripped_too() -> None:
    dead = b'data: {"error":{"message":"EngineCore encountered an issue"}}\n\ndata: [DONE]\n\n'
    events = stream()
    with pytest.raises(StreamBroken) as caught:
        events.feed(text_chunk(b"a", b"4") + dead)
    assert caught.value.before == text_chunk(b"a", b"null").replace(b"[null]", b"null")
    assert list(events.answer.fold().ids) == [4]


def test_plain_streams_pass_as_before() -> None:
    body = body_of("chat_stream")
    assert relay([body], stream()) == relay([body], EventStream(Dialect.OPENAI, strip_usage=False)) == body


def test_events_that_come_together_are_as_those_that_come_one_by_one() -> None:
    parts = [text_chunk(b"word %d" % n, b"%d" % n) for n in range(40)]
    parts.insert(7, b": a comment\n\n")
    parts.insert(20, CHUNK % (b'"delta":{"content":"a","tool_calls":[]},' + END % b"99"))
    last = CHUNK % b'"delta":{"content":""},"logprobs":null,"finish_reason":"stop","token_ids":[7]'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":43}}\n\n'
    parts += [last, usage, b"data: [DONE]\n\n"]
    one, many = stream(strip_usage=True), stream(strip_usage=True)
    apart = relay(parts, one)
    together = relay([parts[0], b"".join(parts[1:])], many)
    assert together == apart == without_ids(b"".join(part for part in parts if part is not usage))
    assert (many.events, many.usage(), many.done) == (one.events, one.usage(), one.done)
    assert list(many.answer.fold().ids) == list(one.answer.fold().ids)
    assert many.answer.text == one.answer.text


def test_what_came_together_with_a_failure_is_handed_on_without_ids() -> None:
    events = stream()
    events.feed(text_chunk(b"a", b"1"))
    with pytest.raises(StreamBroken) as broken:
        events.feed(text_chunk(b"b", b"2") + text_chunk(b"c", b"3") + b'data: {"error":{"message":"dead"}}\n\n')
    assert broken.value.before == without_ids(text_chunk(b"b", b"2") + text_chunk(b"c", b"3"))
    assert list(events.answer.fold().ids) == [1, 2, 3]
