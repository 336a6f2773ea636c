"""`make ablate`: what the distance from the bound is made of, and what each part of the controller is worth.

One cause or part is switched off at a time in the simulator. Every run is kept in build/ablate under its load, its
variant and its code; started again, only what is missing is run. See docs/ablation.md."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
import time
from ast import literal_eval
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.ablate_cases import AS_IS, VARIANTS, Loaded, Variant, asked_of, loads
from bench.ablate_plans import regridded, slowed
from controller.knowledge import Settings
from core.files import write_whole
from core.service import SIZES
from simulator.answer_cache import code_version
from simulator.bounds import bounds
from simulator.case import CONTEXT_TOKENS
from simulator.experiment import case_of
from simulator.joulegate_policy import joulegate_setup
from simulator.load import TraceRows, read_rows
from simulator.policies import singlepool
from simulator.report import J_PER_KWH, Rates, figures
from simulator.tally import JUDGED_FROM

HEADS = ["switched off", "what that means", "kWh", "of as it is", "x bound", "worst class", "all", "starts/h/100"]


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    known = loads(options.data)
    for name in options.loads.split(","):
        text = of_load(name, known[name], options)
        (options.out / f"{name}.md").write_text(text)
        print(text)
    return 0


def of_load(name: str, loaded: Loaded, options: argparse.Namespace) -> str:
    """Every variant on one load, as a table."""
    rows, code = read_rows(loaded.trace, CONTEXT_TOKENS), code_version()[:12]
    found = {}
    for variant in chosen(options):
        for seed in range(options.seeds):
            title = variant.name if not seed else f"{variant.name}, seed {seed}"
            path = options.out / f"{name}-{code}-{key(variant, seed, options.slow)}.json"
            found[title] = kept(path, partial(ran, variant, loaded, rows, seed, options.slow))
            note(f"{name} {title}: {line(found[title])}")
    bound = kept(options.out / f"{name}-bound.json", partial(bounded, loaded, rows)) if options.bound else None
    return table(name, found, bound, chosen(options))


def ran(variant: Variant, loaded: Loaded, rows: TraceRows, seed: int, slow: float = 1.0) -> dict[str, Any]:
    """Figures of one run, with its CPU seconds. `slow`: steps take that much longer than the controller believes."""
    started = time.process_time()
    with switched(variant.constants):
        case = case_of(asked_of(variant, loaded), rows, seed)
        if variant.clocks_mhz:
            case = replace(case, model=regridded(case.model, variant.clocks_mhz))
        if variant.one_pool:
            case = replace(case, spec=replace(case.spec, pools=(case.pool("all", SIZES, 0),)))
        planner = variant.plan(case) if variant.plan else None
        setup = joulegate_setup(case, loaded.experiment.gpus or 0, Settings(**variant.settings), planner)
        setup = replace(setup, weighs=variant.weighs, model=slowed(case.model, slow))
        row = figures(case.run(setup), Rates(), None)
    return {"variant": variant.name, "seed": seed, **row, "cpu_s": time.process_time() - started}


@contextmanager
def switched(constants: Mapping[str, Any]) -> Iterator[None]:
    """Constants of the controller's code set otherwise, for this run."""
    before = []
    for place, value in constants.items():
        module, _, name = place.partition(":")
        owner: Any = importlib.import_module(module)
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        before.append((owner, last, getattr(owner, last)))
        setattr(owner, last, value)
    try:
        yield
    finally:
        for owner, last, value in before:
            setattr(owner, last, value)


def bounded(loaded: Loaded, rows: TraceRows) -> dict[str, Any]:
    """The least energy that a clairvoyant could spend, and SinglePool's."""
    case = case_of(loaded.experiment, rows, 0)
    gpus = loaded.experiment.gpus or 0
    found = bounds(case, gpus)
    single = singlepool(case, gpus, lambda text: None)
    return {
        "fluid_kwh": None if found.fluid_j is None else found.fluid_j / J_PER_KWH,
        "integer_kwh": None if found.integer_j is None else found.integer_j / J_PER_KWH,
        "gap": found.gap,
        "singlepool_kwh": single.joules / J_PER_KWH,
    }


