"""The seam through which one row per request (and per tick) leaves for the run log. Owns only the promise;
gateway/run_log.py keeps it on disk. A row carries numbers, names and outcomes, never text of a prompt or an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Recorder(Protocol):
    """Takes a row and returns at once, whatever the state of the disk. The caller changes the row no more."""

    def record(self, row: Mapping[str, object]) -> None: ...


class NullRecorder:
    """Forgets every row: for `run_log.path: null` and for callers that keep no log."""

    def record(self, row: Mapping[str, object]) -> None:
        return
