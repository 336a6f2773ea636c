"""Policies beside each other: every run of a comparison, in processes of their own, put together in a fixed order.

A run is a policy on an experiment with a seed; the static size, if it is not given, is found first, once per experiment
and seed, and shared. Owns who runs when. What comes out depends on the questions alone, not on processes and speed.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from simulator.case import Case, Facts
from simulator.experiment import Experiment, case_of, static_tp
from simulator.load import TraceRows
from simulator.policies import Say, fewest
from simulator.registry import policy_of
from simulator.report import J_PER_KWH, Rates, figures
from simulator.run import Ran

SIZING, BOUND = "sizing", "bound"
SAMPLE_S = 10.0


@dataclass(frozen=True, slots=True)
class Task:
    """`what`: a policy's name, SIZING or BOUND. `place`: which experiment of the comparison."""

    place: int
    seed: int
    what: str
    experiment: Experiment
    rows: TraceRows
    rates: Rates
    sampled: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one task. `row` are figures, or the bounds in kWh; `requests` counts those of all runs, tried ones too."""

    instances: int = 0  # of the static size
    kept: bool = True
    row: dict[str, Any] = field(default_factory=dict)
    timeline: dict[str, Any] | None = None
    facts: Facts | None = None
    requests: int = 0
    runs: int = 0
    cpu_s: float = 0.0


@dataclass(slots=True)
class Compared:
    """Of one experiment: rows by policy and seed in the order asked; `static` by seed, where it was looked for."""

    experiment: Experiment
    rows: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    timelines: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the first seed
    bounds: dict[int, dict[str, Any]] = field(default_factory=dict)
    static: dict[int, int] = field(default_factory=dict)
    facts: dict[int, Facts] = field(default_factory=dict)
    gpus: dict[int, int] = field(default_factory=dict)
    requests: int = 0
    runs: int = 0
    cpu_s: float = 0.0

    def take(self, task: Task, answer: Answer, *, first: bool) -> None:
        self.requests += answer.requests
        self.runs += answer.runs
        self.cpu_s += answer.cpu_s
        if answer.facts is not None:
            self.facts[task.seed] = answer.facts
        if task.what == SIZING:
            self.static[task.seed] = answer.instances
        elif task.what == BOUND:
            self.bounds[task.seed] = answer.row
        else:
            self.rows.setdefault(task.what, {})[task.seed] = answer.row
            if first and answer.timeline is not None:
                self.timelines[task.what] = answer.timeline


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `bound`: whether the bounds are wanted."""

    names: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    rates: Rates = field(default_factory=Rates)
    jobs: int = 1
    sampled: bool = False
    bound: bool = True


Done = Callable[[int, int, str], None]  # (tasks done, tasks known so far, the one just done)


def compare(
    experiments: Sequence[Experiment], rows: TraceRows, plan: Plan, say: Say, done: Done, kept: Kept | None = None
) -> list[Compared]:
    """ValueError of an experiment that cannot be simulated. What is `kept` is not run again."""
    found = [Compared(experiment) for experiment in experiments]
    each = [(place, seed) for place in range(len(found)) for seed in plan.seeds]
    per_run = len(plan.names) + plan.bound

    def task(place: int, seed: int, what: str, experiment: Experiment) -> Task:
        sampled = plan.sampled and seed == plan.seeds[0]
        return Task(place, seed, what, experiment, rows, plan.rates, sampled)

    sizing = [task(place, seed, SIZING, found[place].experiment) for place, seed in each]
    sizing = [one for one in sizing if _needs_size(one.experiment, plan.names)]
    known = len(sizing) + per_run * len(each)
    with _processes(plan.jobs) as pool:
        for number, (one, answer) in enumerate(_answers(sizing, pool, say, kept), start=1):
            if not answer.kept:
                say(f"seed {one.seed}: not even {answer.instances} static instances keep the promise of every class")
            done(number, known, _title(one))
            here = found[one.place]
            here.take(one, answer, first=False)
        tasks = []
        for place, seed in each:
            here = found[place]
            static = here.static.get(seed, here.experiment.static_instances)
            gpus = here.gpus[seed] = here.experiment.gpus or (static or 0) * static_tp(here.experiment)
            whole = replace(here.experiment, gpus=gpus, static_instances=static)
            tasks += [task(place, seed, what, whole) for what in ((BOUND,) if plan.bound else ()) + plan.names]
        answers: dict[int, Answer] = {}
        order = {id(one): number for number, one in enumerate(tasks)}
        for number, (one, answer) in enumerate(_answers(tasks, pool, say, kept), start=1 + len(sizing)):
            answers[order[id(one)]] = answer
            done(number, known, _title(one))
    for number, one in enumerate(tasks):
        found[one.place].take(one, answers[number], first=one.seed == plan.seeds[0])
    return found


