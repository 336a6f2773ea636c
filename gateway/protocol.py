"""uvicorn's HTTP protocol with limits on the request head: its size and the time it may take to arrive.

The parser itself has no bound on either, so that a client could hold a connection or the memory for ever. One request
at a time: what a client pipelines behind a running one is left unread and the connection closes after the answer, as
RFC 9112, 9.3.2 allows. Queueing it would stop reading, and a hang-up is only seen by reading."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core.errors import BadRequest, HeadersTooLarge, HeadTimeout, JoulegateError
from gateway.client import TRANSPORT
from gateway.dialect import Dialect, error_body


class BoundedProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(
        self,
        *args: Any,
        max_header_bytes: int,
        header_timeout_s: float,
        stall_timeout_s: Callable[[], float],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._max_header_bytes = max_header_bytes
        self._header_timeout_s = header_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._unread_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._deaf = False  # what still arrives is neither read as a request nor answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._in_head:
            self._expect_head()
            self._head_bytes += len(data)
        super().data_received(data)
        # A large body may arrive together with its head: only bytes that left the head unfinished count.
        if self._in_head and not self._deaf and self._head_bytes > self._max_header_bytes:
            self._refuse(HeadersTooLarge(f"the request head is larger than {self._max_header_bytes} bytes"))

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._deaf = True
            self.cycle.keep_alive = False
            return
        super().on_message_begin()
        self.scope[TRANSPORT] = self.transport  # type: ignore[literal-required]

    def on_url(self, url: bytes) -> None:
        if not self._deaf:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._deaf:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._head_over()
        if size > self._max_header_bytes:
            self._refuse(HeadersTooLarge(f"the request head is larger than {self._max_header_bytes} bytes"))
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._deaf:
            return
        super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_over()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_later(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_unread_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for bytes that are not HTTP."""
        self._refuse(BadRequest("the request is not valid HTTP", code="invalid_http"))

    def _unread_later(self, size: int) -> None:
        self._unread_timer = self.loop.call_later(self._stall_timeout_s(), self._check_unread, size)

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _check_unread(self, before: int) -> None:
        """An answer that is over but unread stays in memory, for a polite close waits until it is read. While the
        answer runs, gateway/client.py has the same limit."""
        size = self.transport.get_write_buffer_size()
        over = self.cycle is None or self.cycle.response_complete
        if over and size >= before:
            self.transport.abort()
        else:
            self._unread_later(size)

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._header_timeout_s, self._head_too_slow)

    def _head_over(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_slow(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # an empty line after a body is no slow head
            self._head_timer = self.loop.call_later(self._header_timeout_s, self._head_too_slow)
            return
        if not self._head_bytes:  # a connection opened ahead of its first request: an answer would be taken for its
            self.transport.close()
            return
        self._refuse(HeadTimeout(f"the request head did not arrive within {self._header_timeout_s:g} s"))

    def _refuse(self, error: JoulegateError) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = self._deaf = True
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self._write_refusal(error)  # never into the middle of an answer
        self.transport.close()

    def _write_refusal(self, error: JoulegateError) -> None:
        body = error_body(Dialect.OPENAI, error)
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (error.status, REASONS.get(error.status, b"Error"), len(body), body)
        )


REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


def bounded_protocol(max_header_bytes: int, header_timeout_s: float, stall_timeout_s: Callable[[], float]) -> Any:
    """What uvicorn's `http` setting takes: something that builds a protocol. `stall_timeout_s` gives what holds now."""
    return partial(
        BoundedProtocol,
        max_header_bytes=max_header_bytes,
        header_timeout_s=header_timeout_s,
        stall_timeout_s=stall_timeout_s,
    )
