"""NAME.model.yaml: one engine model with its constants as they are, in SI units. Reads and writes it.

The shipped models_<gpu>.yaml hold sources and derivations; this file holds what was fitted to one profile
(`joulegate profile fit`), so that a service can be simulated, planned and emulated as the operator's own machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml

from profiles.engine_model import EngineModel, SwitchCosts, TpPoint

SCHEMA = 1


def save_model(model: EngineModel, path: Path, notes: Mapping[str, Any]) -> None:
    """`notes` say where it comes from and what was assumed; they are kept, and ignored when the file is read."""
    document = {"schema": SCHEMA, "notes": dict(notes), **_plain(asdict(model))}
    document["switch"]["reshard_units"] = [[a, b, n] for (a, b), n in model.switch.reshard_units.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")


def load_model(path: Path) -> EngineModel:
    """ValueError with the file and what is wrong in it."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']}, expected {SCHEMA}")
        raw = {field.name: document[field.name] for field in fields(EngineModel)}
        switch = dict(document["switch"])
        switch["reshard_units"] = {(int(a), int(b)): int(n) for a, b, n in switch["reshard_units"]}
        raw["switch"] = SwitchCosts(**switch)
        raw["points"] = {int(tp): TpPoint(**_tuples(point)) for tp, point in document["points"].items()}
        return EngineModel(**_tuples(raw))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (KeyError, TypeError, AttributeError, ValueError, yaml.YAMLError) as error:
        detail = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is not an engine model: {detail}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items() if key != "reshard_units"}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _tuples(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
