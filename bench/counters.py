"""Instructions retired by a gateway, where the machine counts them: `perf stat` attached for one segment.

Virtual machines often have no counters; then everything here answers None and CPU time alone is compared."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterable

INSTRUCTIONS = "instructions"


def parse_count(text: str, event: str = INSTRUCTIONS) -> float | None:
    """The value in `perf stat -x,` output; "<not supported>" and "<not counted>" are None."""
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[2].partition(":")[0] == event:
            try:
                return float(fields[0])
            except ValueError:
                return None
    return None


def usable(event: str = INSTRUCTIONS) -> bool:
    if shutil.which("perf") is None:
        return False
    done = subprocess.run(["perf", "stat", "-x,", "-e", event, "true"], capture_output=True, text=True, check=False)
    return (parse_count(done.stderr, event) or 0) > 0


class Counter:
    """Counts for the processes `pids`, from the start of the block to `stop`."""

    def __init__(self, pids: Iterable[int], event: str = INSTRUCTIONS) -> None:
        self._event = event
        command = ["perf", "stat", "-x,", "-e", event, "-p", ",".join(str(pid) for pid in sorted(pids))]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def stop(self) -> float | None:
        self._process.send_signal(signal.SIGINT)
        try:
            _, text = self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, text = self._process.communicate()
        return parse_count(text, self._event)
