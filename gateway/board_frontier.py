"""The time-energy frontiers of a service, for the dashboard: which operating points of its profile no other beats.

Owns what was read, once per profile. Reading and sorting take a tenth of a second, so they run in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from profiles.engine_model import MODELS_DIR, EngineModel
from profiles.frontier import frontiers
from profiles.profile_file import SUFFIX, ProfileError, load_profile

SHIPPED = MODELS_DIR / "data"
COLUMNS = ("ttft_p99_s", "tbt_p99_s", "j_per_output_token", "tp", "clock_mhz", "offered_rps", "watts")
QUALITY = {"measured": "measured", "emulated": "modelled", "derived": "modelled"}
Answer = Mapping[str, Any]


class Frontiers:
    """Owner: the event loop."""

    def __init__(self, folder: Path = SHIPPED) -> None:
        self._folder = folder
        self._known: dict[str, Answer] = {}

    async def of(self, model: EngineModel | None) -> Answer:
        """By class; `why` says what is missing where there is none."""
        if model is None:
            return {
                "classes": {},
                "why": "This service names no profile, so what its clocks and TPs cost is not known.",
            }
        name = f"{model.gpu.partition('-')[0].lower()}-{model.model}{SUFFIX}"
        if name not in self._known:
            self._known[name] = await asyncio.to_thread(read, self._folder / name)
        return self._known[name]


def read(path: Path) -> Answer:
    try:
        profile = load_profile(path)
    except ProfileError:
        why = f"There is no table {path.name}; `joulegate profile measure` makes one."
        return {"classes": {}, "why": why}
    found = frontiers(profile.points)
    return {
        "classes": {
            load: [[_short(getattr(point, column)) for column in COLUMNS] for point in one.points]
            for load, one in found.items()
        },
        "of": {load: one.of for load, one in found.items()},
        "columns": COLUMNS,
        "gpu": profile.gpu, "model": profile.model, "made_on": profile.provenance.made_on,
        "engine": profile.provenance.engine, "quality": QUALITY[profile.provenance.origin], "why": "",
    }  # fmt: skip


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if isfinite(value) else None
