"""What importers of published runs share: their error, how a field is read, and the checked way into a profile.

An importer states in the provenance what the source does not say; a quantity that it does not publish stays UNKNOWN,
never a guess.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.profile import UNKNOWN, Point, Profile, Provenance
from profiles.profile_checks import LOAD, row_findings, table_findings

MAX_BYTES = 256 * 1024 * 1024
# Highest SM clock by card, MHz, from `nvidia-smi -q -d SUPPORTED_CLOCKS`: what an engine runs at when nobody locks it.
DEFAULT_CLOCKS_MHZ = {"H100": 1980, "H200": 1980, "B200": 1965, "A100": 1410}


class ImportFailed(Exception):
    """The file cannot become a profile. `message` names the file and what is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Imported:
    """A profile and what a person should know about how it was made."""

    profile: Profile
    notes: tuple[str, ...]


def read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ImportFailed(f"{path}: is longer than {MAX_BYTES // 1024**2} MiB")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ImportFailed(f"{path}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, ValueError):
        raise ImportFailed(f"{path}: is not a text file in UTF-8") from None


def read_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ImportFailed(f"{where}: is no JSON: {error}") from None


def number(record: Mapping[str, Any], keys: Sequence[str], where: str, scale: float = 1.0) -> float:
    """The first of `keys` that is there, times `scale`; UNKNOWN if none is or if it is null."""
    for key in keys:
        value = record.get(key)
        if value is None or value == "":
            continue
        try:
            found = float(value)
        except (TypeError, ValueError):
            found = math.nan
        if isinstance(value, bool) or not math.isfinite(found) or found < 0:
            raise ImportFailed(f"{where}: {key}: must be a number of at least 0, not {value!r:.60}")
        return found * scale
    return UNKNOWN


def needed(record: Mapping[str, Any], keys: Sequence[str], where: str, scale: float = 1.0) -> float:
    found = number(record, keys, where, scale)
    if not 0 < found < UNKNOWN:
        raise ImportFailed(f"{where}: {keys[0]}: {'must be more than 0' if found == 0 else 'is missing'}")
    return found


def whole(value: float, key: str, where: str) -> int:
    if value != int(value):
        raise ImportFailed(f"{where}: {key}: must be a whole number, not {value:g}")
    return int(value)


def load_name(text: str) -> str:
    """`text` as the name of a load: what a name may not hold becomes a dash."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_.:/+=-") else "-" for c in text)[:64].lstrip("-_.:/+=")
    return name if LOAD.fullmatch(name) else "imported"


def clock_of(gpu: str, asked_mhz: int | None, where: str) -> int:
    if asked_mhz is not None:
        return asked_mhz
    for name, clock_mhz in DEFAULT_CLOCKS_MHZ.items():
        if name in gpu.upper():
            return clock_mhz
    raise ImportFailed(f"{where}: the default clock of {gpu!r} is not known; say --clock-mhz")


def profile_of(
    gpu: str, model: str, provenance: Provenance, points: Iterable[Point], notes: Sequence[str], where: str
) -> Imported:
    """Checks the rows as a file's are, so that an import can be loaded again."""
    rows = tuple(sorted(points, key=lambda p: (p.load, p.tp, p.clock_mhz, p.offered_rps)))
    found = [f for index, point in enumerate(rows) for f in row_findings(point, index)]
    if not any(f.error for f in found):
        found += table_findings(rows)
    errors = [f"{where}: {f.column}: {f.message}" for f in found if f.error]
    if errors:
        raise ImportFailed("\n".join(errors))
    warnings = tuple(f.message for f in found if not f.error)
    return Imported(Profile(gpu, model, provenance, rows), (*notes, *warnings))
