"""`joulegate profile measure`: sweeps one service's instance and writes its profile. Owns options, progress and report;
what is measured when, and how, is pools/measure*.py's."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.output import AsJson, fail, say

if TYPE_CHECKING:
    from pools.measure import Lengths, Probe, Rule, Target
    from pools.measure_sweep import Space, Sweep
    from pools.measure_verify import Verdict

# The lengths of the paper's runs (H100, Llama-2-70B).
INPUTS = {"S": 467, "M": 1010, "L": 4085}
OUTPUTS = {"S": 96, "M": 256, "L": 600}
VERIFY_POINTS = 300


@dataclass(frozen=True, slots=True)
class Options:
    service: str
    url: str
    model: str
    gpu: str
    pid: int
    gpu_uuids: str
    tp: str
    clocks: str
    classes: str
    budget_hours: float
    tolerance: float
    window_s: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    out: Path | None
    seed: int
    resume: bool
    verify: bool
    as_json: bool


def measure(
    service: Annotated[str, typer.Option(help="Service: the engine model that is simulated, or names the profile.")],
    url: Annotated[str, typer.Option(help="Live: the server of one instance, http://127.0.0.1:PORT.")] = "",
    simulated: Annotated[bool, typer.Option("--simulated", help="Simulated time; the default without --url.")] = False,
    model: Annotated[str, typer.Option(help="Live: the model's name there; default: the first it serves.")] = "",
    gpu: Annotated[str, typer.Option(help="Simulated: GPU of the engine model. Emulated: what to call it.")] = "h100",
    pid: Annotated[int, typer.Option(help="Live on a CPU: the server's process; energy is CPU-seconds.")] = 0,
    gpu_uuids: Annotated[str, typer.Option(help="Live on GPUs: those of the instance, GPU-...,GPU-...")] = "",
    tp: Annotated[str, typer.Option(help="TPs, 2,4,8; default: the model's, or the live instance's.")] = "",
    clocks: Annotated[str, typer.Option(help="MHz; default: the model's. Live: untouched unless given.")] = "",
    classes: Annotated[str, typer.Option(help="SS,LL or NAME:INPUT:OUTPUT in tokens, or all nine.")] = "all",
    budget_hours: Annotated[float, typer.Option(help="Hours of the instance under test.")] = 4.0,
    tolerance: Annotated[float, typer.Option(help="Relative error that interpolation may leave.")] = 0.05,
    window: Annotated[float, typer.Option(help="Least seconds of a window.")] = 30.0,
    max_num_seqs: Annotated[int, typer.Option(help="Simulated: sequences that run at once.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Simulated: tokens of a step.")] = 2048,
    max_model_len: Annotated[int, typer.Option(help="Simulated: context in tokens.")] = 8192,
    out: Annotated[Path | None, typer.Option(help="NAME.profile.csv; default: build/GPU-SERVICE.profile.csv.")] = None,
    seed: Annotated[int, typer.Option(help="Of the arrivals.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a sweep that was interrupted.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Simulated: compare with dense points left out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Sweep one instance over TP x clock x class x load and write its profile: points only where they matter.

    Nothing here changes a GPU. Interrupt it at any time: --resume repeats no window.
    """
    if url and (simulated or verify):
        fail("--url is a live instance; --simulated and --verify are for simulated time", 2)
    # Written so that NaN fails too.
    if not (0 < budget_hours < math.inf and 0 < tolerance < math.inf and 1 <= window < math.inf):
        fail("--budget-hours and --tolerance must be more than 0, --window at least 1 s, and all of them finite", 2)
    if min(max_num_seqs, max_num_batched_tokens, max_model_len) < 1:
        fail("--max-num-seqs, --max-num-batched-tokens and --max-model-len must be at least 1", 2)
    if url and not re.fullmatch(r"https?://[^/\s]+\S*", url):
        fail(f"--url must be http://HOST:PORT, not {url!r}", 2)
    options = Options(
        service, url, model, gpu, pid, gpu_uuids, tp, clocks, classes, budget_hours, tolerance, window, max_num_seqs,
        max_num_batched_tokens, max_model_len, out, seed, resume, verify, as_json,
    )  # fmt: skip
    from core.errors import JoulegateError
    from profiles.profile_file import ProfileError

    try:
        answer = asyncio.run(_measure(options))
    except ValueError as error:
        fail(str(error), 2)
    except NothingMeasured as error:
        fail(str(error), 1)
    except (JoulegateError, ProfileError, OSError) as error:
        fail(f"{error}\nWhat was measured is kept: go on with --resume.", 1)
    except KeyboardInterrupt:
        fail("interrupted; go on with --resume", 1)
    say(json.dumps(answer) if as_json else as_text(answer))


