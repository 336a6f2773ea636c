"""An emulated vLLM server: one engine on one port, in real time. Owns wiring, the socket and the shutdown.

Real: HTTP, JSON, scheduling, token ids, cancellation. Modelled: step times and watts. Emulated: the text.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import Server

from core.clock import Clock, SystemClock
from profiles.engine_model import load_engine_model
from simulator.engine import Engine, EngineLimits
from simulator.engine_gpus import EngineGpus
from simulator.gpu_state import GpuState
from simulator.server_admin import Admin
from simulator.server_app import App
from simulator.server_generate import Generation
from simulator.server_http import TRANSPORT_KEY
from simulator.server_loop import EngineLoop
from simulator.speech import Speech
from simulator.tokens import Tokenizer

RUNNERS = ("generate", "pooling")
CLOSE_TIMEOUT_S = 2


@dataclass(frozen=True, slots=True)
class EngineOptions:
    port: int
    profile: str
    host: str = "127.0.0.1"
    tp: int = 1
    clock_mhz: int = 1980
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048  # vLLM's default; a smaller one shortens the steps that others wait for
    speed: float = 1.0
    served_model_name: str = ""  # empty: the profile's name
    max_model_len: int = 32768
    api_key: str | None = None
    runner: str = "generate"
    shutdown_timeout_s: float = 0.0
    nvml_state: str = ""  # a file of emulated GPUs: the clock is theirs, and they are told the watts
    gpus: str = ""  # their UUIDs, with commas, as many as the TP
    start_delay_s: float = 0.0  # before the port opens, in real seconds: what loading weights would take


class CuttableProtocol(HttpToolsProtocol):
    """Shows the transport to the application, so that an injected fault can cut the connection like a kill."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[TRANSPORT_KEY] = self.transport  # type: ignore[literal-required]


class OwnSignalsServer(Server):
    """uvicorn without its signal handlers: a SIGTERM first has to end the streams."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def build_loop(options: EngineOptions, tokenizer: Tokenizer, clock: Clock) -> EngineLoop:
    if options.runner not in RUNNERS:
        raise ValueError(f"runner must be one of {', '.join(RUNNERS)}, not {options.runner!r}")
    if options.speed <= 0 or options.max_num_seqs <= 0 or options.max_num_batched_tokens <= 0:
        raise ValueError("speed, max_num_seqs and max_num_batched_tokens must be positive")
    limits = EngineLimits(options.max_num_seqs, options.max_model_len, options.max_num_batched_tokens)
    speech = Speech.of(tokenizer.word_count)
    engine = Engine(load_engine_model(options.profile), options.tp, options.clock_mhz, limits, speech)
    return EngineLoop(engine, clock, options.speed, _gpus(options, clock))


def _gpus(options: EngineOptions, clock: Clock) -> EngineGpus | None:
    if not options.nvml_state:
        return None
    uuids = [uuid for uuid in options.gpus.split(",") if uuid]
    if len(uuids) != options.tp:
        raise ValueError(f"TP{options.tp} needs as many GPUs of {options.nvml_state}, not {options.gpus or 'none'}")
    return EngineGpus(GpuState(Path(options.nvml_state), clock), uuids)


async def run_engine(options: EngineOptions) -> None:
    """Serves until SIGTERM or SIGINT; ValueError if the options name an unknown profile or TP."""
    tokenizer, clock = Tokenizer(), SystemClock()
    loop = build_loop(options, tokenizer, clock)
    await clock.sleep(options.start_delay_s)  # it draws what an idle one draws meanwhile
    generation = Generation(loop, tokenizer, options.served_model_name or options.profile)
    admin = Admin(loop, generation, options.profile)
    app = App(generation, admin, options.runner == "pooling", options.api_key)
    config = Config(
        app,
        host=options.host,
        port=options.port,
        http=CuttableProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
    )
    server = OwnSignalsServer(config)
    stepping = asyncio.create_task(loop.run())
    stepping.add_done_callback(lambda _: setattr(server, "should_exit", True))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    closing = asyncio.create_task(_close(stop, loop, server, options.shutdown_timeout_s))
    try:
        await server.serve()
        if stepping.done():
            stepping.result()  # the loop never ends by itself: this raises what broke it
    finally:
        closing.cancel()
        stepping.cancel()
        if loop.gpus is not None:
            loop.gpus.leave()


async def _close(stop: asyncio.Event, loop: EngineLoop, server: Server, timeout_s: float) -> None:
    await stop.wait()
    await loop.drain(timeout_s)
    server.should_exit = True
