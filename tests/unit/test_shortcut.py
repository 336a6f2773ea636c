"""The shortcut of plain arrivals against the Python that it stands for: the same writes, counts, times and kept ids for
any bytes, however a network cuts them."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.client import Client
from gateway.config import Limits
from gateway.dialect import Dialect
from gateway.pipe import Pipe
from gateway.sse import EventStream
from gateway.timing import Timing
from gateway.token_stream import FOLD_AT, Answer, TokenStream
from pools import connection, shortcut

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BEGIN = b'data: {"id":"x","object":"o","created":1,"model":"m","choices":[{"index":0,'
CHAT = BEGIN + b'"delta":{"content":"%b"},"logprobs":null,"finish_reason":null,"token_ids":[%b]}]}\n\n'
TEXT = (
    BEGIN + b'"text":"%b","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
    b'"token_ids":[%b]}]}\n\n'
)
OTHERS = [
    BEGIN
    + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1]}\n\n',
    BEGIN + b'"delta":{"content":" no ids"},"logprobs":null,"finish_reason":null}]}\n\n',
    BEGIN + b'"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[7]}]}\n\n',
    BEGIN + b'"delta":{"content":"x"},"logprobs":null,"finish_reason":"stop","token_ids":[2]}]}\n\n',
    BEGIN + b'"delta":{"content":"x"},"logprobs":null,"finish_reason":"abort","token_ids":[2]}]}\n\n',
    b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n',
    b'data: {"error":{"message":"broken"}}\n\n',
    b": a comment\n\n",
    b"event: x\r\ndata: {}\r\n\r\n",
    b"data: [DONE]\n\n",
    b"no event at all",
    CHAT % (b"ids that are none", b'1,"x"'),
    (CHAT % (b"two lines", b"1")).replace(b"\n\n", b"\n\r\n"),
    CHAT % (b"a", b"1") + CHAT % (b"two in one chunk", b"2"),
]


class Sent:
    """A client's connection that remembers."""

    def __init__(self, fails_at: int) -> None:
        self.writes: list[bytes] = []
        self._fails_at = fails_at

    def write(self, data: bytes) -> None:
        if len(self.writes) == self._fails_at:
            raise RuntimeError("the handle is closed")
        self.writes.append(data)

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        return


class Steps:
    """A clock whose time passes by being asked, by a little more each time."""

    def __init__(self) -> None:
        self._numbers = count()

    def now_s(self) -> float:
        return float(next(self._numbers) ** 2) / 1000

    wall_s = now_s


