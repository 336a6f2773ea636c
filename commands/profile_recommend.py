"""`joulegate profile recommend`: the least-energy way to serve a load. Owns the printing; the choice is
profiles/recommend.py's."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.output import AsJson, fail, say
from commands.profile_shared import (
    QUALITY,
    IdleW,
    ProfilePath,
    TbtMs,
    TtftMs,
    about,
    cell,
    console,
    known,
    limits,
    opened,
)

if TYPE_CHECKING:
    from profiles.profile import Profile
    from profiles.query import Limits
    from profiles.recommend import Choice, Recommendation


def recommend(
    path: ProfilePath,
    classes: Annotated[
        list[str],
        typer.Option("--class", metavar="CLASS[=SHARE]", help="What is served, e.g. LL; for a mix SS=0.7 and LL=0.3."),
    ],
    rps: Annotated[float, typer.Option("--rps", help="Requests/s of all classes together.")],
    ttft_ms: TtftMs = None,
    tbt_ms: TbtMs = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="GPUs there are; default: any number.")] = None,
    idle_w: IdleW = None,
    as_json: AsJson = False,
) -> None:
    """Say which TP, clock and number of instances serve a load within its limits for the fewest joules.

    What is computed does not change: same model, same answers. The saving is against the largest TP at its highest
    clock in as many instances as the load needs. The count is the smallest whose share of the load each instance
    holds, or up to three more where that costs less; GPUs that are not used count as given back.

    Exit status 1 if nothing fits, with the reason.

    Example: joulegate profile recommend h100.profile.csv --class LL --rps 3 --tbt-ms 50
    """
    from profiles.query import NotFeasible, build_index
    from profiles.recommend import recommend as best_of

    shares = _shares(classes)
    if not (math.isfinite(rps) and rps > 0):
        fail("--rps must be more than 0", 2)
    if gpus is not None and gpus < 1:
        fail("--gpus must be at least 1", 2)
    if idle_w is not None and not (math.isfinite(idle_w) and idle_w >= 0):
        fail("--idle-w must be at least 0", 2)
    profile = opened(path)
    index = build_index(profile, idle_w)
    for name in shares:
        if name not in index.loads:
            fail(f"{path}: no class {name!r}; it has {', '.join(index.loads)}", 2)
    asked = {name: limits(name, ttft_ms, tbt_ms) for name in shares}
    mix = {name: rps * share for name, share in shares.items()}
    found = best_of(index, mix, asked, math.inf if gpus is None else gpus)
    answer: dict[str, Any] = {"profile": about(profile), "rps": rps, "mix": shares, "limits": _limits(asked)}
    if isinstance(found, NotFeasible):
        if as_json:
            say(json.dumps({**answer, "feasible": False, "reason": found.reason}))
        fail(found.reason, 1)
    if as_json:
        say(json.dumps({**answer, "feasible": True, **_object(found)}))
    else:
        _show(profile, found)


def _shares(classes: list[str]) -> dict[str, float]:
    """{"LL": 1.0}, or the shares of a mix, which are made to add up to 1."""
    shares: dict[str, float] = {}
    for text in classes:
        # A name may hold "=" itself; only a number behind the last one is a share.
        name, equals, number = text.rpartition("=")
        try:
            share = float(number) if equals else 1.0
        except ValueError:
            name, share = text, 1.0
        name = name if equals and name else text
        if not (math.isfinite(share) and share > 0) or name in shares:
            fail(f"--class {text}: must be CLASS or CLASS=SHARE, each class once and its share more than 0", 2)
        shares[name] = share
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}


def _limits(asked: dict[str, Limits]) -> dict[str, Any]:
    return {n: {"ttft_ms": known(one.ttft_s * 1e3), "tbt_ms": known(one.tbt_s * 1e3)} for n, one in asked.items()}


def _choice(one: Choice) -> dict[str, Any]:
    each = one.each
    return {
        "tp": one.tp,
        "clock_mhz": one.clock_mhz,
        "instances": one.count,
        "gpus": one.gpus,
        "watts": one.watts,
        "j_per_request": one.watts / (each.offered_rps * one.count),
        "j_per_output_token": known(each.j_per_output_token),
        "utilisation": one.utilisation,
        "ttft_p99_ms": known(each.ttft_p99_s * 1e3),
        "tbt_p99_ms": known(each.tbt_p99_s * 1e3),
        "origin": each.origin,
        "quality": QUALITY[each.origin],
    }


def _object(found: Recommendation) -> dict[str, Any]:
    return {
        "best": _choice(found.best),
        "max_performance": None if found.fastest is None else _choice(found.fastest),
        "no_max_performance": found.no_fastest,
        "saving": found.saving,
        "one_more_instance": None if found.spread is None else _choice(found.spread),
        "alternatives": [_choice(one) for one in found.alternatives],
        "rejected": [
            {"tp": tp, "clock_mhz": clock_mhz, "reason": reason} for (tp, clock_mhz), reason in found.rejected.items()
        ],
    }


def _show(profile: Profile, found: Recommendation) -> None:
    from rich.table import Table

    from profiles.plots import units

    watt, joule = units(profile)
    best, out = found.best, console()
    table = Table(title=f"{found.load} at {found.rps:g} rps, {profile.model} on {profile.gpu}", title_justify="left")
    for column in ("", "instances", "TP", "MHz", "GPUs", watt, f"{joule}/request", "load", "TTFT p99 ms", "TBT p99 ms"):
        table.add_column(column, justify="right")
    table.add_column("origin")
    rows = [("best", best), *((f"{n}.", one) for n, one in enumerate(found.alternatives, start=2))]
    if found.fastest is not None:
        rows.append(("max perf.", found.fastest))
    for name, one in rows:
        table.add_row(
            name,
            *(str(one.count), str(one.tp), str(one.clock_mhz), str(one.gpus), cell(one.watts)),
            cell(one.watts / (one.each.offered_rps * one.count)),
            f"{one.utilisation:.0%}",
            *(cell(one.each.ttft_p99_s * 1e3), cell(one.each.tbt_p99_s * 1e3)),
            one.each.origin,
        )
    out.print(table)
    said = f"Run {best.count} x TP{best.tp} at {best.clock_mhz} MHz ({best.gpus} GPUs, {cell(best.watts)} {watt})."
    if found.fastest is not None and found.saving is not None:
        most = found.fastest
        said += (
            f" That is {found.saving:.0%} less energy than {most.count} x TP{most.tp} at {most.clock_mhz} MHz, "
            "with the same model and the same answers."
        )
    else:
        said += f" The saving is not known: {found.no_fastest}."
    if found.spread is not None:
        more = found.spread.watts / best.watts - 1
        said += f" Spread over one more instance it would take {abs(more):.0%} {'more' if more >= 0 else 'less'}."
    out.print(said)
    out.print(f"Figures are {best.each.origin}: {QUALITY[best.each.origin]}; load is the share of each's capacity.")
