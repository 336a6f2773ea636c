"""`joulegate redecide`: the ticks of a run log, decided anew by today's code. Owns the reading and the print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from commands.output import AsJson, fail, say

if TYPE_CHECKING:
    from controller.redecide import Redecided


def redecide(
    log: Annotated[Path, typer.Argument(help="A run log, for example build/run.jsonl.", show_default=False)],
    plans: Annotated[bool, typer.Option(help="Make every plan anew as well, tenths of a second each.")] = True,
    show: Annotated[int, typer.Option(help="Changed decisions to show, 20 at most.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Decide a run log's ticks anew with today's code and tell what would be decided otherwise. Exit status 1: nothing
    in it can be decided anew."""
    from controller.redecide import redecide as again

    try:
        found = again(_rows(log), plans=plans)
    except (OSError, ValueError) as error:
        fail(f"{log}: {error}", 2)
    report = {
        "ticks": found.ticks, "changed": found.changed, "skipped": found.skipped, "plans": found.plans,
        "plans_changed": found.plans_changed, "unreadable": found.unreadable, "differences": found.differences[:show],
    }  # fmt: skip
    say(json.dumps(report) if as_json else _text(found, show))
    if not found.ticks:
        raise typer.Exit(1)


def _rows(log: Path) -> Iterator[dict[str, Any]]:
    with log.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if b'"decision"' not in line:
                continue
            try:
                row = msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"line {number}: {error}") from None
            if isinstance(row, dict) and row.get("kind") == "decision":
                yield row


def _text(found: Redecided, show: int) -> str:
    lines = [
        f"{found.ticks} ticks, {found.changed} decided otherwise; {found.plans} plans, {found.plans_changed} otherwise",
        f"{found.skipped} ticks skipped: nothing is known before the first whole row",
    ]
    if found.unreadable:
        lines.append(f"not all could be read: {found.unreadable}")
    for one in found.differences[:show]:
        lines += [
            f"tick {one['n']} ({one['what']})",
            f"  was {json.dumps(one['was'])}",
            f"  now {json.dumps(one['now'])}",
        ]
    return "\n".join(lines if found.skipped else [lines[0], *lines[2:]])
