"""The journal of a sweep: one JSON line per window, appended and flushed as it is taken: a restart repeats none.

Owns the file beside the profile. The first line says which sweep it belongs to; a journal of another is refused. A last
line that a kill tore is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pools.measure import Measured, Probe
from profiles.profile import Point

SUFFIX = ".journal.jsonl"


class JournalError(ValueError):
    """The journal cannot be used; the message says what to do."""


class Journal:
    """`with Journal(path, of, resume) as journal:`. `of` is what makes two sweeps the same."""

    def __init__(self, path: Path, of: Mapping[str, Any], resume: bool) -> None:
        self._path = path
        self._of = json.loads(json.dumps(of))
        self._resume = resume
        self._done: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Journal:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self._path.exists() or not self._read()
        self._file = self._path.open("a", encoding="utf-8")
        if fresh:
            self._write({"sweep": self._of})
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def windows(self) -> int:
        return len(self._done)

    def find(self, probe: Probe) -> Measured | None:
        """What was measured of this probe, if it was."""
        entry = self._done.get(probe.key)
        if entry is None:
            return None
        return Measured(probe, Point(**entry["point"]), entry["instance_s"], entry["reason"])

    def add(self, one: Measured) -> None:
        entry = {"key": one.probe.key, "instance_s": one.instance_s, "reason": one.reason, "point": asdict(one.point)}
        self._write(entry)
        self._done[one.probe.key] = entry

    def _write(self, entry: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> bool:
        """False if not even the first line was written."""
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if not lines:
            os.truncate(self._path, 0)
            return False
        if not self._resume:
            raise JournalError(f"{self._path} holds a sweep that was begun: go on with --resume, or remove it")
        try:
            first, *rest = [json.loads(line) for line in lines]
            owner = first["sweep"]
            self._done = {entry["key"]: entry for entry in rest}
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{self._path} is no journal of a sweep: {error}") from None
        if owner != self._of:
            differs = sorted(k for k in {*owner, *self._of} if owner.get(k) != self._of.get(k))
            raise JournalError(f"{self._path} belongs to a sweep with other {', '.join(differs)}: remove it")
        os.truncate(self._path, len(whole))
        return True
