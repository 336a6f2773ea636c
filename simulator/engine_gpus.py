"""The emulated GPUs that an emulated engine runs on: it takes their clock and tells them what it draws.

A group works at the pace of its slowest member. Watts are the engine model's, shared out evenly; the counters of the
GPUs add them up in real seconds, also when the engine's own seconds pass faster."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.gpu_state import GpuState


class EngineGpus:
    """ValueError when the file is none of ours or lacks one of the GPUs."""

    def __init__(self, state: GpuState, uuids: Sequence[str]) -> None:
        self.uuids = tuple(uuids)
        self._state = state
        try:
            self.clock_mhz()
        except (OSError, KeyError) as error:
            raise ValueError(f"no emulated GPUs {', '.join(uuids)} in {state.path}: {error!r}") from None

    def clock_mhz(self) -> int:
        return min(gpu.loaded_mhz for gpu in self._state.group(self.uuids))

    def work(self, watts: float) -> None:
        self._state.put(self.uuids, load=1.0, given_w=watts / len(self.uuids))

    def rest(self, watts: float) -> None:
        """Held but idle: a model in memory, nothing to do."""
        self._state.put(self.uuids, load=0.0, given_w=watts / len(self.uuids))

    def leave(self) -> None:
        """Nobody is on these GPUs any more: they draw what idle ones do."""
        self._state.put(self.uuids, load=0.0, given_w=-1.0)