def answer(task: Task, say: Say) -> Answer:
    """Runs in whatever process it is called in."""
    started = os.times()
    counted: list[int] = []
    case = case_of(task.experiment, task.rows, task.seed)
    case = replace(
        case,
        sample_s=SAMPLE_S if task.sampled else None,
        on_ran=lambda ran: counted.append(ran.tally.total_arrived),
    )
    found = _found(task, case, say)
    ended = os.times()
    cpu_s = ended.user + ended.system - started.user - started.system
    return replace(found, facts=case.facts, requests=sum(counted), runs=len(counted), cpu_s=cpu_s)


def _found(task: Task, case: Case, say: Say) -> Answer:
    experiment = task.experiment
    if task.what == SIZING:
        sized = fewest(replace(case, sample_s=None), say)
        return Answer(instances=sized.instances, kept=sized.kept)
    assert experiment.gpus is not None
    if task.what == BOUND:
        from simulator.bounds import bounds

        found = bounds(case, experiment.gpus)
        kwh = {key: None if joules is None else joules / J_PER_KWH for key, joules in (
            ("bound_kwh", found.integer_j), ("fluid_bound_kwh", found.fluid_j),
        )}  # fmt: skip
        return Answer(row={**kwh, "bound_status": found.status, "bound_gap": found.gap})
    ran = policy_of(task.what).run(case, experiment.gpus, say)
    return Answer(row=figures(ran, task.rates, experiment.power_cap_w), timeline=_columns(ran))


def _columns(ran: Ran) -> dict[str, Any] | None:
    return None if ran.timeline is None else ran.timeline.columns()


def _needs_size(experiment: Experiment, names: tuple[str, ...]) -> bool:
    return experiment.static_instances is None and (experiment.gpus is None or "singlepool" in names)


def _title(task: Task) -> str:
    return f"{task.what}, seed {task.seed}"


class Kept(Protocol):
    """Answers of earlier runs."""

    def get(self, task: Task) -> Answer | None: ...

    def put(self, task: Task, answer: Answer) -> None: ...


class _Inline:
    """Stands where processes are not wanted: runs a task when it is asked for."""

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *error: object) -> None:
        return


def _processes(jobs: int) -> ProcessPoolExecutor | _Inline:
    if jobs <= 1:
        return _Inline()
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def _quiet(task: Task) -> Answer:
    return answer(task, lambda text: None)


def _answers(
    tasks: Sequence[Task], pool: ProcessPoolExecutor | _Inline, say: Say, kept: Kept | None
) -> Iterator[tuple[Task, Answer]]:
    """Those that are kept, then the others in the order in which they end."""
    missing = []
    for task in tasks:
        if (known := kept.get(task) if kept else None) is not None:
            yield task, known
        else:
            missing.append(task)
    for task, found in _run(missing, pool, say):
        if kept:
            kept.put(task, found)
        yield task, found


def _run(tasks: Sequence[Task], pool: ProcessPoolExecutor | _Inline, say: Say) -> Iterator[tuple[Task, Answer]]:
    if isinstance(pool, _Inline):
        for task in tasks:
            yield task, answer(task, say)
        return
    waiting: dict[Future[Answer], Task] = {pool.submit(_quiet, task): task for task in tasks}
    try:
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), future.result()
    finally:
        for future in waiting:
            future.cancel()
