"""Owns the comparison: each answer of the gateway against what the backend sent, and against the
same request sent straight to a server.

A request carries a marker of its own in its `user` field, which vLLM ignores; by it the exchange
is found that the gateway had with a backend.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.vllm.answers import CHAT, TEXT, meaning, strip_ids, strip_usage
from tests.vllm.servers import Server
from tests.vllm.tee import Exchange, Tee

TIMEOUT_S = 60.0


@dataclass(slots=True)
class Ledger:
    """What was compared in the whole run."""

    equal: int = 0
    different: int = 0
    usage_events_stripped: int = 0
    streams_with_ids: int = 0
    joined: int = 0
    equal_to_direct: int = 0
    different_from_direct: int = 0
    paths: Counter[str] = field(default_factory=Counter)
    servers: Counter[str] = field(default_factory=Counter)
    added_fields: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def differ(self, what: str) -> None:
        self.different += 1
        self.differences.append(what)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client of the gateway got."""

    path: str
    request: dict[str, Any]
    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def marked(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"user": f"rig-{uuid.uuid4().hex}"}


class Rig:
    """The gateway, the relays behind it, and the servers behind those."""

    def __init__(self, url: str, tees: dict[str, Tee], servers: list[Server], ledger: Ledger) -> None:
        self.url = url
        self.tees = tees
        self.servers = servers
        self.ledger = ledger
        self.client = httpx.Client(timeout=TIMEOUT_S)
        self._next = 0

    def ask(self, path: str, body: dict[str, Any], **options: Any) -> Answer:
        request = marked(body)
        reply = self.client.post(self.url + path, json=request, **options)
        return Answer(path, request, reply.status_code, reply.headers, reply.content)

    def direct(self, path: str, body: Any, avoid: str = "") -> httpx.Response:
        """The same request sent straight to a server, by turns, and not to the one named `avoid`."""
        others = [server for server in self.servers if server.name != avoid]
        self._next += 1
        server = others[self._next % len(others)]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(server.url + path, content=content, headers={"content-type": "application/json"})

    def exchanges(self, marker: str) -> list[tuple[str, Exchange]]:
        """All exchanges with the backends whose request holds the marker, with the server's name."""
        wanted = marker.encode()
        return [
            (name, exchange)
            for name, tee in self.tees.items()
            for exchange in tee.exchanges
            if wanted in exchange.request_body
        ]

    def check(self, path: str, body: dict[str, Any], directly: bool = True) -> Answer:
        """Ask, expect success, and compare; returns the answer for further looks at it."""
        answer = self.ask(path, body)
        self.compare(answer, directly)
        return answer

    def compare(self, answer: Answer, directly: bool = True) -> None:
        """Byte by byte with what the backend sent; then in meaning with a direct request."""
        assert answer.status == 200, answer.body[:1000]
        name, exchange = self._only_exchange(answer)
        self._compare_request(answer, exchange)
        expected, stripped = self._expected(answer, exchange)
        self.ledger.paths[answer.path] += 1
        self.ledger.servers[name] += 1
        self.ledger.usage_events_stripped += stripped
        if answer.body != expected:
            self.ledger.differ(f"{answer.path}: {_first_difference(answer.body, expected)}")
            raise AssertionError(self.ledger.differences[-1])
        self.ledger.equal += 1
        assert answer.headers["content-type"] == exchange.response_header("content-type")
        if directly:
            self._compare_directly(answer, exchange, name)

    def _only_exchange(self, answer: Answer) -> tuple[str, Exchange]:
        found = self.exchanges(answer.request["user"])
        if len(found) != 1:
            self.ledger.differ(f"{answer.path}: {len(found)} backend requests for one request")
            raise AssertionError(self.ledger.differences[-1])
        return found[0]

    def _compare_request(self, answer: Answer, exchange: Exchange) -> None:
        """Every field of the client reaches the backend as it was; what is added is noted."""
        sent = json.loads(exchange.request_body)
        for key, value in answer.request.items():
            if key != "stream_options":
                assert sent.get(key) == value, (key, value, sent.get(key))
        for key in sent.keys() - answer.request.keys():
            self.ledger.added_fields[key] += 1
        assert exchange.path == answer.path

    def _expected(self, answer: Answer, exchange: Exchange) -> tuple[bytes, bool]:
        """What the client must get, and whether the gateway's own usage event is taken out of it."""
        request, body = json.loads(exchange.request_body), exchange.response_body
        asked = (answer.request.get("stream_options") or {}).get("include_usage")
        sent = (request.get("stream_options") or {}).get("include_usage")
        if request.get("return_token_ids") and not answer.request.get("return_token_ids"):
            self.ledger.streams_with_ids += 1
            body = strip_ids(body)
        if answer.path in (CHAT, TEXT) and answer.request.get("stream") and sent and not asked:
            return strip_usage(body), True
        return body, False

    def _compare_directly(self, answer: Answer, exchange: Exchange, name: str) -> None:
        request = dict(answer.request)
        if request.get("stream") and answer.path in (CHAT, TEXT):
            request["stream_options"] = {"include_usage": True}
        reply = self.direct(answer.path, request, avoid=name)
        assert reply.status_code == 200, reply.text[:1000]
        ours, theirs = meaning(answer.path, answer.body), meaning(answer.path, reply.content)
        if ours["usage"] is None:
            ours["usage"] = meaning(answer.path, exchange.response_body)["usage"] or theirs["usage"]
        if ours != theirs:
            self.ledger.different_from_direct += 1
            raise AssertionError(f"{answer.path}: {ours} is not the direct {theirs}")
        self.ledger.equal_to_direct += 1

    def running(self) -> float:
        """Requests that run or wait on the servers."""
        gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return sum(server.gauge(gauge) for server in self.servers for gauge in gauges)


def _first_difference(got: bytes, wanted: bytes) -> str:
    pairs = enumerate(zip(got, wanted, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(got), len(wanted)))
    near = slice(max(0, at - 80), at + 120)
    return f"{len(got)} bytes, not {len(wanted)}; at {at}: {got[near]!r}, not {wanted[near]!r}"
