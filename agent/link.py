"""The agent's end of the watchdog: starts it, keeps it up, tells it what to undo. Owns the process and the marks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence

import structlog

from pools.children import unmarked
from pools.gpu import GpuError

RESTART_S = 0.1  # one that cannot start is not started in a tight loop
log = structlog.get_logger("joulegate.agent")


class NoWatchdog(GpuError):
    """A clock that nobody would undo is not set."""

    code = "no_watchdog"


class Link:
    """Marks are put by the thread of the hardware, all else is the event loop's."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.undone_elsewhere: Callable[[], None] = lambda: None  # told when the watchdog has undone all clocks
        self._argv = list(argv)
        self._marked: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = threading.Lock()  # nobody writes to a descriptor that is being closed
        self._restart: asyncio.TimerHandle | None = None
        self.ready = asyncio.Event()

    def start(self) -> None:
        """In a session of its own: a Ctrl-C or a hang-up meant for the agent is not for it. Nor is it to be taken for
        an agent that a gateway has started."""
        self._process = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0,
            env=unmarked(os.environ),
        )  # fmt: skip
        assert self._process.stdout is not None and self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # one that is stopped must not stop this process
        asyncio.get_running_loop().add_reader(self._process.stdout.fileno(), self._heard)
        for uuid in sorted(self._marked.copy()):
            self._say(f"+{uuid}\n")

    def will_change(self, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            self._marked.add(uuid)
            if not self.ready.is_set() or not self._say(f"+{uuid}\n"):
                raise NoWatchdog("the watchdog is not up")

    def undone(self, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            self._marked.discard(uuid)
            self._say(f"-{uuid}\n")

    def beat(self) -> None:
        self._say(".\n")

    def stop(self) -> None:
        """It undoes what is still marked, and ends by itself."""
        if self._restart is not None:
            self._restart.cancel()
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            return
        if self._process.stdout.closed:
            return
        asyncio.get_running_loop().remove_reader(self._process.stdout.fileno())
        with self._pipe:
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        self._process.stdout.close()

    def _say(self, line: str) -> bool:
        with self._pipe:
            try:
                assert self._process is not None and self._process.stdin is not None
                os.write(self._process.stdin.fileno(), line.encode())
            except (OSError, ValueError):  # it has ended, or its pipe is closed already
                return False
        return True

    def _heard(self) -> None:
        process = self._process
        assert process is not None and process.stdout is not None and process.stdin is not None
        data = os.read(process.stdout.fileno(), 4096)
        if b"ready" in data:
            self.ready.set()
        if b"reset" in data:
            log.warning("the watchdog has undone all clocks: this agent was silent for too long")
            self.undone_elsewhere()
        if not data:
            log.error("the watchdog ended; starting another", pid=process.pid)
            self.ready.clear()
            loop = asyncio.get_running_loop()
            loop.remove_reader(process.stdout.fileno())
            with self._pipe:
                process.stdin.close()
            process.stdout.close()
            process.kill()
            process.wait()
            self._restart = loop.call_later(RESTART_S, self.start)
