"""The emulated tokenizer: no text is lost, prompts of an exact length, characters held back until they are whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.tokens import END_ID, SPECIALS, TextDecoder, Tokenizer

TOKENIZER = Tokenizer()
ENGLISH = (
    "The gateway predicts how long each answer will be, sends the request to a pool of instances that suits it, and "
    "runs a controller that keeps choosing how many instances spend the least energy while every promise holds."
)


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=("Cs",))))
def test_text_comes_back(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(0 <= one < TOKENIZER.size for one in ids)


def test_sizes() -> None:
    assert TOKENIZER.size < 1 << 16  # ids are hashed as 16-bit numbers
    assert len(set(TOKENIZER.pieces)) == TOKENIZER.size
    assert len(TOKENIZER.encode(" the")) == 1
    assert 3 <= len(ENGLISH) / len(TOKENIZER.encode(ENGLISH)) <= 5


@pytest.mark.parametrize("seed", [0, 1, 7, 12345])
@pytest.mark.parametrize("n_tokens", [0, 1, 17, 5000])
def test_filler_is_exact(n_tokens: int, seed: int) -> None:
    assert len(TOKENIZER.encode(TOKENIZER.filler(n_tokens, seed))) == n_tokens


def test_special_pieces_and_broken_text() -> None:
    ids = TOKENIZER.encode("a<|end|> b <|nothing|>")
    assert ids.count(END_ID) == 1
    assert TOKENIZER.decode(ids) == "a<|end|> b <|nothing|>"
    assert all(len(TOKENIZER.encode(piece)) == 1 for piece in SPECIALS)
    assert "\ufffd" in TOKENIZER.decode(TOKENIZER.encode("\ud800"))  # a lone surrogate from a JSON escape


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("a the é—🙂z ")))
def test_streamed_text_is_the_whole_text(text: str) -> None:
    decoder = TextDecoder(TOKENIZER)
    parts = [decoder.push(one) for one in TOKENIZER.encode(text)]
    assert "".join(parts) == text
    assert "\ufffd" not in "".join(parts)


def test_a_character_is_held_back_until_it_is_whole() -> None:
    decoder = TextDecoder(TOKENIZER)
    assert [decoder.push(one) for one in "🙂".encode()] == ["", "", "", "🙂"]
    assert [decoder.push(one) for one in [0xE2, *TOKENIZER.encode(" the")]] == ["", "\ufffd the"]
    assert decoder.push(END_ID) == ""


def test_a_prompt_that_ends_inside_a_character_comes_back_whole() -> None:
    prompt = TOKENIZER.encode(" the word—")
    assert TextDecoder(TOKENIZER, prompt).push(ord("x")) == "x"
    assert TextDecoder(TOKENIZER, prompt[:-1]).push(prompt[-1]) == " the word—"
