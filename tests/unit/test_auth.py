"""Keys and rates: who gets in, what a refusal gives away (nothing), and how fast one may ask."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import RateLimited, Unauthorized
from gateway.auth import ANONYMOUS, INCORRECT, MISSING, Identity, Keyring, RateLimiter, hash_key, new_key
from gateway.config import AdminKey, ClientKey

KEYS = [new_key() for _ in range(3)]
RING = Keyring(
    [
        ClientKey(name="all", hash=KEYS[0][1]),
        ClientKey(name="some", hash=KEYS[1][1], services=("a", "b"), requests_per_minute=60),
        AdminKey(name="admin", hash=KEYS[2][1]),
    ]
)


def bearer(key: str) -> bytes:
    return f"Bearer {key}".encode()


def test_a_new_key_is_long_and_its_hash_fits_the_configuration() -> None:
    key, digest = new_key()
    assert re.fullmatch(r"jg-[A-Za-z0-9_-]{43}", key)
    assert digest == hash_key(key.encode()) == ClientKey(name="n", hash=digest).hash
    assert new_key()[0] != key


def test_each_key_is_its_holder() -> None:
    assert RING.identify(bearer(KEYS[0][0]), None) == Identity("all")
    assert RING.identify(bearer(KEYS[1][0]), None) == Identity("some", ("a", "b"), 60)
    assert RING.identify(None, KEYS[2][0].encode()) == Identity("admin")


@pytest.mark.parametrize("form", ["bearer {}", "BEARER   {} ", " Bearer {}"])
def test_forms_of_the_header(form: str) -> None:
    assert RING.identify(form.format(KEYS[0][0]).encode(), None).name == "all"


def test_the_bearer_token_wins_and_other_schemes_do_not_count() -> None:
    assert RING.identify(bearer(KEYS[0][0]), KEYS[1][0].encode()).name == "all"
    assert RING.identify(b"Basic dTpw", KEYS[1][0].encode()).name == "some"
    with pytest.raises(Unauthorized, match=INCORRECT):
        RING.identify(b"Bearer wrong", KEYS[1][0].encode())


@pytest.mark.parametrize(
    ("authorization", "x_api_key"), [(None, None), (b"", b""), (b"Bearer ", None), (b"Basic dTpw", None), (None, b"  ")]
)
def test_no_key(authorization: bytes | None, x_api_key: bytes | None) -> None:
    with pytest.raises(Unauthorized) as caught:
        RING.identify(authorization, x_api_key)
    assert (caught.value.message, caught.value.status) == (MISSING, 401)


@given(st.binary(min_size=1, max_size=80))
def test_any_other_key_is_refused_without_repeating_it(key: bytes) -> None:
    with pytest.raises(Unauthorized) as caught:
        RING.identify(b"Bearer " + key, None)
    assert caught.value.message in (INCORRECT, MISSING)


def test_the_hash_is_no_key() -> None:
    with pytest.raises(Unauthorized):
        RING.identify(bearer(KEYS[0][1]), None)


def test_every_hash_is_compared_even_after_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(stored: bytes, offered: bytes) -> bool:
        compared.append(stored)
        return stored == offered

    monkeypatch.setattr("gateway.auth.hmac.compare_digest", compare)
    assert RING.identify(bearer(KEYS[0][0]), None).name == "all"
    assert len(compared) == 3


def test_no_keys_is_an_open_door() -> None:
    assert Keyring(()).open and not RING.open
    assert Keyring(()).identify(None, None) == ANONYMOUS
    assert Keyring(()).identify(b"Bearer anything", None).may_use("any service")


def test_services_of_a_key() -> None:
    assert Identity("n", ("a",)).may_use("a")
    assert not Identity("n", ("a",)).may_use("b")
    assert not Identity("n", ()).may_use("a")


# Rates


def test_a_minutes_worth_at_once_then_evenly() -> None:
    limiter, who = RateLimiter(), Identity("n", None, 6)
    for _ in range(6):
        limiter.take(who, 100.0)
    with pytest.raises(RateLimited) as caught:
        limiter.take(who, 104.0)
    assert caught.value.retry_after_s == pytest.approx(6.0)
    limiter.take(who, 110.0)


def test_a_refused_request_costs_nothing() -> None:
    limiter, who = RateLimiter(), Identity("n", None, 1)
    limiter.take(who, 0.0)
    for second in range(1, 60):
        with pytest.raises(RateLimited):
            limiter.take(who, float(second))
    limiter.take(who, 60.0)


def test_no_limit_and_separate_holders() -> None:
    limiter = RateLimiter()
    for _ in range(1000):
        limiter.take(ANONYMOUS, 0.0)
    limiter.take(Identity("a", None, 1), 0.0)
    limiter.take(Identity("b", None, 1), 0.0)
    with pytest.raises(RateLimited):
        limiter.take(Identity("a", None, 1), 0.0)


def test_bounded_and_forgets_the_longest_silent() -> None:
    limiter = RateLimiter(max_names=2)
    for name in ("a", "b", "a", "c"):
        limiter.take(Identity(name, None, 2), 0.0)
    assert len(limiter) == 2
    with pytest.raises(RateLimited):
        limiter.take(Identity("a", None, 2), 0.0)


@given(st.integers(1, 1000), st.lists(st.floats(0, 30), max_size=60))
def test_never_more_than_the_limit_allows(limit: int, pauses: list[float]) -> None:
    limiter, now_s, taken = RateLimiter(), 0.0, 0
    for pause_s in pauses:
        now_s += pause_s
        try:
            limiter.take(Identity("n", None, limit), now_s)
            taken += 1
        except RateLimited as error:
            assert error.retry_after_s is not None and 0 < error.retry_after_s <= 60 / limit
    assert taken <= limit + now_s * limit / 60 + 1e-6


def test_waiting_as_told_is_enough() -> None:
    limiter, who, now_s = RateLimiter(), Identity("n", None, 7), 0.0
    for _ in range(7):
        limiter.take(who, now_s)
    for _ in range(50):
        with pytest.raises(RateLimited) as caught:
            limiter.take(who, now_s)
        now_s += caught.value.retry_after_s or 0.0
        limiter.take(who, now_s)