async def _measure(options: Options) -> dict[str, Any]:
    from core.clock import SystemClock
    from pools.measure import Rule
    from pools.measure_journal import SUFFIX, Journal
    from pools.measure_profile import dense_grid, rows_of
    from pools.measure_run import identity, run_sweep
    from profiles.profile import Profile
    from profiles.profile_file import SUFFIX as PROFILE_SUFFIX
    from profiles.profile_file import save_profile

    clock = SystemClock()
    out = options.out or Path("build") / f"{options.gpu}-{options.service}{PROFILE_SUFFIX}"
    writable(out)
    journal_path = out.with_name(out.name.removesuffix(PROFILE_SUFFIX) + SUFFIX)
    rule = Rule(window_s=options.window_s, window_max_s=max(options.window_s, Rule().window_max_s))
    async with AsyncExitStack() as stack:
        target, space = await (_live(options, stack) if options.url else _simulated(options))
        with Journal(journal_path, identity(space, rule, target), options.resume) as journal, _Progress(space) as bar:
            sweep = await run_sweep(space, target, rule, journal, clock, bar.probe)
        rows, left_out = rows_of(sweep)
        if not rows:
            raise NothingMeasured(f"no window fitted into --budget-hours {options.budget_hours:g}: give it more")
        made_on = datetime.fromtimestamp(clock.wall_s(), UTC).date().isoformat()
        provenance = _provenance(target, rule, sweep, made_on)
        profile = Profile(target.about.gpu, target.about.model, provenance, rows)
        save_profile(profile, out)
        verdict = None
        if options.verify:
            from pools.measure_verify import verify

            with _Progress(space) as bar:
                verdict = await verify(sweep, profile, target, rule, VERIFY_POINTS, bar.check)
    if not options.url:
        journal_path.unlink()  # the same command makes the same windows again
    return _answer(sweep, len(rows), left_out, asdict(dense_grid(sweep)), out, verdict)


async def _simulated(options: Options) -> tuple[Target, Space]:
    from pools.measure_sweep import Space
    from profiles.engine_model import load_engine_model
    from simulator.engine import EngineLimits
    from simulator.measured import SimulatedTarget

    engine = load_engine_model(options.service, options.gpu)
    limits = EngineLimits(options.max_num_seqs, options.max_model_len, options.max_num_batched_tokens)
    grid = engine.clocks_mhz
    clocks = numbers(options.clocks, "--clocks") or tuple(grid)
    if clocks[0] < grid[0] or clocks[-1] > grid[-1]:
        # Outside, the model answers as its nearest clock does: a row of it would state what no source says.
        raise ValueError(f"--clocks must be {grid[0]} to {grid[-1]} MHz, the clocks of the engine model")
    tps = numbers(options.tp, "--tp") or tuple(sorted(engine.points))
    for tp in tps:
        engine.point(tp)
    space = Space(
        tps=tps,
        clocks_mhz=clocks,
        classes=classes_of(options.classes),
        tolerance=options.tolerance,
        budget_s=options.budget_hours * 3600,
        setup_s=engine.start_s,
        seed=options.seed,
    )
    return SimulatedTarget(engine, limits), space


async def _live(options: Options, stack: AsyncExitStack) -> tuple[Target, Space]:
    from core.clock import SystemClock
    from pools.measure_live import LiveOptions, open_target
    from pools.measure_sweep import Space

    tps = numbers(options.tp, "--tp")
    uuids = tuple(word for word in options.gpu_uuids.split(",") if word)
    live = LiveOptions(options.url, options.model, tps[0] if tps else 1, options.gpu, options.pid, uuids)
    if options.pid:
        live = replace(live, gpu="cpu")
    target, instance = await stack.enter_async_context(open_target(live, SystemClock()))
    if any(tp != instance.tp for tp in tps):
        raise ValueError(f"the instance at {options.url} runs at TP{instance.tp}; --tp can only say so")
    clocks = numbers(options.clocks, "--clocks") or (instance.clock_mhz,)
    for clock_mhz in clocks:  # the last one stays set until the first probe
        await target.configure(instance.tp, clock_mhz)
    space = Space(
        tps=(instance.tp,),
        clocks_mhz=clocks,
        classes=classes_of(options.classes),
        tolerance=options.tolerance,
        budget_s=options.budget_hours * 3600,
        seed=options.seed,
    )
    return target, space


class NothingMeasured(Exception):
    """A sweep that took no window: there is no profile to write."""


