"""`joulegate transitions`: what starts, stops, sleep and re-shards have cost here, as recorded."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.output import AsJson, fail, say

if TYPE_CHECKING:
    from pools.transitions import Cost

HEAD = ("service", "kind", "TP", "count", "seconds", "joules", "quality", "CPU-s")


def transitions(
    config: Annotated[Path, typer.Option(help="Names the file of transitions.")] = Path("configs/dev.yaml"),
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for serve.")] = None,
    as_json: AsJson = False,
) -> None:
    """Seconds and joules of every kind of transition, means of the newest 20: the plan's switching costs.

    CPU-s are processor seconds of an instance's processes, a stand-in for joules where no GPU is (vLLM on a CPU)."""
    from core.clock import SystemClock
    from gateway.config_file import ConfigError, load_config
    from pools.transitions import Transitions

    try:
        path = load_config(config, dict(os.environ), overrides or []).controller.transitions
    except ConfigError as error:
        fail("\n".join(str(problem) for problem in error.errors), 2)
    if path is None:
        fail("controller.transitions is null: nothing is kept", 2)
    costs = Transitions(SystemClock(), Path(path)).costs()
    if as_json:
        say(json.dumps({"file": path, "transitions": [row(cost) for cost in costs]}))
    elif costs:
        say(table(costs))
    else:
        fail(f"nothing is recorded in {path} yet", 1)


def row(cost: Cost) -> dict[str, Any]:
    """The keys of /admin/transitions."""
    return {
        "service": cost.kind.service, "kind": cost.kind.kind, "tp": cost.kind.tp, "from_tp": cost.kind.from_tp,
        "count": cost.count, "seconds": round(cost.seconds, 3), "quality": cost.quality,
        "joules": None if cost.joules is None else round(cost.joules, 1),
        "cpu_s": None if cost.cpu_s is None else round(cost.cpu_s, 2),
    }  # fmt: skip


def table(costs: Sequence[Cost]) -> str:
    """Markdown."""
    lines = [HEAD, ("---",) * len(HEAD)]
    for one in map(row, costs):
        tp = f"{one['from_tp']} to {one['tp']}" if one["from_tp"] else str(one["tp"])
        quality = one["quality"] if one["joules"] is not None else "not known"
        shown = ["" if one[name] is None else f"{one[name]:g}" for name in ("seconds", "joules", "cpu_s")]
        lines.append((one["service"], one["kind"], tp, str(one["count"]), shown[0], shown[1], quality, shown[2]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
