"""How the gateway logs: one line per event, for people on a terminal, JSON elsewhere. Never a prompt, never a key."""

from __future__ import annotations

from typing import TextIO

import structlog


def set_up_logs(stream: TextIO) -> None:
    last: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if stream.isatty():
        last = structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            last,
        ],
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
