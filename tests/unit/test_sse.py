"""The event stream relay on bytes that real vLLM sent, cut wherever a network may cut them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import UpstreamFailed
from gateway.dialect import Dialect
from gateway.sse import EventStream, StreamBroken, find_cached, find_usage

SAMPLES = Path(__file__).parent.parent / "vllm" / "samples"
STREAMS = {
    "chat_stream": Dialect.OPENAI,
    "chat_stream_usage": Dialect.OPENAI,
    "chat_stream_n2_usage": Dialect.OPENAI,
    "chat_stream_logprobs": Dialect.OPENAI,
    "completions_stream": Dialect.OPENAI,
    "completions_stream_usage": Dialect.OPENAI,
    "responses_stream": Dialect.RESPONSES,
    "messages_stream": Dialect.ANTHROPIC,
}


def body_of(name: str) -> bytes:
    return (SAMPLES / f"{name}.txt").read_bytes().partition(b"\r\n\r\n")[2]


def relay(parts: list[bytes], dialect: Dialect, *, strip: bool = False) -> tuple[bytes, EventStream]:
    events = EventStream(dialect, strip_usage=strip)
    out = b"".join(events.feed(part) for part in parts if part)
    return out + events.finish(), events


@pytest.mark.parametrize("name", STREAMS)
def test_every_single_cut_leaves_the_bytes_as_they_were(name: str) -> None:
    body = body_of(name)
    for cut in range(1, len(body)):
        out, _ = relay([body[:cut], body[cut:]], STREAMS[name])
        assert out == body


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_cuts_leave_the_bytes_as_they_were(name: str, data: st.DataObject) -> None:
    body = body_of(name)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=40)))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    out, events = relay(parts, STREAMS[name])
    assert out == body
    assert events.done and events.content


@pytest.mark.parametrize("name", ["chat_stream_usage", "completions_stream_usage", "chat_stream_n2_usage"])
def test_strips_exactly_the_usage_event_at_every_cut(name: str) -> None:
    body = body_of(name)
    usage_events = [e + b"\n\n" for e in body.split(b"\n\n") if b'"choices":[]' in e]
    assert len(usage_events) == 1
    expected = body.replace(usage_events[0], b"")
    for cut in range(1, len(body)):
        out, events = relay([body[:cut], body[cut:]], Dialect.OPENAI, strip=True)
        assert out == expected
        assert events.usage() == find_usage(usage_events[0][len(b"data: ") :])


@pytest.mark.parametrize("name", ["chat_stream_usage", "responses_stream", "messages_stream"])
def test_reads_the_usage(name: str) -> None:
    _, events = relay([body_of(name)], STREAMS[name])
    assert events.usage() == (14, 6)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_cut_short_is_broken(name: str) -> None:
    body = body_of(name)
    last = body.rstrip(b"\n").rfind(b"\n\n") + 2
    for end in (len(body) // 2, last):
        with pytest.raises(StreamBroken):
            relay([body[:end]], STREAMS[name])


def test_an_error_inside_a_stream_is_an_error_and_what_came_before_is_kept() -> None:
    good = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    dead = b'data: {"error":{"message":"EngineCore encountered an issue","type":"InternalServerError"}}\n\ndata: [DONE]\n\n'
    with pytest.raises(StreamBroken, match="EngineCore") as caught:
        EventStream(Dialect.OPENAI, strip_usage=False).feed(good + dead)
    assert caught.value.before == good


def test_an_abort_is_never_passed_off_as_an_end() -> None:
    body = body_of("chat_stream").replace(b'"finish_reason":"length"', b'"finish_reason":"abort"')
    with pytest.raises(StreamBroken, match="gave up"):
        relay([body], Dialect.OPENAI)


def test_text_that_looks_like_a_marker_is_only_text() -> None:
    tricky = b'data: {"choices":[{"index":0,"delta":{"content":"say \\"usage\\":{ and \\"finish_reason\\":\\"abort\\""}}]}\n\n'
    out, events = relay([tricky + b"data: [DONE]\n\n"], Dialect.OPENAI, strip=True)
    assert out == tricky + b"data: [DONE]\n\n"
    assert events.usage() is None


def test_garbage_is_refused_before_anything_is_forwarded() -> None:
    for garbage in (b"\x00\x01\x02binary", b"<html>", b'{"not":"sse"}'):
        with pytest.raises(UpstreamFailed, match="not an event stream"):
            EventStream(Dialect.OPENAI, strip_usage=False).feed(garbage)


def test_an_endless_event_is_refused() -> None:
    events = EventStream(Dialect.OPENAI, strip_usage=False)
    with pytest.raises(UpstreamFailed, match="never ends"):
        for _ in range(100):
            events.feed(b"data: " + b"x" * 100_000)


def test_crlf_and_comment_lines_pass() -> None:
    body = b': ping\r\n\r\ndata: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\ndata: [DONE]\r\n\r\n'
    out, events = relay([body], Dialect.OPENAI)
    assert out == body and events.done


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        (b'{"prompt_tokens":400,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":384}}', (384, 400)),
        (b'{"prompt_tokens":400,"completion_tokens":1,"prompt_tokens_details":null}', None),
        (b'{"prompt_tokens":400,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":null}}', None),
        (b'{"prompt_tokens":400,"completion_tokens":1}', None),
        (b'{"prompt_tokens_details":{"cached_tokens":"many"}}', None),
    ],
)
def test_what_an_engine_says_of_its_prefix_cache(usage: bytes, cached: tuple[int, int] | None) -> None:
    assert find_cached(b'{"choices":[],"usage":%b}' % usage) == cached
