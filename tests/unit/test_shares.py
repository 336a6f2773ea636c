"""Which key had more than its part."""

from pools.shares import HALF_LIFE_S, LEAST_TOKENS, Shares


def test_more_than_an_equal_part_is_too_much() -> None:
    shares = Shares()
    shares.served("a", 900, 0.0)
    assert not shares.over("a", 0.0), "nobody else was there"
    shares.served("b", 100, 0.0)
    assert shares.over("a", 0.0) and not shares.over("b", 0.0)
    assert not shares.over("new", 0.0), "who had nothing"


def test_what_was_had_is_forgotten() -> None:
    shares = Shares()
    shares.served("a", 1000, 0.0)
    shares.served("b", 1000, 3 * HALF_LIFE_S)
    assert shares.over("b", 3 * HALF_LIFE_S) and not shares.over("a", 3 * HALF_LIFE_S)
    long_s = HALF_LIFE_S * 40
    assert LEAST_TOKENS > 1000 * 0.5**40
    shares.served("c", 10, long_s)
    assert not shares.over("c", long_s), "the others are forgotten"
