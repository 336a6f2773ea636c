"""`joulegate profile`: measured operating points and what they are good for. Owns only the list of its commands."""

from __future__ import annotations

import typer

from commands.profile_check import check
from commands.profile_fit import fit
from commands.profile_frontier import frontier
from commands.profile_import import import_
from commands.profile_measure import measure
from commands.profile_recommend import recommend

app = typer.Typer(no_args_is_help=True, help="Profiles: what each configuration costs and how fast it is.")
app.command("check")(check)
app.command("measure")(measure)
app.command("frontier")(frontier)
app.command("recommend")(recommend)
app.command("import")(import_)
app.command("fit")(fit)
