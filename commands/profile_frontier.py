"""`joulegate profile frontier`: the time-energy frontier of a profile. Owns the printing; the set is
profiles/frontier.py's."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.output import AsJson, fail, say
from commands.profile_shared import (
    ProfilePath,
    TbtMs,
    TtftMs,
    about,
    cell,
    console,
    known,
    limits,
    opened,
    point_object,
)

if TYPE_CHECKING:
    from profiles.frontier import Frontier
    from profiles.profile import Profile
    from profiles.query import Limits


def frontier(
    path: ProfilePath,
    classes: Annotated[
        list[str] | None, typer.Option("--class", help="Only this class or mix, e.g. LL; may be repeated.")
    ] = None,
    ttft_ms: TtftMs = None,
    tbt_ms: TbtMs = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="GPUs that one instance may have; default: any.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write plots (PNG) into this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which operating points no other beats in TTFT p99, TBT p99, joules per output token and GPUs.

    For each class: those points, the one with the least energy under the deadlines, what one more GPU saves, and what
    the next looser deadline saves. Rows are taken as measured; each says whether it was measured, emulated or derived.

    Exit status 1 if deadlines were given and no class can keep them.

    Example: joulegate profile frontier h100.profile.csv --class LL --tbt-ms 50 --out build/plots
    """
    from profiles.frontier import frontiers

    if gpus is not None and gpus < 1:
        fail("--gpus must be at least 1", 2)
    profile = opened(path)
    found = frontiers(profile.points)
    for name in classes or ():
        if name not in found:
            fail(f"{path}: no class {name!r}; it has {', '.join(found)}", 2)
    shown = {name: found[name] for name in dict.fromkeys(classes or found)}
    asked = {name: limits(name, ttft_ms, tbt_ms) for name in shown}
    answer: dict[str, Any] = {"profile": about(profile)}
    answer["classes"] = {name: _object(front, asked[name], gpus) for name, front in shown.items()}
    if out is not None:
        answer["files"] = [str(file) for file in _draw(profile, shown, out)]
    if as_json:
        say(json.dumps(answer))
    else:
        _show(profile, shown, asked, gpus)
        for file in answer.get("files", ()):
            say(f"wrote {file}")
    explicit = any(value is not None for value in (ttft_ms, tbt_ms, gpus))
    if explicit and not any(one["cheapest"] for one in answer["classes"].values()):
        fail("no point keeps the deadlines: " + "; ".join(one["reason"] for one in answer["classes"].values()), 1)


def _object(front: Frontier, asked: Limits, gpus: int | None) -> dict[str, Any]:
    from profiles.query import NotFeasible

    allowed = float("inf") if gpus is None else gpus
    best = front.cheapest(asked, allowed)
    looser = {deadline: front.looser(deadline, asked, allowed) for deadline in ("ttft", "tbt")}
    return {
        "limits": {"ttft_ms": known(asked.ttft_s * 1e3), "tbt_ms": known(asked.tbt_s * 1e3), "gpus": gpus},
        "points": [point_object(point) for point in front.points],
        "chosen_from": front.of,
        "cheapest": None if isinstance(best, NotFeasible) else point_object(best),
        "reason": best.reason if isinstance(best, NotFeasible) else "",
        "by_gpus": [
            {"gpus": step.gpus, "saved_j_per_gpu": step.j_per_gpu, **point_object(step.point)}
            for step in front.by_gpus(asked)
        ],
        "looser": {
            deadline: None
            if one is None
            else {"extra_ms": one.extra_s * 1e3, "saved_j": one.saved_j, "saved_j_per_ms": one.j_per_ms}
            for deadline, one in looser.items()
        },
    }


def _draw(profile: Profile, shown: dict[str, Frontier], out: Path) -> list[Path]:
    from profiles.against_model import against_model, engine_model_of
    from profiles.plots import draw_against_model, draw_all
    from profiles.query import build_index

    try:
        files = list(draw_all(build_index(profile), shown, out))
        model = engine_model_of(profile)
        if model is not None:
            title = f"{profile.model} on {profile.gpu}: profile against its engine model"
            files += draw_against_model(against_model(profile, model), title, out / "against-model.png")
    except OSError as error:
        fail(f"--out {out}: {error.strerror or error}", 2)
    return files


def _show(profile: Profile, shown: dict[str, Frontier], asked: dict[str, Limits], gpus: int | None) -> None:
    from rich.table import Table

    from profiles.plots import units
    from profiles.query import NotFeasible

    watt, joule = units(profile)
    out = console()
    of = profile.provenance
    out.print(f"[bold]{profile.model} on {profile.gpu}[/bold], {of.engine} {of.engine_version}, {of.made_on}")
    for name, front in shown.items():
        want = asked[name]
        best = front.cheapest(want, float("inf") if gpus is None else gpus)
        table = Table(title=f"{name}: {len(front.points)} of {front.of} points", title_justify="left")
        for column in ("", "TP", "MHz", "rps", "TTFT p99 ms", "TBT p99 ms", f"{joule}/token", watt):
            table.add_column(column, justify="right")
        table.add_column("origin")
        for point in front.points:
            table.add_row(
                "*" if point == best else "",
                str(point.tp),
                str(point.clock_mhz),
                cell(point.offered_rps),
                cell(point.ttft_p99_s * 1e3),
                cell(point.tbt_p99_s * 1e3),
                cell(point.j_per_output_token),
                cell(point.watts),
                point.origin,
            )
        out.print(table)
        told = f"TTFT p99 {cell(want.ttft_s * 1e3)} ms and TBT p99 {cell(want.tbt_s * 1e3)} ms"
        if isinstance(best, NotFeasible):
            out.print(f"Nothing keeps {told}: {best.reason}\n")
            continue
        out.print(f"* least energy within {told}")
        _marginal(out, front, want, gpus, joule)


def _marginal(out: Any, front: Frontier, want: Limits, gpus: int | None, joule: str) -> None:
    steps = front.by_gpus(want)
    for fewer, more in pairwise(steps):
        out.print(f"  {fewer.gpus} -> {more.gpus} GPUs saves {more.j_per_gpu:.3g} {joule}/token for each one more")
    for deadline in ("ttft", "tbt"):
        one = front.looser(deadline, want, float("inf") if gpus is None else gpus)
        if one is not None:
            told = f"{one.extra_s * 1e3:.3g} ms more saves {one.saved_j:.3g} {joule}/token"
            out.print(f"  {deadline.upper()} p99: {told} ({one.j_per_ms:.2g} a millisecond)")
    out.print()
