"""The YAML header of a profile file: schema, gpu, model, provenance, residuals. Owns its keys and their types.

Composes YAML and builds no objects from it, so no text can make it do more than name a line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import date
from typing import Any

import yaml

from profiles.profile import ORIGINS, SCHEMA, Provenance, Residual

Fault = tuple[int, str, str]  # line of the header from 1, dotted key, message
MAX_CHARS = 256 * 1024
KEYS = ("schema", "gpu", "model", "provenance", "residuals")
INT = re.compile(r"[+-]?[0-9]{1,16}")
FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
TAG = "tag:yaml.org,2002:"


class HeaderFault(Exception):
    """The header cannot be used; carries every fault."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(f"line {line}: {key}: {message}" for line, key, message in faults))
        self.faults = faults


def parse_header(text: str) -> tuple[str, str, Provenance, tuple[Residual, ...]]:
    """gpu, model, provenance, residuals. Raises HeaderFault and nothing else."""
    node = _composed(text)
    faults: list[Fault] = []
    top = _mapping(node, "", KEYS, ("schema", "gpu", "model", "provenance"), faults)
    if "schema" in top:
        schema = _scalar(top["schema"], "int", "schema", faults)
        if schema is not None and schema != SCHEMA:
            told = f"is {schema}; this joulegate reads schema {SCHEMA}"
            raise HeaderFault([(_line(top["schema"]), "schema", told)])
    gpu, model = (_scalar(top[key], "str", key, faults) if key in top else None for key in ("gpu", "model"))
    for key, value in (("gpu", gpu), ("model", model)):
        if value == "":
            faults.append((_line(top[key]), key, "must not be empty"))
    provenance = _provenance(top["provenance"], faults) if "provenance" in top else None
    residuals = _residuals(top["residuals"], faults) if "residuals" in top else ()
    if faults or provenance is None:
        raise HeaderFault(faults)
    return str(gpu), str(model), provenance, residuals


def _composed(text: str) -> yaml.Node:
    if len(text) > MAX_CHARS:
        raise HeaderFault([(1, "", f"the header is longer than {MAX_CHARS // 1024} KiB")])
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise HeaderFault([(mark.line + 1 if mark else 1, "", f"is no YAML: {error.problem}")]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HeaderFault([(1, "", f"is no YAML: {told}")]) from None
    if node is None:
        raise HeaderFault([(1, "", "the header is empty")])
    return node


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _mapping(
    node: yaml.Node, at: str, known: tuple[str, ...], needed: tuple[str, ...], faults: list[Fault]
) -> dict[str, yaml.Node]:
    """Known keys with their nodes; `known` empty: any key. What is wrong with them goes into `faults`."""
    if not isinstance(node, yaml.MappingNode):
        faults.append((_line(node), at, "must be a mapping of keys"))
        return {}
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        path = f"{at}.{name}" if at else name
        if known and name not in known:
            faults.append((_line(key), path, f"is no key here; known: {', '.join(known)}"))
        elif name in found:
            faults.append((_line(key), path, "stands twice"))
        else:
            found[name] = value
    missing = [name for name in needed if name not in found]
    faults.extend((_line(node), f"{at}.{name}" if at else name, "is missing") for name in missing)
    return found


def _scalar(node: yaml.Node, kind: str, at: str, faults: list[Fault]) -> Any:
    """The value, or None with a fault."""
    text = node.value if isinstance(node, yaml.ScalarNode) else None
    told = {"int": "must be a whole number", "float": "must be a number", "str": "must be text; put it in quotes"}[kind]
    if text is not None and kind == "str" and node.tag in (f"{TAG}str", f"{TAG}timestamp"):
        return text
    if text is not None and kind == "int" and INT.fullmatch(text):
        return int(text)
    if text is not None and kind == "float" and FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    faults.append((_line(node), at, told))
    return None


def _provenance(node: yaml.Node, faults: list[Fault]) -> Provenance | None:
    names = tuple(f.name for f in fields(Provenance))
    needed = tuple(f.name for f in fields(Provenance) if f.default is MISSING and f.default_factory is MISSING)
    before = len(faults)
    found = _mapping(node, "provenance", names, needed, faults)
    values: dict[str, Any] = {}
    for name, value in found.items():
        at = f"provenance.{name}"
        if name == "limits":
            limits: Mapping[str, yaml.Node] = _mapping(value, at, (), (), faults)
            values[name] = {key: _scalar(limit, "int", f"{at}.{key}", faults) for key, limit in limits.items()}
        else:
            values[name] = _scalar(value, "str", at, faults)
    if values.get("origin") is not None and values["origin"] not in ORIGINS:
        faults.append((_line(found["origin"]), "provenance.origin", f"must be one of {', '.join(ORIGINS)}"))
    if values.get("made_on") is not None and not _is_date(values["made_on"]):
        told = "must be a date such as 2026-11-21"
        faults.append((_line(found["made_on"]), "provenance.made_on", told))
    return Provenance(**values) if len(faults) == before else None


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _residuals(node: yaml.Node, faults: list[Fault]) -> tuple[Residual, ...]:
    if not isinstance(node, yaml.SequenceNode):
        faults.append((_line(node), "residuals", "must be a list"))
        return ()
    kinds = {f.name: str(f.type) for f in fields(Residual)}
    needed = tuple(f.name for f in fields(Residual) if f.default is MISSING)
    residuals: list[Residual] = []
    seen: set[tuple[int, int]] = set()
    for index, item in enumerate(node.value):
        at, before = f"residuals.{index}", len(faults)
        found = _mapping(item, at, tuple(kinds), needed, faults)
        values = {name: _scalar(value, kinds[name], f"{at}.{name}", faults) for name, value in found.items()}
        for name, value in values.items():
            if value is not None and (value < 0 or (value == 0 and name in ("tp", "latency", "watts"))):
                faults.append((_line(found[name]), f"{at}.{name}", "must be more than 0"))
        if len(faults) > before:
            continue
        residual = Residual(**values)
        if (residual.tp, residual.clock_mhz) in seen:
            faults.append((_line(item), at, f"repeats TP{residual.tp} at {residual.clock_mhz} MHz"))
        seen.add((residual.tp, residual.clock_mhz))
        residuals.append(residual)
    return tuple(residuals)
