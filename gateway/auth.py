"""Who is asking, and how often they may: API keys and the requests per minute of each.

Owns the check of a key and the token buckets. Pure: reads no clock, no file and no request; stores no key, only hashes.
What an identity may do beyond that (which service, which route) is decided by whoever holds the request.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from core.errors import RateLimited, Unauthorized
from gateway.config import AdminKey, ClientKey

MISSING = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY), or in an x-api-key header."
)
INCORRECT = "Incorrect API key provided."


@dataclass(frozen=True, slots=True)
class Identity:
    """The holder of a key. `services` None = all; a limit per minute that is None = no limit."""

    name: str
    services: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    joules_per_minute: int | None = None
    batch: bool = False

    def may_use(self, service: str) -> bool:
        return self.services is None or service in self.services


ANONYMOUS = Identity("anonymous")


def new_key() -> tuple[str, str]:
    """A fresh key and the hash that the configuration keeps."""
    key = "jg-" + secrets.token_urlsafe(32)
    return key, hash_key(key.encode())


def hash_key(key: bytes) -> str:
    """Unsalted and fast on purpose: a key is 256 random bits, so there is no dictionary to try against its hash and
    no two holders share one. Salt and slow hashing protect passwords that people choose."""
    return "sha256:" + sha256(key).hexdigest()


class Keyring:
    """The keys of one door (clients or admins). No keys = the door is open and everyone is anonymous."""

    def __init__(self, keys: Iterable[AdminKey] = ()) -> None:
        self._entries = tuple((key.hash.encode(), _identity(key)) for key in keys)

    @property
    def open(self) -> bool:
        return not self._entries

    def identify(self, authorization: bytes | None, x_api_key: bytes | None) -> Identity:
        """The identity behind the headers (values as received), or Unauthorized. Never repeats what was sent."""
        if self.open:
            return ANONYMOUS
        key = _presented(authorization, x_api_key)
        if not key:
            raise Unauthorized(MISSING)
        offered, found = hash_key(key).encode(), None
        for stored, identity in self._entries:  # to the end even after a hit: the time taken tells nothing
            if hmac.compare_digest(stored, offered):
                found = identity
        if found is None:
            raise Unauthorized(INCORRECT)
        return found


def _identity(key: AdminKey) -> Identity:
    if isinstance(key, ClientKey):
        return Identity(
            key.name, key.services, key.requests_per_minute, key.tokens_per_minute, key.joules_per_minute,
            key.tier == "batch",
        )  # fmt: skip
    return Identity(key.name)


def _presented(authorization: bytes | None, x_api_key: bytes | None) -> bytes:
    """The bearer token where there is one; else x-api-key, which Anthropic clients send."""
    scheme, _, token = (authorization or b"").strip().partition(b" ")
    if scheme.lower() == b"bearer" and token.strip():
        return token.strip()
    return (x_api_key or b"").strip()


class RateLimiter:
    """A token bucket per key: holds a minute's worth of requests, refills evenly. Owner: the event loop."""

    def __init__(self, max_names: int = 10_000) -> None:
        self._max_names = max_names
        self._buckets: dict[str, tuple[float, float]] = {}  # name -> (tokens, when); the least recent first

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, identity: Identity, now_s: float) -> None:
        """Takes one request out of the bucket, or raises RateLimited and takes nothing."""
        limit = identity.requests_per_minute
        if limit is None:
            return
        tokens, then_s = self._buckets.pop(identity.name, (float(limit), now_s))
        tokens = min(limit, tokens + max(0.0, now_s - then_s) * limit / 60.0)
        allowed = tokens >= 1.0 - 1e-9  # refilling in many small steps rounds: 1 minus a hair is 1
        self._remember(identity.name, tokens - 1.0 if allowed else tokens, now_s)
        if not allowed:
            raise RateLimited(
                f"Rate limit reached for key '{identity.name}': {limit} requests per minute.",
                retry_after_s=(1.0 - tokens) * 60.0 / limit,
            )

    def _remember(self, name: str, tokens: float, now_s: float) -> None:
        if len(self._buckets) >= self._max_names:  # names come from the configuration, yet reloads bring new ones
            del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = (max(0.0, tokens), now_s)
