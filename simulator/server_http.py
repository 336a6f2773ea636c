"""One HTTP exchange over ASGI. Owns the bytes in and out, the watch for a client that leaves, and injected faults."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from simulator.server_errors import ApiError, invalid, missing, summary, to_json, unsupported_media_type

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

TRANSPORT_KEY = "emulated_transport"  # the protocol class puts the TCP transport here so that a fault can cut it
JSON_TYPE = b"application/json"
GARBAGE = b"\x00\xffdata: {not json\n\n\xfe\n"


class ClientGone(Exception):
    """The exchange is over on the wire; nothing more can be answered."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str  # stall, garbage, status500, cut, exit (the whole process, as a crash)
    after_chunks: int


class Exchange:
    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.gone = asyncio.Event()
        self.fault: Fault | None = None
        self._scope = scope
        self._receive = receive
        self._send = send
        self._chunks = 0

    def header(self, name: bytes) -> str:
        for key, value in self._scope["headers"]:
            if key == name:
                return str(value, "latin-1")
        return ""

    def query(self, name: str, default: str) -> str:
        return parse_qs(str(self._scope["query_string"], "latin-1")).get(name, [default])[0]

    async def body(self) -> bytes:
        parts = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(parts)

    async def json_object(self) -> dict[str, Any]:
        if self.header(b"content-type").lower().split(";")[0] != "application/json":
            raise unsupported_media_type()
        return parse_object(await self.body())

    async def watch(self, on_gone: Callable[[], None]) -> None:
        """Runs beside the answer; calls `on_gone` when the client closes its side."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone.set()
        on_gone()

    async def answer(
        self, status: int, payload: bytes, kind: bytes = JSON_TYPE, extra: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        if self.fault is not None:
            await self._break(started=False)
        headers = [(b"content-length", b"%d" % len(payload)), *(extra or [])]
        if kind:
            headers.append((b"content-type", kind))
        headers.append((b"vary", b"Origin"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": payload})

    async def open_stream(self) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"vary", b"Origin")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes) -> None:
        if self.fault is not None:
            if self._chunks >= self.fault.after_chunks:
                await self._break(started=True)
            self._chunks += 1
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close_stream(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def _break(self, started: bool) -> None:
        """Carries the injected fault out; never returns."""
        assert self.fault is not None
        if self.fault.kind == "exit":
            os._exit(1)
        if self.fault.kind == "stall":
            await self.gone.wait()
        elif self.fault.kind == "garbage":
            if not started:
                await self.open_stream()
            await self._send({"type": "http.response.body", "body": GARBAGE, "more_body": True})
            await self.close_stream()
        else:
            self._scope[TRANSPORT_KEY].abort()
        raise ClientGone


def parse_object(raw: bytes) -> dict[str, Any]:
    """A JSON object, or the real server's complaint about what came instead."""
    if not raw:
        raise invalid([missing("body", None)])
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise _not_json(error) from None
    if isinstance(value, dict):
        return value
    message = "Input should be a valid dictionary or object to extract fields from"
    raise invalid([{"type": "model_attributes_type", "loc": "body", "msg": message, "input": summary(value)}])


def _not_json(error: ValueError) -> ApiError:
    at = error.pos if isinstance(error, json.JSONDecodeError) else 0
    reason = error.msg if isinstance(error, json.JSONDecodeError) else "invalid UTF-8"
    problem: dict[str, object] = {"type": "json_invalid", "loc": f"body.{at}", "msg": "JSON decode error"}
    return invalid([problem | {"input": "<dict of 0 items>", "ctx": {"error": reason}}])


async def answer_json(exchange: Exchange, value: Any, status: int = 200) -> None:
    await exchange.answer(status, to_json(value))
