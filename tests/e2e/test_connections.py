"""Connections used in unusual ways: other protocols asked for, bodies refused on their way, trailers."""

import json
from contextlib import closing
from socket import create_connection, socket

import pytest

from tests.e2e.process import CHAT, Gateway, pool, service
from tests.fakes import Stage, sample

LIMITS = {"max_body_bytes": 20_000, "max_header_bytes": 4_000, "body_timeout_s": 0.5}
BODY = json.dumps(CHAT).encode()
ROUTE = b"/v1/chat/completions"
CHUNKED = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % ROUTE


@pytest.fixture(scope="module")
def gateway(stage: Stage, start) -> Gateway:
    return start({"tiny": service(pool(stage.backends))}, limits=LIMITS)


@pytest.fixture(autouse=True)
def _settled(settled: None) -> None:
    return


def dial(gateway: Gateway) -> closing[socket]:
    return closing(create_connection(("127.0.0.1", gateway.port), 10))


def post(*lines: bytes, target: bytes = ROUTE, version: bytes = b"1.1", length: int = len(BODY)) -> bytes:
    head = [b"POST %b HTTP/%b" % (target, version), b"host: x", b"content-length: %d" % length, *lines]
    return b"\r\n".join(head) + b"\r\n\r\n"


@pytest.mark.parametrize("target", [ROUTE + b"#there", ROUTE + b"?a=b#there?c"])
def test_a_fragment_is_no_part_of_the_target(target: bytes, gateway: Gateway, stage: Stage) -> None:
    with dial(gateway) as client:
        client.sendall(post(b"connection: close", target=target) + BODY)
        assert client.makefile("rb").read().endswith(sample("chat"))
    assert "#" not in stage.requests[0].path


@pytest.mark.parametrize("cut", [0, 10])
def test_who_asks_for_another_protocol_is_served_in_this_one(cut: int, gateway: Gateway, stage: Stage) -> None:
    asks = post(b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: x")
    with dial(gateway) as client:
        client.sendall(asks + BODY[:cut])
        client.sendall(BODY[cut:])
        said = client.recv(100)
        assert said.startswith(b"HTTP/1.1 200 ")
        while not said.endswith(sample("chat")):
            said += client.recv(100_000)
        client.sendall(post(b"connection: close") + BODY)
        assert client.makefile("rb").read().endswith(sample("chat"))
    assert [r.body for r in stage.requests] == [BODY, BODY]
    assert not {"upgrade", "http2-settings"} & {name for name, _ in stage.requests[0].headers}


def test_a_trailer_is_no_header(gateway: Gateway, stage: Stage) -> None:
    with dial(gateway) as client:
        client.sendall(CHUNKED + b"%x\r\n%b\r\n0\r\nx-late: 1\r\n\r\n" % (len(BODY), BODY))
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
    assert stage.requests[0].header("x-late") is None


@pytest.mark.parametrize(("line", "version"), [(b"connection: close", b"1.1"), (b"x-a: b", b"1.0")])
def test_a_refused_body_is_read_on_so_that_its_sender_sees_why(line: bytes, version: bytes, gateway: Gateway) -> None:
    with dial(gateway) as client:
        client.sendall(post(line, version=version, length=8_000_000))
        for _ in range(80):
            client.sendall(b"x" * 100_000)
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 413 ")


def test_a_refused_body_that_never_ends_ends_the_connection(gateway: Gateway) -> None:
    with dial(gateway) as client:
        client.sendall(post(length=8_000_000) + b"x")
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", [ROUTE, b"/admin/reload"])
def test_a_client_that_keeps_a_refused_body_back_is_told_to_connect_again(path: bytes, gateway: Gateway) -> None:
    with dial(gateway) as client:
        client.sendall(post(b"expect: 100-continue", target=path, length=8_000_000))
        said = client.makefile("rb").read()
    assert said.startswith(b"HTTP/1.1 413 ") and b"connection: close" in said
