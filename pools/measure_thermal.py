"""Whether a GPU under load has reached its temperature. Watts of a warming GPU rise by a percent per few degrees, so no
window opens before. Reads through the Gpu seam; decides by the slope of what it read."""

from __future__ import annotations

from collections.abc import Sequence

from pools.gpu import Gpu

SPAN_S = 20.0
SLOPE_C_PER_S = 0.05
DEGREE_C = 1.0  # the sensor's step


class Thermal:
    """Sampled while the load runs."""

    def __init__(self, gpu: Gpu, uuids: Sequence[str]) -> None:
        self._gpu = gpu
        self._uuids = tuple(uuids)
        self._samples: list[tuple[float, float]] = []

    def sample(self, now_s: float) -> None:
        hottest = max(self._gpu.temperature_c(uuid) for uuid in self._uuids)
        self._samples.append((now_s, hottest))

    @property
    def settled(self) -> bool:
        """Over the last SPAN_S the hottest GPU moved by no more than the sensor's step and the slope allowed."""
        if not self._samples or self._samples[-1][0] - self._samples[0][0] < SPAN_S:
            return False
        now_s = self._samples[-1][0]
        recent = [celsius for at_s, celsius in self._samples if at_s >= now_s - SPAN_S]
        return max(recent) - min(recent) <= DEGREE_C + SLOPE_C_PER_S * SPAN_S / 2
