"""NAME.profile.csv: a YAML header between two `---` lines, then the operating points as CSV. Reads and writes it.

Owns the format and its version. Refuses what no query could trust, with the file, line and column of every fault
(ProfileError, and nothing else, whatever the bytes); lists what is odd but usable as warnings. Of YAML it takes keys,
plain values and lists: no tags, anchors or aliases matter to it. Knows nothing of what a profile is good for.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from profiles.profile import MAY_BE_UNKNOWN, SCHEMA, UNKNOWN, Point, Profile
from profiles.profile_checks import Finding, row_findings, table_findings
from profiles.profile_header import HeaderFault, parse_header

SUFFIX = ".profile.csv"
MAX_BYTES = 32 * 1024 * 1024
FENCE = "---"
COLUMNS = tuple(f.name for f in fields(Point))
KINDS = {f.name: str(f.type) for f in fields(Point)}
INT = re.compile(r"[+-]?[0-9]{1,16}")
FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a file, where it is."""

    file: str
    line: int | None
    column: str
    message: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (where, self.column, self.message) if part)


class ProfileError(Exception):
    """The profile cannot be used. Carries every problem found, in the order of the file."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def load_profile(path: str | Path) -> Profile:
    """The profile, checked. Raises ProfileError and nothing else."""
    return read_profile(path)[0]


def read_profile(path: str | Path) -> tuple[Profile, tuple[Problem, ...]]:
    """The profile and what is odd about it but usable. Raises ProfileError and nothing else."""
    return parse_profile(_text(path), str(path))


def parse_profile(text: str, name: str) -> tuple[Profile, tuple[Problem, ...]]:
    """The same from text; `name` stands for the file in messages."""
    header, start, rows = _split(text, name)
    try:
        gpu, model, provenance, residuals = parse_header(header)
    except HeaderFault as fault:
        problems = tuple(Problem(name, line + 1, key, message) for line, key, message in fault.faults)
        raise ProfileError(problems) from None
    points, lines = _points(rows, start, name)
    found = [f for row, point in enumerate(points) for f in row_findings(point, row)]
    if not any(f.error for f in found):
        found += table_findings(points)
    _stop([_problem(f, name, lines) for f in sorted(found, key=lambda f: f.row or 0) if f.error])
    profile = Profile(gpu, model, provenance, tuple(points), residuals, SCHEMA)
    return profile, tuple(_problem(f, name, lines) for f in found if not f.error)


def save_profile(profile: Profile, path: str | Path) -> None:
    """Writes the whole file or nothing. ProfileError if a row could not be read back; physics is judged on loading,
    so that an odd measurement is not lost."""
    name = str(path)
    found = [f for row, point in enumerate(profile.points) for f in row_findings(point, row) if f.error]
    _stop([Problem(name, None, f.column, f"row {(f.row or 0) + 1}: {f.message}") for f in found])
    text = format_profile(profile)
    again, _ = _written(text, name)
    if again != profile:
        raise ProfileError((Problem(name, None, "", "holds what the format cannot keep (control characters?)"),))
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, 0o644)
        os.replace(draft, target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def format_profile(profile: Profile) -> str:
    said = ((f.name, getattr(profile.provenance, f.name)) for f in fields(profile.provenance))
    provenance = {name: dict(value) if name == "limits" else value for name, value in said if value}
    header: dict[str, Any] = {"schema": profile.schema, "gpu": profile.gpu, "model": profile.model}
    header["provenance"] = provenance
    out = io.StringIO()
    out.write(FENCE + "\n")
    yaml.safe_dump(header, out, sort_keys=False, width=110)
    if profile.residuals:
        residuals = [asdict(residual) for residual in profile.residuals]
        yaml.safe_dump({"residuals": residuals}, out, sort_keys=False, default_flow_style=None, width=200)
    out.write(FENCE + "\n")
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(COLUMNS)
    for point in profile.points:
        rows.writerow([_cell(column, getattr(point, column)) for column in COLUMNS])
    return out.getvalue()


def _written(text: str, name: str) -> tuple[Profile, None]:
    """What a reader will make of `text`, physics aside."""
    header, start, rows = _split(text, name)
    try:
        gpu, model, provenance, residuals = parse_header(header)
    except HeaderFault as fault:
        raise ProfileError(tuple(Problem(name, None, key, message) for _, key, message in fault.faults)) from None
    return Profile(gpu, model, provenance, tuple(_points(rows, start, name)[0]), residuals, SCHEMA), None


def _cell(column: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value == UNKNOWN and column in MAY_BE_UNKNOWN:
        return ""
    return repr(float(value)) if KINDS[column] == "float" else str(value)


def _problem(finding: Finding, name: str, lines: list[int]) -> Problem:
    line = None if finding.row is None else lines[finding.row]
    return Problem(name, line, finding.column, finding.message)


def _stop(problems: list[Problem]) -> None:
    if problems:
        raise ProfileError(tuple(problems))


def _text(path: str | Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"longer than {MAX_BYTES // 1024**2} MiB")
        return data.decode("utf-8-sig")
    except OSError as error:
        told = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        told = f"is not a text file (byte {error.start} is not UTF-8)"
    except ValueError as error:
        told = f"cannot be read: {error}"
    raise ProfileError((Problem(str(path), None, "", told),))


def _split(text: str, name: str) -> tuple[str, int, str]:
    """Header, the number of lines before the CSV, CSV."""
    lines = re.split(r"\r\n|\r|\n", text)
    if lines[0].rstrip() != FENCE:
        told = f"a profile starts with a line '{FENCE}' and its header; is this a {SUFFIX} file?"
        raise ProfileError((Problem(name, 1, "", told),))
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == FENCE:
            return "\n".join(lines[1:number]), number + 1, "\n".join(lines[number + 1 :])
    raise ProfileError((Problem(name, 1, "", f"the header has no end; it stands between two lines '{FENCE}'"),))


def _points(text: str, start: int, name: str) -> tuple[list[Point], list[int]]:
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        columns = [column.strip() for column in next(reader, [])]
        _stop([Problem(name, start + 1, column, message) for column, message in _column_faults(columns)])
        points, lines, problems = [], [], []
        for row in reader:
            line = start + reader.line_num
            if not row or row == [""]:
                continue
            if len(row) != len(columns):
                told = f"has {len(row)} cells, the table has {len(columns)} columns"
                problems.append(Problem(name, line, "", told))
                continue
            try:
                points.append(Point(**{c: _value(c, cell.strip()) for c, cell in zip(columns, row, strict=True)}))
                lines.append(line)
            except _BadCell as bad:
                problems.append(Problem(name, line, bad.column, bad.message))
    except csv.Error as error:
        raise ProfileError((Problem(name, start + reader.line_num, "", f"is no CSV: {error}"),)) from None
    _stop(problems)
    return points, lines


def _column_faults(columns: list[str]) -> Iterator[tuple[str, str]]:
    optional = {f.name for f in fields(Point) if f.default is not MISSING}
    if not any(columns):
        yield "", "the table is missing: after the header stands a line with the names of the columns"
        return
    for column in columns:
        if column not in COLUMNS:
            yield column, "is no column of a profile"
        elif columns.count(column) > 1:
            yield column, "stands twice"
    for column in COLUMNS:
        if column not in columns and column not in optional:
            yield column, "column is missing"


class _BadCell(Exception):
    def __init__(self, column: str, message: str) -> None:
        self.column, self.message = column, message


def _value(column: str, text: str) -> Any:
    kind = KINDS[column]
    if kind == "str":
        return text
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise _BadCell(column, f"must be true or false, not {text[:40]!r}")
        return text.lower() == "true"
    if not text:
        if column in MAY_BE_UNKNOWN:
            return UNKNOWN
        raise _BadCell(column, "is empty and must be known")
    if not (INT if kind == "int" else FLOAT).fullmatch(text):
        raise _BadCell(column, f"must be a {'whole ' if kind == 'int' else ''}number, not {text[:40]!r}")
    value = int(text) if kind == "int" else float(text)
    if math.isinf(value):
        raise _BadCell(column, f"is too large ({text[:40]})")
    return value
