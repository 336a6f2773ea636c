"""Runs the gateway: one process with the HTTP server, the controller and the prober; ends all of it in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import structlog
import uvicorn
from fastapi import FastAPI

from controller.loop import Controller
from core.clock import Clock, SystemClock
from core.errors import BadRequest
from core.recorder import NullRecorder, Recorder
from gateway.admin import add_validation_errors, make_admin
from gateway.agents import known_soon
from gateway.app import make_app
from gateway.board import Board
from gateway.board_events import BoardEvents
from gateway.checkpoint import Checkpoint
from gateway.cold import COLD_ROUTES, VERSION, add_cold_routes, add_error_answers
from gateway.config import Config
from gateway.config_file import ConfigError
from gateway.dashboard import add_dashboard
from gateway.docs_page import add_docs_page
from gateway.huge_pages import into_huge_pages
from gateway.learnt import LearntFile, beside
from gateway.metrics import run_log_counters
from gateway.protocol import gateway_protocol
from gateway.run_log import RunLog
from gateway.wiring import Running, build, take_over
from pools.connection import authority

ACCEPT_BACKLOG = 2048
RESTART_PAUSE_S = 1.0
HANGS_S = 30.0  # a round of the controller takes milliseconds; what it waits for has limits of seconds
LOOK_S = 1.0
COLLECT_AFTER = (20_000, 20, 20)  # objects more than before; young collections; middle ones
Work = Callable[[], Awaitable[None]]
log = structlog.get_logger("joulegate")


class CannotListen(Exception):
    """The address is in use or not ours."""


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: the order of the shutdown is this module's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_socket(host: str, port: int) -> socket.socket:
    """A listening socket, made before anything starts, so that a port in use is found first."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(ACCEPT_BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot listen on {authority(host, port)}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


async def run_gateway(
    config: Config, load: Callable[[], Config], environment: Mapping[str, str], speed: float = 1.0
) -> None:
    """Serves until SIGINT or SIGTERM, then drains. `speed`: gateway seconds in a real one, for replays. Raises
    CannotListen, or ValueError when a named file is bad."""
    listener = make_socket(config.listen.host, config.listen.port)
    clock = SystemClock(speed)
    run_log = (
        RunLog(config.run_log.path, config.run_log.max_bytes, config.run_log.keep) if config.run_log.path else None
    )
    recorder: Recorder = run_log or NullRecorder()
    events = BoardEvents(recorder)
    running = build(config, clock, events, environment, speed)
    board = Board(running, events)
    checkpoint = restore(running)
    learnt = restore_lengths(running)
    if run_log is not None:
        live = running.metrics.gauges
        rows = run_log
        running.metrics.gauges = lambda: [*live(), run_log_counters(rows.written, rows.dropped, rows.failed)]
    server = make_server(running, board, load, environment)
    spare_collections()
    into_huge_pages()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    host, port = listener.getsockname()[:2]
    log.info(
        "listening",
        url=f"http://{authority(host, port)}",
        services=list(running.gateway.services),
        mode=config.controller.mode,
    )
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve([listener]), name="server")
            tasks = [
                group.create_task(kept_up(one.run, f"agent {name}", clock)) for name, one in running.agents.items()
            ]
            await known_soon(running.agents)
            for instance_id in take_over(running):
                log.warning("took over an instance that an earlier gateway left running", instance=instance_id)
            work = background(running, board, checkpoint, learnt)
            tasks += [group.create_task(kept_up(run, name, clock)) for name, run in work.items()]
            tasks.append(group.create_task(_tell_when_ready(running)))
            await stop.wait()
            board.close()
            await _drain(running, server)
            server.should_exit = True
            await serving
            for task in tasks:
                task.cancel()
            if checkpoint is not None:
                checkpoint.write()
            if learnt is not None:
                learnt.write()
        await running.ledger.read()  # the last joules, while the instances still tell of them
    finally:
        running.ledger.flush(clock.wall_s())
        running.ledger.store.close()
        await running.cluster.close(stop_timeout_s=5.0)
        for agent in running.agents.values():
            await agent.close()
        await running.shared.worker.close()
        await running.shared.http.aclose()
        if run_log is not None:
            run_log.close()
    log.info("stopped")


