"""The watchdog of an agent whose emulated GPUs have no library: `python -m commands.fake_watchdog SILENCE_S STATE`."""

from __future__ import annotations

import sys
from pathlib import Path

from agent.watchdog import ignore_signals, watch
from core.clock import SystemClock
from simulator.fake_gpu import FakeGpu
from simulator.gpu_state import GpuState


def main() -> int:
    ignore_signals()
    with FakeGpu(GpuState(Path(sys.argv[2]), SystemClock())) as gpu:
        return 0 if watch(gpu, sys.stdin.fileno(), sys.stdout.fileno(), float(sys.argv[1])) else 1


if __name__ == "__main__":
    raise SystemExit(main())