def writable(out: Path) -> None:
    """Before the first window, not after hours of them. ValueError if a profile cannot be written there."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out}: {error.strerror or error}") from None
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise ValueError(f"--out {out}: {'is a folder' if out.is_dir() else 'its folder cannot be written to'}")


def numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        found = sorted({int(word) for word in text.split(",") if word.strip()})
    except ValueError:
        raise ValueError(f"{option} takes whole numbers with commas, not {text!r}") from None
    if any(number <= 0 for number in found):
        raise ValueError(f"{option} takes numbers above 0, not {text!r}")
    return tuple(found)


def classes_of(text: str) -> tuple[Lengths, ...]:
    """`all`, class names, or NAME:INPUT:OUTPUT."""
    from pools.measure import Lengths
    from profiles.profile_checks import LOAD

    words = [i + o for i in INPUTS for o in OUTPUTS] if text == "all" else [w for w in text.split(",") if w]
    found: list[Lengths] = []
    for word in words:
        name, *lengths = word.split(":")
        if not lengths and len(name) == 2 and name[0] in INPUTS and name[1] in OUTPUTS:
            found.append(Lengths(name, INPUTS[name[0]], OUTPUTS[name[1]]))
        elif LOAD.fullmatch(name) and len(lengths) == 2 and all(re.fullmatch("[0-9]{1,9}", n) for n in lengths):
            if min(int(n) for n in lengths) < 2:
                raise ValueError(f"--classes takes lengths of at least 2 tokens, not {word!r}")
            found.append(Lengths(name, int(lengths[0]), int(lengths[1])))
        else:
            raise ValueError(f"--classes takes SS, SM ... LL, NAME:INPUT:OUTPUT or all, not {word!r}")
    if not found or len({one.name for one in found}) < len(found):
        raise ValueError("--classes names no class, or one twice")
    return tuple(found)


def _provenance(target: Target, rule: Rule, sweep: Sweep, made_on: str) -> Any:
    from profiles.profile import Provenance

    about = target.about
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--json")]
    return Provenance(
        origin=about.origin,
        made_on=made_on,
        command=" ".join(["joulegate", *words]),
        energy_counter=about.energy_counter,
        steady_state=rule.sentence,
        engine=about.engine,
        engine_version=about.engine_version,
        driver=about.driver,
        source=about.source,
        notes=(
            f"{sweep.probes} windows, {sweep.spent_s / 3600:.2f} h of the instance, {sweep.gpu_s / 3600:.2f} GPU-h; "
            f"rows of origin derived come from the curve at the highest clock or lie below the lowest load"
        ),
        limits=about.limits,
    )


def _answer(
    sweep: Sweep, rows: int, left_out: int, dense: dict[str, Any], out: Path, verdict: Verdict | None
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "points": sweep.probes,
        "rows": rows,
        "left_out": left_out,
        "instance_hours": round(sweep.spent_s / 3600, 3),
        "gpu_hours": round(sweep.gpu_s / 3600, 3),
        "dense_points": dense["points"],
        "dense_instance_hours": round(dense["instance_s"] / 3600, 3),
        "dense_gpu_hours": round(dense["gpu_s"] / 3600, 3),
        "saved_share": round(1 - sweep.gpu_s / dense["gpu_s"], 3) if dense["gpu_s"] else 0.0,
        "clock_checks": len(sweep.checks),
        "clock_checks_failed": sum(check.error > sweep.space.tolerance for check in sweep.checks),
        "cut_short": sweep.cut_short,
        "out": str(out),
    }
    if verdict is not None:
        answer["max_error"] = verdict.largest
        answer["verify"] = asdict(verdict)
    return answer


def as_text(answer: dict[str, Any]) -> str:
    lines = [
        f"{answer['points']} windows in {answer['instance_hours']:.2f} h of the instance "
        f"({answer['gpu_hours']:.2f} GPU-hours); {answer['rows']} rows in {answer['out']}",
        f"a dense grid: {answer['dense_points']} windows, {answer['dense_instance_hours']:.1f} h "
        f"({answer['dense_gpu_hours']:.1f} GPU-hours); saved {answer['saved_share']:.0%}",
    ]
    if "verify" in answer:
        found = answer["verify"]
        told = "; ".join(f"{q} {found['median'][q]:.1%} / {found['p90'][q]:.1%} / {found['largest'][q]:.0%}"
                         for q in found["p90"])  # fmt: skip
        lines.append(f"error at {found['points']} points left out, median / p90 / largest: {told}")
    if answer["cut_short"]:
        lines.append(f"the budget ended before {len(answer['cut_short'])} cells had all their loads")
    return "\n".join(lines)


class _Progress:
    """A bar with the time left, on stderr: the budget is the whole, so it is never later than told."""

    def __init__(self, space: Space) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=space.budget_s)

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @property
    def probe(self) -> Callable[[Sweep, Probe], None]:
        def told(sweep: Sweep, probe: Probe) -> None:
            what = f"{probe.lengths.name} TP{probe.tp} {probe.clock_mhz} MHz {probe.rps:g} rps"
            self._bar.update(self._task, completed=sweep.spent_s, description=what)

        return told

    def check(self, done: int, of: int) -> None:
        self._bar.update(self._task, completed=done, total=of, description="points left out")