def spare_collections() -> None:
    """What is loaded stays: a full collection would walk 60,000 objects, 30 ms in which no stream moves. Requests leave
    hardly any cycles behind, and looking for them after every 700 objects took 4 % of a request's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def make_server(
    running: Running, board: Board, load: Callable[[], Config], environment: Mapping[str, str]
) -> Server:  # fmt: skip
    def load_or_tell() -> Config:
        try:
            return load()
        except ConfigError as error:
            raise BadRequest("; ".join(str(problem) for problem in error.errors), code="invalid_config") from None

    cold = FastAPI(title="joulegate admin API", version=VERSION, docs_url=None, redoc_url=None)
    cold.include_router(make_admin(running, load_or_tell, dict(environment)))
    add_error_answers(cold, running.gateway)
    add_cold_routes(cold, running.gateway, running.registry, running.agents)
    add_docs_page(cold)
    add_dashboard(cold, board)
    add_validation_errors(cold)
    return Server(
        uvicorn.Config(
            make_app(running.gateway, cold, COLD_ROUTES, lambda: running.admin_keyring),
            http=gateway_protocol(running.gateway.serve, lambda: running.gateway.limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
    )


def restore(running: Running) -> Checkpoint | None:
    """The controller goes on from where an earlier one was."""
    path = running.config.controller.checkpoint
    if path is None:
        return None
    checkpoint = Checkpoint(Path(path), running.controller, running.clock)
    specs = {name: service.spec for name, service in running.gateway.services.items()}
    if checkpoint.restore(specs):
        log.info("the controller goes on from its checkpoint", path=path, overrides=len(running.controller.overrides))
    return checkpoint


def restore_lengths(running: Running) -> LearntFile | None:
    """The predictors know what their services answered before."""
    path = running.config.controller.checkpoint
    if path is None:
        return None
    learnt = LearntFile(beside(Path(path)), running.gateway.services, running.clock)
    if services := learnt.restore():
        log.info("the predictors go on from what they learnt", services=services)
    return learnt


def background(
    running: Running, board: Board, checkpoint: Checkpoint | None, learnt: LearntFile | None
) -> dict[str, Work]:
    """What runs beside the server for as long as it serves, by name."""
    work: dict[str, Work] = {
        "clocks": running.cluster.clocks.run,
        "transitions": running.shared.transitions.run,
        "controller": lambda: alive(running.controller, running.clock),
        "loop lag": running.gateway.lag.run,
        "energy ledger": running.ledger.run,
        "prober": running.cluster.probe_forever,
        "dashboard": board.run,
    }
    if checkpoint is not None:
        work["checkpoint"] = checkpoint.run
    if learnt is not None:
        work["learnt lengths"] = learnt.run
    return work


async def alive(controller: Controller, clock: Clock, limit_s: float = HANGS_S) -> None:
    """Runs the controller. TimeoutError when a round of it hangs: whoever keeps it up starts it again, and the table
    that it made last serves meanwhile."""
    task = asyncio.create_task(controller.run())
    limit_s = max(limit_s, 10 * controller.interval_s)
    begun_s = clock.now_s()
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_S)
            if clock.now_s() - max(begun_s, controller.beat_s) > limit_s:
                raise TimeoutError(f"the controller has hung for {limit_s:g} s")
        task.result()
    finally:
        task.cancel()


async def kept_up(work: Work, name: str, clock: Clock) -> None:
    """Runs a background task that never ends. If it fails it is started again: serving does not depend on it."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("a background task failed and is started again", task=name)
        await clock.sleep(RESTART_PAUSE_S)


async def _drain(running: Running, server: Server) -> None:
    """No new requests; those that run finish within the limit, and so do the clients that still read an answer."""
    gateway = running.gateway
    gateway.closing = True
    log.info("draining", in_flight=gateway.in_flight, limit_s=gateway.limits.drain_timeout_s)
    deadline_s = running.clock.now_s() + gateway.limits.drain_timeout_s
    connections = server.server_state.connections
    while running.clock.now_s() < deadline_s and (
        gateway.in_flight or any(c.transport.get_write_buffer_size() for c in connections)
    ):
        await running.clock.sleep(0.05)


async def _tell_when_ready(running: Running) -> None:
    clock = running.clock
    started_s = clock.now_s()
    waiting = dict(running.gateway.services)
    while waiting:
        for name, service in list(waiting.items()):
            members = service.fleet.members.values()
            ready = [m.instance.id for m in members if m.instance.state.value == "ready"]
            if len(ready) >= sum(service.fleet.wanted.values()) and ready:
                log.info("ready", service=name, instances=ready, after_s=round(clock.now_s() - started_s, 1))
                del waiting[name]
        await clock.sleep(0.1)
