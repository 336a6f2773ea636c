"""What commands share: how they print, fail and mark progress. stdout carries the answer, stderr everything else."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


def fail(message: str, status: int) -> NoReturn:
    """Ends the command: 1 = the thing asked for failed or does not hold, 2 = wrong usage or bad input."""
    print(message, file=sys.stderr)  # noqa: T201
    raise typer.Exit(status)


def say(text: str) -> None:
    print(text)  # noqa: T201
