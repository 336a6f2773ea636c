"""Keeps a promised quantile: nine answers in ten stay within the q90, for each service and under drift.

Owns the offset of one quantile, in doublings. Refuses to predict. This is adaptive conformal inference (Gibbs and
Candes, 2021): after each answer the offset moves up by STEP x coverage where the quantile was exceeded and down by
STEP x (1 - coverage) where it held. Whatever the lengths do, the share that held differs from `coverage` over T answers
by no more than (range of the offset) / (STEP x T)."""

from __future__ import annotations

from msgspec import Struct

COVERAGE = 0.9
STEP = 0.1  # doublings; a miss makes the next q90 6 % longer, and nine answers within it undo that
FURTHEST = 8.0


class Calibration(Struct, frozen=True):
    """`offset` in doublings; `judged` answers, of which `missed` were longer than their q90."""

    offset: float = 0.0
    judged: int = 0
    missed: int = 0

    def learn(self, uncapped_q90: float, output_tokens: int, cut: bool = False) -> Calibration:
        """`uncapped_q90` was said, `offset` and all, before the request's limit. An answer that its limit cut within
        the quantile proves nothing and is not judged; one cut beyond it is a miss."""
        missed = output_tokens > uncapped_q90
        if cut and not missed:
            return self
        moved = self.offset + STEP * (COVERAGE if missed else COVERAGE - 1.0)
        return Calibration(min(FURTHEST, max(-FURTHEST, moved)), self.judged + 1, self.missed + missed)
