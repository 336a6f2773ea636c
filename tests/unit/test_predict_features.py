"""Features of a request: total, bounded, repeatable."""

from hypothesis import given
from hypothesis import strategies as st

from predictor.features import NAMES, Asked, Vocabulary, featurise, words_of

VOCABULARY = Vocabulary([b"write", b"poem", b"code"])


def named(prompt: str, **more: object) -> dict[str, float]:
    features = featurise(Asked(prompt.encode(), **more), VOCABULARY)  # type: ignore[arg-type]
    return dict(zip(NAMES, features.numbers, strict=True))


@given(
    prompt=st.binary(max_size=6000) | st.text(max_size=3000).map(lambda t: t.encode("utf-8", "replace")),
    size=st.integers(-(2**70), 2**70),
    temperature=st.none() | st.floats(),
    limit=st.none() | st.integers(-(2**70), 2**70),
)
def test_any_request_has_features_and_always_the_same(
    prompt: bytes, size: int, temperature: float | None, limit: int | None
) -> None:
    asked = Asked(prompt, size, size, limit, limit, temperature=temperature, n=size)
    features = featurise(asked, VOCABULARY)
    assert features == featurise(asked, Vocabulary([b"write", b"poem", b"code"]))
    assert features.words <= VOCABULARY.known
    assert len(features.numbers) == len(NAMES)
    assert all(abs(number) <= 32 for number in features.numbers)  # NaN fails too


def test_a_megabyte_is_read_at_its_ends_only() -> None:
    head, tail = b"write a poem in 50 words " * 100, b" one sentence" * 200
    middles = [b"\x00" * 1_000_000, b"code? " * 200_000]
    assert len({words for words in (tuple(words_of(head + m + tail)) for m in middles)}) == 1
    one, other = (featurise(Asked(head + m[:999_999] + tail), VOCABULARY) for m in middles)
    assert one == other


def test_lengths_that_a_prompt_asks_for_in_several_languages() -> None:
    for prompt in ("in 50 words", "in 50 Wörtern", "en 50 mots", "en 50 palabras", "in 50 parole", "не более 50 слов"):
        assert named(f"Explain it {prompt}.")["asks_words"] == 1, prompt
        assert named(f"Explain it {prompt}.")["words_asked"] == named("in fifty words")["words_asked"]
    assert named("用50字解释")["asks_words"] == 1
    assert named("in one sentence, please")["asks_sentences"] == 1
    assert named("give three short paragraphs")["asks_paragraphs"] == 1
    assert named("in other words")["asks_words"] == 0


def test_what_is_declared_shows() -> None:
    plain = named("Hi")
    assert plain["no_limit"] == plain["no_hint"] == plain["no_temperature"] == plain["no_last_answer"] == 1
    told = named("Hi", max_tokens=64, stop=True, tools=True, response_format=True, hint_tokens=9, turns=3)
    assert told["no_limit"] == told["no_hint"] == 0
    assert told["stop"] == told["tools"] == told["format"] == 1 and told["turns"] == 2


def test_words_are_looked_up_whatever_their_case_and_order() -> None:
    found = featurise(Asked(b"CODE:\nWrite a poem, write code in words"), VOCABULARY).words
    assert found == {b"write", b"poem", b"code", b"words"}, "those of the vocabulary, and cues"
