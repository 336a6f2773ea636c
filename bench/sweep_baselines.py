"""What the sources of the baselines leave open, swept on short slices of both public traces.

    python -m bench.sweep_baselines [--out build/sweep_baselines.jsonl] [--table]

A line per run, so that a sweep which was broken off goes on where it was. `--table` prints that of docs/baselines.md:
per baseline and trace the settings with the least energy that keep 99 % in every class; where none does, those that
keep most. A baseline is judged on a trace with the settings of the other one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from core.service import CLASSES
from profiles.engine_model import load_engine_model
from simulator.baselines import autoscale, dynamollm, ecofaas, pegasus, retail, throttllem, voltana
from simulator.baselines.clocks import Ladder
from simulator.case import Case, make_case, shipped_service
from simulator.policies import fewest
from simulator.run import Ran
from simulator.tally import JUDGED_FROM, PROMISED
from simulator.trace_formats import Excluded, open_trace
from simulator.trace_scale import scaled, sliced

DATA = Path(__file__).parent.parent.parent / "shared/data/azure_llm_2023"
TRACES = {"conversation": "AzureLLMInferenceTrace_conv.csv", "code": "AzureLLMInferenceTrace_code.csv"}
SERVICE, SCALE, START_S, LENGTH_S, SEED = "llama-2-70b", 7, 600.0, 360.0, 1
Settings = dict[str, Any]
Run = Callable[[Case, int, Settings], Ran]

LADDERS = [
    {"tp": tp, "share": share, "lowest_mhz": lowest}
    for tp, share, lowest in product((8, 4), (1.0, 0.8), (1000, 1200, 1400))
]


def quiet(text: str) -> None:
    return


def grid(**values: tuple[Any, ...]) -> list[Settings]:
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def _pools(which: int) -> tuple[str, ...]:
    return {1: ("LL",), 2: ("ML", "LL"), 3: ("SL", "ML", "LL"), 9: CLASSES}[which]


def _clocked(module: Any) -> Run:
    def run(case: Case, gpus: int, settings: Settings) -> Ran:
        rest = {name: value for name, value in settings.items() if name not in LADDERS[0]}
        ladder = Ladder(**{name: settings[name] for name in LADDERS[0]})
        return module.run(case, gpus, quiet, module.Options(ladder=ladder, **rest))  # type: ignore[no-any-return]

    return run


def _throttllem(case: Case, gpus: int, settings: Settings) -> Ran:
    ladder = Ladder(settings["tp"], 1.0, settings["lowest_mhz"])
    scaling = autoscale.Options(settings["tp"], settings["target"])
    return throttllem.run(case, gpus, quiet, throttllem.Options(ladder, scaling))


def _autoscale(case: Case, gpus: int, settings: Settings) -> Ran:
    return autoscale.run(case, gpus, quiet, autoscale.Options(**settings))


def _ecofaas(case: Case, gpus: int, settings: Settings) -> Ran:
    return ecofaas.run(case, gpus, quiet, ecofaas.Options(**settings | {"clocks_mhz": tuple(settings["clocks_mhz"])}))


def _dynamo(run: Callable[..., Ran]) -> Run:
    def one(case: Case, gpus: int, settings: Settings) -> Ran:
        return run(case, gpus, quiet, dynamollm.Options(**settings | {"pools": _pools(settings["pools"])}))

    return one


SIZED = grid(pools=(1, 9), peak_s=(5.0, 60.0), headroom=(0.6, 1.2))
CLOCKED = grid(pools=(1, 2), peak_s=(5.0,), headroom=(0.6, 1.2), clock_headroom=(1.2, 2.0), steps_mhz=(1200, 1980))
SWEEPS: dict[str, tuple[Run, list[Settings]]] = {
    "scaleinst": (_dynamo(dynamollm.scaleinst), SIZED),
    "scaleshard": (_dynamo(dynamollm.scaleshard), SIZED),
    "scalefreq": (_dynamo(dynamollm.scalefreq), CLOCKED),
    "dynamollm": (_dynamo(dynamollm.run), CLOCKED),
    "autoscale": (_autoscale, grid(tp=(8, 4), target=(0.2, 0.3, 0.4, 0.6), hold_s=(600.0,))),
    "pegasus": (_clocked(pegasus), [one for one in LADDERS if one["lowest_mhz"] != 1200]),
    "retail": (_clocked(retail), LADDERS),
    "throttllem": (_throttllem, grid(tp=(8, 4), lowest_mhz=(1000, 1200, 1400), target=(0.2, 0.3, 0.5))),
    "voltana": (_clocked(voltana), LADDERS),
    "ecofaas": (
        _ecofaas,
        grid(tp=(8, 4), share=(1.0, 0.8), spare=(1,), clocks_mhz=((1200, 1980), (1400, 1980), (1600, 1980))),
    ),
}


def case_of(trace: str) -> Case:
    path = DATA / TRACES[trace]
    whole = list(
        scaled(lambda: sliced(open_trace(path, Excluded(), 16_384), START_S, LENGTH_S), SCALE, SEED)
    )  # fmt: skip
    return make_case(shipped_service(SERVICE), load_engine_model(SERVICE), lambda: iter(whole), seed=SEED)


def one_run(job: tuple[str, str, Settings, int]) -> dict[str, Any]:
    trace, policy, settings, instances = job
    case = replace(case_of(trace), static_instances=instances)
    ran = SWEEPS[policy][0](case, instances * case.tp, settings)
    judged = [one.attained / one.arrived for one in ran.tally.classes if one.arrived >= JUDGED_FROM]
    return {
        "trace": trace, "policy": policy, "settings": settings, "kwh": round(ran.joules / 3.6e6, 4),
        "least": round(min(judged), 5), "all": round(ran.tally.attainment_all or 0.0, 5), "gpus": ran.setup.gpus,
        "starts": ran.switches.starts, "clock_writes": ran.switches.clock_writes,
    }  # fmt: skip


def best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Least energy among those that keep the promise; else the one that keeps most."""
    keep = [row for row in rows if row["least"] >= PROMISED]
    return min(keep, key=lambda row: row["kwh"]) if keep else max(rows, key=lambda row: row["least"])


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| baseline | swept on | settings | kWh there | least class there | of runs, kept 99 % |"
    yield "|---|---|---|---|---|---|"
    for policy in SWEEPS:
        for trace in TRACES:
            mine = [row for row in rows if row["policy"] == policy and row["trace"] == trace]
            if not mine:
                continue
            found = best(mine)
            told = ", ".join(f"{name} {_text(value)}" for name, value in found["settings"].items())
            kept = sum(row["least"] >= PROMISED for row in mine)
            yield (
                f"| {policy} | {trace} | {told} | {found['kwh']:.2f} | {100 * found['least']:.2f} % "
                f"| {kept} of {len(mine)} |"
            )


def _text(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, list | tuple) else f"{value}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("build/sweep_baselines.jsonl"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--policies", default=",".join(SWEEPS))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    rows = [json.loads(line) for line in lines]
    if options.table:
        print("\n".join(table(rows)))
        return
    done = {_key(row["trace"], row["policy"], row["settings"]) for row in rows}
    jobs = []
    for trace in TRACES:
        instances = fewest(case_of(trace), lambda text: None).instances
        print(f"{trace}: {instances} instances of singlepool", file=sys.stderr)
        jobs += [
            (trace, policy, settings, instances)
            for policy in options.policies.split(",") for settings in SWEEPS[policy][1]
            if _key(trace, policy, settings) not in done
        ]  # fmt: skip
    with ProcessPoolExecutor(2) as workers, options.out.open("a") as out:
        for row in workers.map(one_run, jobs):
            out.write(json.dumps(row) + "\n")
            out.flush()


def _key(trace: str, policy: str, settings: Settings) -> str:
    return json.dumps([trace, policy, settings], sort_keys=True)


if __name__ == "__main__":
    main()
