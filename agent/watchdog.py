"""The process that undoes clocks when the agent cannot. It imports next to nothing: next to nothing can break it.

The agent writes lines to its standard input: `+UUID` before a clock is set, `-UUID` after it is undone, `.` every
moment. When the pipe ends (the agent died, of whatever), it undoes what is marked and ends. When the agent falls silent
(stopped, hung in the driver) it undoes too, says `reset`, and stays.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress

from pools.gpu import DriverReloaded, GpuControl, GpuError
from pools.nvml import NvmlGpu

RETRY_S = 0.1
ATTEMPTS = 100  # ten seconds: a driver that is being reloaded, a bus that recovers


class Marks:
    """The GPUs to undo, as the lines say."""

    def __init__(self) -> None:
        self.uuids: set[str] = set()
        self._rest = b""

    def take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line[:1] == b"+":
                self.uuids.add(line[1:].decode())
            elif line[:1] == b"-":
                self.uuids.discard(line[1:].decode())


def undo(gpu: GpuControl, marks: Marks) -> bool:
    """Whether nothing is left to undo."""
    for uuid in sorted(marks.uuids):
        try:
            gpu.unlock_clock(uuid)
            marks.uuids.discard(uuid)
        except DriverReloaded:
            with suppress(GpuError):
                gpu.reopen()
        except GpuError:
            continue
    return not marks.uuids


def watch(gpu: GpuControl, agent: int, answer: int, silence_s: float) -> bool:
    """Until the agent's pipe ends. Whether everything was undone then."""
    marks = Marks()
    os.write(answer, b"ready\n")
    while True:
        heard, _, _ = select.select([agent], [], [], silence_s)
        if heard:
            data = os.read(agent, 1 << 16)
            if not data:
                break
            marks.take(data)
        elif marks.uuids and undo(gpu, marks):
            with suppress(OSError):
                os.write(answer, b"reset\n")
    for _ in range(ATTEMPTS):
        if undo(gpu, marks):
            return True
        select.select([], [], [], RETRY_S)
    return False


def ignore_signals() -> None:
    """Whoever ends the agent's group or session means the agent; the watchdog ends with the pipe."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def main() -> int:
    ignore_signals()
    with NvmlGpu() as gpu:
        return 0 if watch(gpu, sys.stdin.fileno(), sys.stdout.fileno(), float(sys.argv[1])) else 1


if __name__ == "__main__":
    raise SystemExit(main())
