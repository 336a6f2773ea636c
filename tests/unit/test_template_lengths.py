"""The set of a real model's lengths: fair at every moment, and how often the model agrees with itself."""

from bench.template_lengths import MOST, agreement, turns


def test_halves_are_asked_in_turns() -> None:
    assert turns(6) == [0, 3, 1, 4, 2, 5]


def test_only_what_was_asked_before_the_first_that_is_missing_counts() -> None:
    once = {at: 10 * (at + 1) for at in range(9)} | {9: MOST}
    twice = {0: 11, 9: MOST, 4: 900, 3: 70}
    told = agreement(once, twice, asked=[0, 9, 4, 1, 3])  # 1 is missing, so that 3 says nothing
    assert "of 3 asked twice 2 have the same class" in told and "both cut 1" in told
    assert "too few" in agreement(once, twice, asked=[1, 0, 9])
