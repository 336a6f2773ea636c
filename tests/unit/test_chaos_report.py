"""The chaos run's own judgement: what it must not let pass, and what it counts as noticed."""

import json

import pytest

from tests.chaos.faults import Strike
from tests.chaos.mix import TEXT, Tally, Truth, Verdict, Wish, judge
from tests.chaos.report import noticed_s, rank, slope

WISH = Wish(TEXT, {"model": "tiny", "prompt": "p", "stream": True, "max_tokens": 4, "stream_options": {}})
TRUTH = Truth("one two", "length", None, (1, 4))
HEAD = {"id": "a", "created": 1, "model": "tiny", "object": "text_completion"}


def stream(*texts: str, finish: str | None = "length", done: bool = True, usage: tuple[int, int] = (1, 4)) -> bytes:
    choices = [{"text": text, "finish_reason": None, "stop_reason": None} for text in texts]
    choices[-1]["finish_reason"] = finish
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    chunks = [{**HEAD, "choices": [choice]} for choice in choices] + [{**HEAD, "choices": [], "usage": counts}]
    events = [json.dumps(chunk) for chunk in chunks] + (["[DONE]"] if done else [])
    return "".join(f"data: {event}\n\n" for event in events).encode()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (stream("one", " two"), "correct"),
        (stream("one"), "truncated"),
        (stream("one", " two", " two"), "duplicated"),
        (stream("one", " twe"), "malformed"),
        (stream("one", " two", finish=None), "malformed"),
        (stream("one", " two", done=False), "malformed"),
        (stream("one", " two", usage=(1, 5)), "malformed"),
        (stream("one", " two") + b"data: [DONE]\n\n", "malformed"),
        (stream("one", " two")[:-1], "malformed"),
        (b'data: {"error":{"message":"m"}}\n\n', "lost"),
    ],
)
def test_a_wrong_answer_is_told_from_a_right_one(body: bytes, kind: str) -> None:
    assert judge(WISH, 200, body, TRUTH).kind == kind
    assert judge(WISH, 502, body, TRUTH).kind == "lost"


def test_what_is_asked_again_is_no_stream() -> None:
    tally = Tally()
    for kind in ("turned_away", "correct", "cut", "lost"):
        tally.add(Verdict(kind), "x")
    assert (tally.streams, tally.turned_away, tally.correct, tally.cut_by_gateway_death, tally.lost) == (3, 1, 1, 1, 1)
    assert len(tally.examples) == 1


def test_a_loss_is_noticed_after_the_strike_that_caused_it() -> None:
    strikes = [Strike(10.0, "kill9", 0), Strike(20.0, "slow", 0), Strike(20.5, "kill9", 1)]
    numbers = {"all-1": 0, "all-2": 1}

    def lost(t: float, instance: str, why: str = "cut") -> dict[str, object]:
        return {"t": t, "instance": instance, "why": why}

    seams = [lost(10.25, "all-1"), lost(20.75, "all-1"), lost(20.75, "all-2"), lost(20.9, "all-2", "stall")]
    assert noticed_s(seams, strikes, numbers) == [0.25, 0.25], "a slow relay cuts nothing, a stall is no cut"
    assert noticed_s([lost(9.0, "all-1"), lost(12.0, "all-1"), lost(10.1, "all-9")], strikes, numbers) == []


def test_figures() -> None:
    assert rank([3.0, 1.0, 2.0], 0.5) == 2.0 and rank([], 0.5) is None
    assert slope([(0, 9)] * 5 + [(n, 100 + 7 * n) for n in range(5)]) == pytest.approx(7.0)
    assert slope([(0, 0), (1, 1)]) is None
