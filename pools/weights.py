"""Weights in the page cache: what a re-shard reads, memory has already.

The kernel is asked for whole files (POSIX_FADV_WILLNEED) while a new instance still imports its libraries, which takes
vLLM 10 to 30 s; by the time it opens them, what fits into free memory is there. Asking for what is there costs nothing,
so it is asked at every start."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import structlog

log = structlog.get_logger("joulegate.weights")


def read_ahead(folder: Path) -> int:
    """Bytes of all files below `folder`, which the kernel reads from now on. Reading large files holds up the caller;
    one that cannot be opened is left to whoever needs it. A snapshot's links are followed to their blobs."""
    asked = 0
    for path in sorted(folder.rglob("*")):
        try:
            if not path.is_file():
                continue
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
                asked += os.fstat(file).st_size
            finally:
                os.close(file)
        except OSError as error:
            log.info("cannot be read ahead", file=str(path), why=str(error))
    return asked


def read_ahead_aside(folder: str) -> threading.Thread:
    """In a thread that ends by itself, or with the process."""
    thread = threading.Thread(target=read_ahead, args=(Path(folder),), name="read ahead", daemon=True)
    thread.start()
    return thread