def load(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def without_compiler() -> Iterator[ModuleType]:
    """`pools.connection` as it is where nothing was compiled."""
    with patch.dict(sys.modules, {"pools._shortcut": None}):
        plain = load("pools.shortcut")
        with patch.dict(sys.modules, {"pools.shortcut": plain}):
            yield load("pools.connection")


def events_of(kind: str) -> EventStream:
    if kind == "plain":
        return EventStream(Dialect.OPENAI, strip_usage=True)
    return TokenStream(Answer(chat=kind == "chat"), strip_usage=True)


def relayed(module: ModuleType, kind: str, arrivals: list[bytes], edge: float, fails_at: int) -> dict[str, Any]:
    """All that is left of a stream."""
    sent, clock, asked = Sent(fails_at), Steps(), []
    client = Client(sent, "/v1/chat/completions", b"", [])  # type: ignore[arg-type]
    events, timing = events_of(kind), Timing(0.0, 1.0, 0.02)

    def on_edge(number: int) -> float:
        asked.append(number)
        return number + edge

    pipe = Pipe(
        events, timing, client, clock, Limits(), float("inf"), on_content=lambda: None, head=lambda: (200, []),
        on_edge=on_edge, edge=edge,
    )  # fmt: skip
    wire = module.Wire()
    wire.connection_made(sent)
    wire.data_received(HEAD)
    wire.sink, wire.stream = pipe, pipe
    for data in arrivals:
        wire.data_received(data)
    wire.settle()
    wire.stream = None
    kept = what_it_kept(getattr(events, "answer", None))
    error = (type(wire.sink_error), str(wire.sink_error))
    gaps = timing.gap_times
    return {
        "writes": sent.writes, "events": events.events, "done": events.done, "usage": events.usage(), "kept": kept,
        "error": error, "garbage": wire.garbage, "heard": wire.heard, "complete": wire.complete, "asked": asked,
        "timing": (timing.first_s, timing.last_s, timing.gaps, timing.gaps_late, gaps.counts, gaps.total),
    }  # fmt: skip


def what_it_kept(answer: Answer | None) -> object:
    if answer is None:
        return None
    raw = list(answer.raw)
    try:
        return raw, list(answer.fold().ids), answer.text, answer.finish
    except ValueError as error:  # the engine's JSON is none
        return raw, str(error)


def framed(data: bytes, form: str) -> bytes:
    return (form.encode() % len(data)) + b"\r\n" + data + b"\r\n"


TEXTS = st.sampled_from([b"", b" word", b"\\n", b'\\"token_ids\\":[1]', "é€😀".encode(), b"]}]}", b"a" * 300])
IDS = st.sampled_from([b"", b"1", b"12,345", b"1,,2", b","])


@st.composite
def streams(draw: st.DrawFn) -> tuple[str, list[bytes], float, int]:
    kind = draw(st.sampled_from(["chat", "text", "plain"]))
    usual = st.builds(lambda text, ids: (TEXT if kind == "text" else CHAT) % (text, ids), TEXTS, IDS)
    plain = draw(st.lists(usual, min_size=1, max_size=12))
    events = plain + draw(st.lists(st.one_of(usual, usual, usual, st.sampled_from(OTHERS)), max_size=12))
    form = st.sampled_from(["%x", "%x", "%x", "%X", "0%x", "%x;a=b"])
    wire = b""
    at = [0]
    for event in events:
        wire += framed(event, draw(form))
        if draw(st.integers(0, 3)):
            at.append(len(wire))
    wire += draw(st.sampled_from([b"", b"0\r\n\r\n", b"zz\r\n"]))
    at += draw(st.lists(st.integers(0, len(wire)), max_size=3))
    at = sorted({*at, len(wire)})
    arrivals = [wire[a:b] for a, b in zip(at, at[1:], strict=False)]
    return kind, arrivals, draw(st.sampled_from([float("inf"), 3.0, 5.5])), draw(st.sampled_from([-1, -1, -1, 2, 5]))


needs_compiler = pytest.mark.skipif(shortcut.Native is None, reason="no C compiler, so that there is no shortcut")


@needs_compiler
@given(stream=streams())
@example(stream=("chat", [framed(CHAT % (b" a", b"%d" % n), "%x") for n in range(2 * FOLD_AT + 3)], float("inf"), -1))
@example(stream=("chat", [framed(CHAT % (b" a", b"1"), "%x") * 70] * 5, float("inf"), -1))
@settings(max_examples=400, deadline=None, derandomize=True)
def test_the_shortcut_does_what_python_does(
    without_compiler: ModuleType, stream: tuple[str, list[bytes], float, int]
) -> None:
    assert without_compiler.Wire.data_received is without_compiler.Wire.arrived
    assert relayed(connection, *stream) == relayed(without_compiler, *stream)


@needs_compiler
@pytest.mark.parametrize(("kind", "event"), [("chat", CHAT), ("text", TEXT), ("plain", CHAT)])
def test_plain_arrivals_pass_by_it(kind: str, event: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []
    arrived: Callable[..., None] = connection.Wire.arrived
    monkeypatch.setattr(connection.Wire, "arrived", lambda wire, data: (calls.append(data), arrived(wire, data))[1])
    chunk = framed(event % (b" word", b"5"), "%x")
    left = relayed(connection, kind, [chunk, chunk, chunk * 3, chunk[:50], chunk[50:], chunk, chunk], float("inf"), -1)
    # Not the head, nor the first content, before which nothing may pass, nor a chunk that is cut in two.
    assert calls == [HEAD, chunk, chunk[:50], chunk[50:]]
    assert left["events"] == 8 and left["timing"][2] == 7
