"""What can be asked otherwise: every key of `--set` and `--sweep`, its type, and what it changes in an experiment.

Owns the names. A key that is not known, or a value that its type does not take, is a ValueError that
says which would do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.service import SIZES, Edges, Slo
from simulator.experiment import Experiment
from simulator.lengths import NAMED
from simulator.load import PoissonLoad
from simulator.request_life import MOVES

Apply = Callable[[Experiment, Any], Experiment]
MOST_POOLS = 16
SWEPT_ON = ("code", "conversation")


@dataclass(frozen=True, slots=True)
class Key:
    """`takes` says in words what `read` accepts."""

    takes: str
    read: Callable[[str], Any]
    apply: Apply


def apply_all(experiment: Experiment, settings: list[str]) -> Experiment:
    """`settings`: key=value, later ones win."""
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise ValueError(f"{setting}: expected key=value")
        experiment = change(experiment, key.strip(), value.strip())
    return experiment


def change(experiment: Experiment, key: str, value: str) -> Experiment:
    known = keys()
    if key not in known:
        raise ValueError(f"unknown key {key}; known: {', '.join(known)}")
    one = known[key]
    try:
        read = one.read(value)
    except ValueError:
        raise ValueError(f"{key}={value}: expected {one.takes}") from None
    return one.apply(experiment, read)


def swept(sweep: str) -> tuple[str, list[str]]:
    """`key=v1,v2,...` as the key and its values; a value that is a list itself has slashes (edges.input=256/1024)."""
    key, separator, text = sweep.partition("=")
    values = [value.strip() for value in text.split(",") if value.strip()]
    if not separator or not values:
        raise ValueError(f"{sweep}: expected key=value,value,...")
    return key.strip(), values


def keys() -> dict[str, Key]:
    found = {f"slo.ttft.{size}": Key("seconds above 0", _positive, _ttft(size)) for size in SIZES}
    found |= {
        "slo.tbt": Key("seconds above 0", _positive, lambda e, v: _slo(e, replace(e.spec.slo, tbt_s=v))),
        "slo.times": Key("a factor above 0 for every objective", _positive, _relaxed),
        "edges.input": Key("two or three rising numbers of tokens, a,b or a/b/c", _edges(2, 3), _input_edges),
        "edges.output": Key("two rising numbers of tokens, a,b or a/b", _edges(2, 2), _output_edges),
        "context_tokens": Key("a number of tokens", _count(2), _of_spec("context_tokens")),
        "gpus": Key("a number of GPUs", _count(1), _of_experiment("gpus")),
        "static": Key("instances of singlepool", _count(1), _of_experiment("static_instances")),
        "pools": Key(f"a number from 2 to {MOST_POOLS}", _count(2, MOST_POOLS), _of_experiment("pools")),
        "predictor": Key(f"{', '.join(NAMED)} or an accuracy from 0 to 1", _predictor, _of_experiment("predictor")),
        "swept_on": Key(" or ".join(SWEPT_ON), _one_of(SWEPT_ON), _of_experiment("swept_on")),
        "migration": Key(" or ".join(MOVES), _one_of(MOVES), _of_experiment("moves")),
        "power_cap": Key("watts above 0", _positive, _of_experiment("power_cap_w")),
        "scale": Key("copies of the trace, above 0", _positive, _scale),
        "tick_s": Key("seconds above 0", _positive, _of_experiment("tick_s")),
        "limits.max_queue": Key("a number of requests", _count(0), _of_door("max_queue")),
        "limits.max_wait_s": Key("seconds above 0", _positive, _of_door("max_wait_s")),
        "limits.retries": Key("a number", _count(0), _of_door("retries")),
    }
    for fault, takes, read in (
        ("deaths", "deaths per hour and instance, not negative", _not_negative),
        ("slow_starts", "a share of starts from 0 to 1", _share),
        ("stale_s", "seconds, not negative", _not_negative),
        ("refused_clocks", "a share of clock writes from 0 to 1", _share),
        ("lost_plans", "a share of plans from 0 to 1", _share),
    ):
        found[f"faults.{fault}"] = Key(takes, read, _of_faults(fault))
    for cost, takes in {
        "start_s": "seconds",
        "clock_switch_s": "seconds",
        "back_after_s": "seconds",
        "park_s": "seconds",
        "unpark_s": "seconds",
        "bare_w": "watts of a GPU",
    }.items():
        found[cost] = Key(f"{takes}, not negative", _not_negative, _of_costs(cost))
    return found


# --- what a value looks like


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def _count(least: int, most: float = math.inf) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError
        return value

    return read


def _edges(least: int, most: int) -> Callable[[str], tuple[int, ...]]:
    def read(text: str) -> tuple[int, ...]:
        values = tuple(int(part) for part in re.split("[,/]", text))
        rising = all(a < b for a, b in zip((0, *values), values, strict=False))
        if not least <= len(values) <= most or not rising:
            raise ValueError
        return values

    return read


def _predictor(text: str) -> str:
    if text not in NAMED and not 0 <= float(text) <= 1:
        raise ValueError
    return text


def _one_of(known: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise ValueError
        return text

    return read


# --- what it changes


def _of_experiment(name: str) -> Apply:
    return lambda experiment, value: replace(experiment, **{name: value})


def _of_spec(name: str) -> Apply:
    return lambda experiment, value: replace(experiment, spec=replace(experiment.spec, **{name: value}))


def _of_door(name: str) -> Apply:
    return lambda experiment, value: replace(experiment, door=replace(experiment.door, **{name: value}))


def _of_faults(name: str) -> Apply:
    return lambda experiment, value: replace(experiment, faults=replace(experiment.faults, **{name: value}))


def _of_costs(name: str) -> Apply:
    def apply(experiment: Experiment, value: float) -> Experiment:
        others = tuple(pair for pair in experiment.costs if pair[0] != name)
        return replace(experiment, costs=(*others, (name, value)))

    return apply


def _slo(experiment: Experiment, slo: Slo) -> Experiment:
    return replace(experiment, spec=replace(experiment.spec, slo=slo))


def _ttft(size: str) -> Apply:
    def apply(experiment: Experiment, value: float) -> Experiment:
        slo = experiment.spec.slo
        return _slo(experiment, replace(slo, ttft_s={**slo.ttft_s, size: value}))

    return apply


def _relaxed(experiment: Experiment, value: float) -> Experiment:
    slo = experiment.spec.slo
    return _slo(experiment, Slo({size: limit_s * value for size, limit_s in slo.ttft_s.items()}, slo.tbt_s * value))


def _input_edges(experiment: Experiment, value: tuple[int, ...]) -> Experiment:
    old = experiment.spec.edges
    longest = value[2] if len(value) == 3 else max(old.input[2], value[1] + 1)
    edges = Edges((value[0], value[1], longest), old.output)
    return replace(experiment, spec=replace(experiment.spec, edges=edges))


def _output_edges(experiment: Experiment, value: tuple[int, ...]) -> Experiment:
    edges = Edges(experiment.spec.edges.input, (value[0], value[1]))
    return replace(experiment, spec=replace(experiment.spec, edges=edges))


def _scale(experiment: Experiment, value: float) -> Experiment:
    load = experiment.load
    if isinstance(load, PoissonLoad):
        return replace(experiment, load=replace(load, rate_rps=load.rate_rps * value))
    return replace(experiment, load=replace(load, scale=value))
