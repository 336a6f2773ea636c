"""One client connection. Hot POSTs go from the parser straight to the gateway; every other request takes uvicorn's way
through ASGI, on the same connection.

Owns the limits of a connection: the size of a request head, the time it may take, and the time a client may leave its
answer unread. uvicorn's own parser has no bound on any of them. One request at a time: what a client pipelines behind a
running one is left unread and the connection closes after the answer, as RFC 9112, 9.3.2 allows. Queueing it would stop
reading, and a hang-up is only seen by reading."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserInvalidURLError, HttpParserUpgrade, HttpRequestParser, parse_url
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from core.errors import BadRequest, HeadersTooLarge, HeadTimeout, JoulegateError
from gateway.client import Client
from gateway.config import Limits
from gateway.dialect import ROUTES, Dialect, Route, error_body

Serve = Callable[[Client, Route], Coroutine[Any, Any, None]]


class GatewayProtocol(HttpToolsProtocol):
    """`serve` answers a hot request; `limits` says what holds now (a reload changes them)."""

    def __init__(self, *args: Any, serve: Serve, limits: Callable[[], Limits], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._serve = serve
        self._limits = limits
        self._head_bytes = 0  # that came since the last piece of a body
        self._in_head = True
        self._head_timer: asyncio.TimerHandle | None = None  # also over the rest of a body whose answer is given
        self._unread_timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._deaf = False  # what still arrives is neither read as a request nor answered
        self._asks_upgrade = False

    # --- arrivals

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        # A large body may arrive together with its head: only bytes that left the head unfinished count, and those of
        # chunk extensions and trailers, which the parser gathers without a bound.
        if self._head_bytes and not self._deaf:
            if self._in_head:
                self._expect_head()
            if self._head_bytes > self._limits().max_header_bytes:
                self._refuse(self._head_too_large())

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._stay(data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("")

    def _stay(self, rest: bytes) -> None:
        """Whoever asks for another protocol is served in this one (RFC 9110, 7.8). The parser takes the body for bytes
        of the other one, so that a new parser reads the request again, without the header that asks."""
        if self._deaf:
            return
        self._asks_upgrade = False
        parser = self.parser
        lines = [b"%b %b HTTP/%b\r\n" % (parser.get_method(), self.url, parser.get_http_version().encode())]
        lines += (b"%b: %b\r\n" % pair for pair in self.headers if pair[0] != b"upgrade")
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self._parse(b"".join(lines) + b"\r\n" + rest)

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._deaf = True
            self.cycle.keep_alive = False
            return
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_url(self, url: bytes) -> None:
        if not self._deaf:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head or self._deaf:  # a trailer is none of the request's headers
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        method = self.parser.get_method()
        if self._deaf:
            return
        if self.parser.should_upgrade() and method != b"CONNECT":
            self._asks_upgrade = True
            return
        self._head_over()
        if self._head_bytes > self._limits().max_header_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._limits().max_header_bytes:
                self._refuse(self._head_too_large())
                return
        self._head_bytes = 0
        route = HOT.get(self.url) or _route_of(self.url)
        if route is None or method != b"POST":
            self._through_asgi()
        else:
            self._hot(route)

    def _through_asgi(self) -> None:
        """uvicorn's way, from the scope that it builds when a message begins."""
        kept = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = kept
        self.scope["headers"] = self.headers
        super().on_headers_complete()

    def _hot(self, route: Route) -> None:
        parser, limits = self.parser, self._limits()
        client = Client(
            self.transport,
            route.path,
            self.url.partition(b"#")[0].partition(b"?")[2],
            self.headers,
            date=self.server_state.default_headers,
            keep_alive=parser.should_keep_alive(),
            chunked=parser.get_http_version() != "1.0",
            expects=self.expect_100_continue,
            full=self.flow.write_paused,
            body_limit=limits.max_body_bytes,
            done=self.on_response_complete,
        )
        self.cycle = client  # type: ignore[assignment]
        task = self.loop.create_task(self._serve(client, route))
        client.bind(task)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_body(self, body: bytes) -> None:
        if self._deaf:
            return
        self._head_bytes = 0
        if isinstance(self.cycle, Client):
            self.cycle.feed(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._deaf or self._asks_upgrade:
            return
        if isinstance(self.cycle, Client):
            self.cycle.body_complete()
        else:
            super().on_message_complete()
        if self.cycle.response_complete:
            self._head_over()
            self._keep_for_next()
        self._in_head = True
        self._head_bytes = 0

    # --- the end of an answer, of a connection, and slow readers

    def on_response_complete(self) -> None:
        super().on_response_complete()
        cycle: Any = self.cycle
        if cycle is None:  # the client has gone
            return
        self._guard_unread()
        if not self.transport.is_closing() and not (cycle.whole if isinstance(cycle, Client) else not cycle.more_body):
            self._drop_rest(cycle.keep_alive)

    def _drop_rest(self, keep_alive: bool) -> None:
        """The answer is given and the body still arrives. A close now would reset the connection, which may take the
        answer from the client: the rest is read and dropped, for as long as a body may take."""
        if not keep_alive:
            self._deaf = True
            self.transport.write_eof()
        self._head_over()
        self._head_timer = self.loop.call_later(self._limits().body_timeout_s, self.transport.close)

    def _keep_for_next(self) -> None:
        """uvicorn's time-out of an idle connection, which the rest of the body has stopped."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_over()
        self._stop_unread_timer()
        self._unset_keepalive_if_required()
        cycle: Any = self.cycle
        if isinstance(cycle, Client):
            self.cycle = None  # type: ignore[assignment]
            cycle.hung_up()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._guard_unread()
        if isinstance(self.cycle, Client):
            self.cycle.set_full(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_unread_timer()
        if isinstance(self.cycle, Client):
            self.cycle.set_full(False)

    def _guard_unread(self) -> None:
        """From when a buffer is full, or an answer is over with a rest of it unsent, until that has changed."""
        size = self.transport.get_write_buffer_size()
        if size and self._unread_timer is None:
            self._unread_later(size + self._in_kernel())

    def _unread_later(self, size: int) -> None:
        self._unread_timer = self.loop.call_later(self._limits().stall_timeout_s, self._check_unread, size)

    def _check_unread(self, before: int) -> None:
        """A client that has read nothing for that long would hold its slot and the memory of its answer for ever."""
        self._unread_timer = None
        size = self.transport.get_write_buffer_size()
        if not size:
            return
        size += self._in_kernel()
        if size >= before:
            self.transport.abort()
        else:
            self._unread_later(size)

    def _in_kernel(self) -> int:
        """Bytes handed to the kernel that the client has not received. Of megabytes of them a good part has to go
        before the kernel takes more, so that a slow reader leaves the buffer here as it is for a long time."""
        sock = self.transport.get_extra_info("socket")
        if sock is None:
            return 0
        try:
            return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        except OSError:
            return 0

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    # --- slow and oversized heads, and what is no HTTP

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for bytes that are not HTTP."""
        self._refuse(BadRequest("the request is not valid HTTP", code="invalid_http"))

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits().header_timeout_s, self._head_too_slow)

    def _head_over(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"the request head is larger than {self._limits().max_header_bytes} bytes")

    def _head_too_slow(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:  # an empty line after a body is no slow head
            self._expect_head()
            return
        if not self._head_bytes:  # a connection opened ahead of its first request: an answer would be taken for its
            self.transport.close()
            return
        self._refuse(HeadTimeout(f"the request head did not arrive within {self._limits().header_timeout_s:g} s"))

    def _refuse(self, error: JoulegateError) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = self._deaf = True
        cycle: Any = self.cycle
        started = cycle is not None and (cycle.started if isinstance(cycle, Client) else cycle.response_started)
        if not started or (cycle.response_complete and self._in_head):
            self._write_refusal(error)  # never into the middle of an answer, nor as a second one
        self.transport.close()

    def _write_refusal(self, error: JoulegateError) -> None:
        body = error_body(Dialect.OPENAI, error)
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (error.status, REASONS.get(error.status, b"Error"), len(body), body)
        )


REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
HOT = {path.encode(): route for path, route in ROUTES.items()}


def _route_of(url: bytes) -> Route | None:
    """The hot route behind a target that is more than a bare path: with a query, percent signs or a host."""
    if url[:1] == b"/" and b"?" not in url and b"%" not in url and b"#" not in url:
        return None
    try:
        path = parse_url(url).path
    except HttpParserInvalidURLError:
        return None
    return ROUTES.get(unquote(path.decode("latin-1"))) if path else None


def gateway_protocol(serve: Serve, limits: Callable[[], Limits]) -> Any:
    """What uvicorn's `http` setting takes: something that builds a protocol."""
    return partial(GatewayProtocol, serve=serve, limits=limits)
