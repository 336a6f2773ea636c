"""Runs the agent: one process with the API, the leases and the driver's thread, and a second one that undoes.

Owns the listening socket, the signals and the order of the end: no new requests, default clocks, then the watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvicorn

from agent.app import make_app
from agent.hardware import Hardware
from agent.link import Link
from agent.node import Node
from core.clock import SystemClock
from pools.gpu import GpuControl

UNIX = "unix:"
SOCKET_MODE = 0o660  # the file's owner and group may set clocks
log = structlog.get_logger("joulegate.agent")


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """`listen` is unix:PATH or HOST:PORT; over TCP a token is required. `gpus` empty: all of this host."""

    listen: str
    token: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    gpus: tuple[str, ...] = ()
    lease_s: float = 5.0
    power_limit_w: float | None = None
    emulation: str = ""  # how the GPUs are emulated; empty: they are real
    state_file: str = ""

    @property
    def about(self) -> dict[str, str]:
        return {"emulation": self.emulation, "state_file": self.state_file} if self.emulation else {}

    def problems(self) -> Iterator[str]:
        if not 1.0 <= self.lease_s <= 60.0:
            yield f"--lease is 1 to 60 s, not {self.lease_s:g}"
        if bool(self.tls_cert) != bool(self.tls_key):
            yield "--tls-cert and --tls-key go together"
        if self.listen.startswith(UNIX):
            if self.tls_cert:
                yield "a Unix socket has no TLS"
            return
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65_535:
            yield f"--listen is unix:PATH or HOST:PORT, not {self.listen!r}"
        if not self.token:
            yield "over TCP a token is required: --token-file, or JOULEGATE_AGENT_TOKEN"


class CannotListen(Exception):
    """The address is in use, or not ours."""


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: the order of the end is this module's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def watchdog_argv(lease_s: float) -> list[str]:
    """It acts on a silence of four fifths of a lease: then a lease's time has not passed when clocks are undone."""
    return [sys.executable, "-m", "agent.watchdog", str(0.8 * lease_s)]


async def run_agent(options: AgentOptions, gpu: GpuControl, watchdog: Sequence[str]) -> None:
    """Until SIGTERM or SIGINT. CannotListen, GpuError when there is no GPU, ValueError when an option is bad."""
    listener = make_socket(options.listen)
    clock = SystemClock()
    link = Link(watchdog)
    node = Node(Hardware(gpu, link, options.gpus, options.power_limit_w), link, clock, options.lease_s)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with node:
            server = Server(_uvicorn(options, make_app(node, clock, options.token, options.about)))
            serving = asyncio.create_task(server.serve([listener]))
            living = asyncio.create_task(node.run())
            log.info(
                "listening",
                address=_address(options, listener),
                gpus=len(node.hardware.devices),
                pid=os.getpid(),
                **options.about,
            )
            for uuid, error in node.off().items():
                log.warning("clock knob off", gpu=uuid, why=str(error))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({stopping, living, serving}, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            await node.undo()
            await serving
            if living.done():
                living.result()  # it never ends by itself: this raises what broke it, and the watchdog undoes
            living.cancel()
            stopping.cancel()
    finally:
        _leave(options.listen, listener)


def make_socket(listen: str) -> socket.socket:
    if not listen.startswith(UNIX):
        host, _, port = listen.rpartition(":")
        try:
            return socket.create_server((host, int(port)))
        except OSError as error:
            raise CannotListen(f"cannot listen on {listen}: {error.strerror or error}") from None
    path = listen.removeprefix(UNIX)
    if _answers(path):
        raise CannotListen(f"another agent listens on {path}")
    listener = socket.socket(socket.AF_UNIX)
    try:
        Path(path).unlink(missing_ok=True)  # left by an agent that was killed
        before = os.umask(0o777 & ~SOCKET_MODE)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        listener.listen()
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot listen on {path}: {error.strerror or error}") from None
    return listener


def _leave(listen: str, listener: socket.socket) -> None:
    listener.close()
    if listen.startswith(UNIX):
        Path(listen.removeprefix(UNIX)).unlink(missing_ok=True)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _address(options: AgentOptions, listener: socket.socket) -> str:
    if options.listen.startswith(UNIX):
        return options.listen
    host, port = listener.getsockname()[:2]
    return f"{'https' if options.tls_cert else 'http'}://{host}:{port}"


def _uvicorn(options: AgentOptions, app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
        access_log=False,
        log_config=None,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
