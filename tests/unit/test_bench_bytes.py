"""The stub engine and the load client, compiled: whole answers pass, and one changed, lost or added byte is noticed."""

from __future__ import annotations

import json
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.processes import Running, build, start_stub
from bench.segments import faults
from pools.ports import free_ports

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
STREAM = ["-c", "4", "-S", "-k", "1", "-b", "bench:n=16,i=1"]
ANSWERS = ["-c", "2", "-t", "0.05", "-b", "bench:s=512"]
Change = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def stub(programs: Path) -> Iterator[int]:
    (port,) = free_ports(1)
    running: Running = start_stub(programs / "stub", [port], 0, programs / "stub.log")
    yield port
    running.stop()


def load(programs: Path, port: int, args: list[str]) -> dict[str, Any]:
    command = [str(programs / "load"), "-u", f"127.0.0.1:{port}", "-L", "5", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return dict(json.loads(done.stdout))


class Meddler(socketserver.ThreadingTCPServer):
    """A relay that changes what the engine sends."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self, engine: int, change: Change) -> None:
        super().__init__(("127.0.0.1", 0), Relay)
        self.engine, self.change = engine, change


class Relay(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Meddler)
        with socket.create_connection(("127.0.0.1", self.server.engine)) as up:
            threading.Thread(target=self.copy_up, args=(up,), daemon=True).start()
            while data := up.recv(65536):
                try:
                    self.request.sendall(self.server.change(data))
                except OSError:
                    return

    def copy_up(self, up: socket.socket) -> None:
        try:
            while data := self.request.recv(65536):
                up.sendall(data)
            up.shutdown(socket.SHUT_WR)
        except OSError:
            return


def through(programs: Path, engine: int, change: Change, args: list[str]) -> dict[str, Any]:
    with Meddler(engine, change) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answer = load(programs, server.server_address[1], args)
        server.shutdown()
    return answer


@pytest.mark.parametrize("args", [STREAM, ANSWERS])
def test_whole_answers_have_no_fault(programs: Path, stub: int, args: list[str]) -> None:
    answer = load(programs, stub, args)
    assert answer["ok"] > 0 and faults(answer, exact=True) == {}
    assert faults(through(programs, stub, lambda data: data, args), exact=True) == {}


def test_every_event_of_a_stream_is_counted(programs: Path, stub: int) -> None:
    answer = load(programs, stub, STREAM)
    assert (answer["ok"], answer["events"], len(answer["all_ttft_us"])) == (4, 64, 4)


@pytest.mark.parametrize(
    ("old", "new", "args"),
    [
        (b"chatcmpl-8d", b"chatcmpl-8e", STREAM),  # same length, anywhere before the checksum
        (b'"stop_reason":null', b'"stop_reason":nulL', STREAM),  # after it
        (b'"model":"stub-model"', b'"model":"stub-modeL"', ANSWERS),
        (b'"total_tokens":248', b'"total_tokens":249', ANSWERS),
    ],
)
def test_one_changed_byte_is_noticed(programs: Path, stub: int, old: bytes, new: bytes, args: list[str]) -> None:
    answer = through(programs, stub, lambda data: data.replace(old, new), args)
    assert set(faults(answer, exact=True)) == {"altered"}, answer
    assert faults(answer, exact=False) == {}


def test_a_lost_event_and_a_missing_end_are_noticed(programs: Path, stub: int) -> None:
    def lose(data: bytes) -> bytes:  # an event becomes a comment of the same length
        at = data.find(b"#7 ")
        start = data.rfind(b"data:", 0, at)
        return data if at < 0 else data[:start] + b":" * (at + 3 - start) + data[at + 3 :]

    assert {"cut_short", "disorder", "altered"} <= set(faults(through(programs, stub, lose, STREAM), exact=True))
    gone = through(programs, stub, lambda data: data.replace(b"[DONE]", b"[NONE]"), STREAM)
    assert gone["no_end"] == 4


def test_an_error_is_told_with_its_text(programs: Path, stub: int) -> None:
    answer = through(programs, stub, lambda data: data.replace(b"200 OK", b"502 No"), STREAM)
    assert answer["errors"] == 4 and answer["first_error"].startswith("502 ")


def post(port: int, **body: object) -> bytes:
    text = json.dumps({"messages": [{"role": "user", "content": "bench:n=3,i=0"}], "stream": True, **body}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(text)
        connection.sendall(head + text)
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += connection.recv(65536)
    return data


def test_usage_and_token_ids_come_when_asked_for(stub: int) -> None:
    assert b'"usage"' not in post(stub) and b'"token_ids":[' not in post(stub)
    assert b'"choices":[],"usage":{' in post(stub, stream_options={"include_usage": True})
    assert b'"token_ids":[1001]' in post(stub, return_token_ids=True)
