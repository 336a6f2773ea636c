"""Reading and editing request bodies."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadRequest
from gateway.parse import ask_for_usage, parse, prompt_text, rename, splice


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def test_reads_what_routing_needs() -> None:
    parsed = parse(body(messages=[{"role": "user", "content": "hello"}], max_tokens=7, stream=True, n=3), b"")
    assert (parsed.fields.model, parsed.max_tokens, parsed.stream, parsed.sequences) == ("m", 7, True, 3)
    assert parsed.prompt_bytes == 5


def test_max_completion_tokens_wins_over_the_old_name() -> None:
    assert parse(body(max_tokens=7, max_completion_tokens=9), b"").max_tokens == 9


@pytest.mark.parametrize(
    ("prompt", "exact", "sequences"),
    [("four", None, 1), ([1, 2, 3], 3, 1), ([[1, 2], [3]], 3, 2), (["a", "bc"], None, 2), ([], None, 1)],
)
def test_every_form_of_a_prompt(prompt: object, exact: int | None, sequences: int) -> None:
    parsed = parse(body(prompt=prompt), b"")
    assert (parsed.exact_tokens, parsed.sequences) == (exact, sequences)


def test_pictures_count_as_parts_and_not_by_their_bytes() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    content = [{"type": "text", "text": "what is this?"}, picture]
    parsed = parse(body(messages=[{"role": "user", "content": content}]), b"")
    assert parsed.prompt_bytes == len("what is this?")
    assert 1000 <= parsed.extra_tokens < 1100


@pytest.mark.parametrize("bad", [b"", b"{", b"[1]", b'"x"', b'{"model": 5}', b'{"stream":"maybe"}', b'{"messages":"hi"}',
                                 b'{"messages":[1]}', b"[" * 100_000, b'{"prompt":' + b"[" * 100_000, b"\xff\xfe{}"])  # fmt: skip
def test_bad_bodies_are_told_and_nothing_worse(bad: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(bad, b"")


@given(st.binary(max_size=200))
def test_no_body_makes_it_fail_otherwise(data: bytes) -> None:
    try:
        parse(data, b"")
    except BadRequest:
        pass


def test_templates_tell_applications_apart_and_not_their_questions() -> None:
    def template(system: str, question: str, salt: bytes = b"key") -> bytes:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return parse(body(messages=messages), salt).template

    assert template("be brief", "a") == template("be brief", "b")
    assert template("be brief", "a") != template("be long", "a")
    assert template("be brief", "a") != template("be brief", "a", b"other key")


def test_asking_for_usage_changes_nothing_else() -> None:
    raw = body(messages=[], stream=True, temperature=0.1)
    edited = ask_for_usage(raw, parse(raw, b"").fields)
    assert json.loads(edited) == {**json.loads(raw), "stream_options": {"include_usage": True}}
    assert edited.endswith(raw[1:])


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, {"other": 1}, None])
def test_asking_for_usage_keeps_other_stream_options(options: object) -> None:
    raw = body(stream=True, stream_options=options)
    edited = json.loads(ask_for_usage(raw, parse(raw, b"").fields))
    assert edited["stream_options"] == {**(options or {}), "include_usage": True}


def test_asking_for_usage_does_not_turn_on_what_the_client_had_off() -> None:
    raw = body(stream=True, stream_options={"continuous_usage_stats": True})
    assert json.loads(ask_for_usage(raw, parse(raw, b"").fields))["stream_options"] == {"include_usage": True}


def test_a_spliced_field_does_not_override_the_clients_own() -> None:
    assert json.loads(splice(b' {"priority": 3}', b'"priority":1')) == {"priority": 3}


def test_prompt_text_joins_all_texts() -> None:
    raw = body(system="s", messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"content": "b"}])
    assert set(prompt_text(parse(raw, b"").fields).split("\n")) == {"s", "a", "b"}


@pytest.mark.parametrize("fields", [{"n": 10**400}, {"best_of": 10**9}, {"n": 40_000, "prompt": ["a", "b"]}])
def test_more_answers_than_anyone_holds_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(body(**fields), b"")
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (b'{"model":"a"}', b'{"model":"new"}'),
        (b' { "x" : {"model":"a"} , "model"\t:\n "a" , "y":1.50 } ', b' { "x" : {"model":"a"} , "model"\t:\n "new" , "y":1.50 } '),
        (b'{"metadata":{"model":"a"},"m":["model","a"],"model":"a"}', b'{"metadata":{"model":"a"},"m":["model","a"],"model":"new"}'),
        (b'{"messages":[{"content":"\\"model\\":\\"a\\" }]"}],"model":"a"}', b'{"messages":[{"content":"\\"model\\":\\"a\\" }]"}],"model":"new"}'),
        (b'{"user":"model","model":"model"}', b'{"user":"model","model":"new"}'),
        (b'{"mod\\u0065l":"a\\\\"}', b'{"mod\\u0065l":"new"}'),
        (b'{"model":"b","model":"a"}', b'{"model":"new","model":"new"}'),
    ],
)  # fmt: skip
def test_only_the_models_own_name_is_changed(said: bytes, meant: bytes) -> None:
    parse(said, b"")
    assert rename(said, "new") == meant
