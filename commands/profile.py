"""`joulegate profile`: measured operating points and what they are good for. Owns only the list of its commands."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="Profiles: what each configuration costs and how fast it is.")
