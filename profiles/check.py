"""Compares the engine models with published measurements that they were not fitted on.

Owns the list of quantities, their aims and the error figures. Misses are results like any other: nothing here bends a
model or drops a row because it disagrees. Rows are left out only for what they are (an engine that queues, an unknown
TP), never for what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from profiles import check_facts, check_files, published
from profiles.check_rows import Comparison, Quantity
from profiles.engine_model import GPUS, EngineModel, engine_model_names, load_engine_model
from profiles.fit import Constant, compare
from profiles.published_facts import read_facts

Models = dict[tuple[str, str], EngineModel]


@dataclass(frozen=True, slots=True)
class Error:
    """How far the model is from the published figures of one quantity."""

    quantity: Quantity
    n: int
    median_error: float
    p90_error: float

    @property
    def within_aim(self) -> bool:
        return self.median_error <= self.quantity.aim


@dataclass(frozen=True, slots=True)
class Report:
    errors: tuple[Error, ...]
    comparisons: tuple[Comparison, ...]
    left_out: tuple[tuple[str, str], ...]  # (quantity, why)
    constants: tuple[Constant, ...]

    @property
    def missed(self) -> tuple[Error, ...]:
        return tuple(error for error in self.errors if not error.within_aim)

    @property
    def drifted(self) -> tuple[Constant, ...]:
        """Constants whose typed value is not what the fit set gives."""
        return tuple(constant for constant in self.constants if not constant.agrees)


def check_models(data: Path) -> Report:
    """Everything that can be compared with the files under `data` and the typed-in facts."""
    models = {(gpu, name): load_engine_model(name, gpu) for gpu in GPUS for name in engine_model_names(gpu)}
    compared: list[Comparison] = []
    left_out: list[tuple[str, str]] = []
    for file, quantities, make in _SOURCES:
        if (data / file).exists():
            compared += make(data, models)
        else:
            left_out += [(quantity.name, f"{data / file} is not there") for quantity in quantities]
    compared += check_facts.compare_facts(read_facts(), models)
    errors = summarise(compared)
    seen = {error.quantity.name for error in errors} | {name for name, _ in left_out}
    left_out += [
        (quantity.name, "no row of the check set fits a known model")
        for quantity in (*check_files.QUANTITIES, *check_facts.QUANTITIES)
        if quantity.name not in seen
    ]
    return Report(errors, tuple(compared), tuple(left_out), tuple(compare(data)))


def summarise(compared: Iterable[Comparison]) -> tuple[Error, ...]:
    """Median and 90th percentile (nearest rank) of the relative error, by quantity, in order of appearance."""
    by_name: dict[str, tuple[Quantity, list[float]]] = {}
    for one in compared:
        by_name.setdefault(one.quantity.name, (one.quantity, []))[1].append(one.error)
    return tuple(
        Error(quantity, len(errors), nearest_rank(errors, 0.5), nearest_rank(errors, 0.9))
        for quantity, errors in by_name.values()
    )


def nearest_rank(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


_SOURCES: tuple[tuple[str, tuple[Quantity, ...], Callable[[Path, Models], list[Comparison]]], ...] = (
    (
        published.ML_ENERGY,
        check_files.ML_ENERGY_QUANTITIES,
        lambda data, models: check_files.compare_ml_energy(published.read_ml_energy(data), models),
    ),
    (
        published.SILICON,
        check_files.SILICON_QUANTITIES,
        lambda data, models: check_files.compare_silicon(published.read_silicon(data), models),
    ),
    (
        published.SPLITWISE,
        check_files.SPLITWISE_QUANTITIES,
        lambda data, models: check_files.compare_splitwise(published.read_splitwise(data), models),
    ),
    (
        published.ML_ENERGY_V2,
        check_files.V2_QUANTITIES,
        lambda data, models: check_files.compare_v2(published.read_v2(data), models),
    ),
)