def kept(path: Path, make: Any) -> dict[str, Any]:
    """Whole or not at all."""
    if path.exists():
        old: dict[str, Any] = json.loads(path.read_text())
        return old
    made: dict[str, Any] = make()
    write_whole(path, json.dumps(made).encode() + b"\n")
    return made


def key(variant: Variant, seed: int, slow: float = 1.0) -> str:
    asked = (variant.name, variant.asks, sorted(variant.settings.items()), sorted(map(str, variant.constants.items())))
    return hashlib.sha256(repr((asked, seed, slow)).encode()).hexdigest()[:12]


def worst(row: Mapping[str, Any]) -> float:
    """Attainment of the least class that has requests enough to say something."""
    judged = [one["attainment"] for one in row["by_class"].values() if one["requests"] >= JUDGED_FROM]
    return float(min(judged, default=1.0))


def line(row: Mapping[str, Any]) -> str:
    causes = ", ".join(f"{name} {kwh:.2f}" for name, kwh in row["energy_by_cause"].items())
    return (
        f"{row['energy_kwh']:.3f} kWh, worst {worst(row):.2%}, all {row['attainment_all']:.2%}, "
        f"{row['switches_per_hour_per_100_gpus']:.1f} starts ({causes}), {row['cpu_s']:.0f} CPU-s"
    )


def table(name: str, found: Mapping[str, Any], bound: Mapping[str, Any] | None, variants: list[Variant]) -> str:
    notes = {variant.name: variant.note for variant in variants}
    usual = found.get(AS_IS.name)
    lines = [f"# {name}, modelled", "", " | ".join(HEADS), " | ".join("---" for _ in HEADS)]
    for title, row in found.items():
        kwh, least = row["energy_kwh"], bound["integer_kwh"] if bound else None
        cells = [
            title, notes.get(title.split(", seed")[0], ""), f"{kwh:.2f}",
            f"{kwh / usual['energy_kwh']:.3f}" if usual else "", f"{kwh / least:.2f}" if least else "",
            f"{worst(row):.2%}", f"{row['attainment_all']:.2%}", f"{row['switches_per_hour_per_100_gpus']:.1f}",
        ]  # fmt: skip
        lines.append(" | ".join(cells))
    if bound:
        lines += ["", f"Bound {bound['integer_kwh']:.3f} kWh, SinglePool {bound['singlepool_kwh']:.3f} kWh."]
    return "\n".join(lines) + "\n"


def chosen(options: argparse.Namespace) -> list[Variant]:
    """Those asked for, and one of the caller's own."""
    variants = [v for v in VARIANTS if options.only is None or v.name in options.only.split(",")]
    if options.group:
        variants = [v for v in variants if v.group in ("", options.group)]
    if options.set or options.setting or options.ask:
        constants = {place: literal_eval(value) for place, _, value in (one.partition("=") for one in options.set)}
        settings = {place: literal_eval(value) for place, _, value in (one.partition("=") for one in options.setting)}
        own = replace(AS_IS, name=" ".join((*options.set, *options.setting, *options.ask)), constants=constants)
        variants = [replace(own, settings=settings, asks=tuple(options.ask))]
    return variants


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What each cause of the distance from the bound is worth")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("build/ablate"))
    parser.add_argument("--loads", default="conv-20,code-20", help="names, separated by commas (bench/ablate_cases.py)")
    parser.add_argument("--group", choices=("cause", "part", "level"))
    parser.add_argument("--only", help="names of variants, separated by commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--bound", action="store_true", help="the bound and SinglePool too: a minute more")
    parser.add_argument("--set", action="append", default=[], help="module:NAME=value, of the controller's code")
    parser.add_argument("--setting", action="append", default=[], help="field=value of the controller's settings")
    parser.add_argument("--ask", action="append", default=[], help="key=value, as of simulate --set")
    parser.add_argument(
        "--slow", type=float, default=1.0, help="times as long as the controller's model says a step takes"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
