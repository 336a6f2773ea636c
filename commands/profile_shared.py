"""What the commands on a profile share: its argument, limits from the command line, and values as JSON."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.output import fail
from core.service import Slo

if TYPE_CHECKING:
    from rich.console import Console

    from profiles.profile import Point, Profile
    from profiles.query import Limits

ProfilePath = Annotated[Path, typer.Argument(metavar="PROFILE", help="NAME.profile.csv", show_default=False)]
TtftMs = Annotated[
    float | None,
    typer.Option("--ttft-ms", help="TTFT p99 limit; default: 250, 400 or 2000 by the class's input size; inf: none."),
]
TbtMs = Annotated[float | None, typer.Option("--tbt-ms", help="TBT p99 limit; default: 100; inf: none.")]
IdleW = Annotated[
    float | None,
    typer.Option(
        "--idle-w", help="Watts of one GPU with a loaded, idle engine; prices loads below the lowest measured one."
    ),
]
QUALITY = {"measured": "measured", "emulated": "modelled", "derived": "modelled"}


def opened(path: Path) -> Profile:
    """The profile; warnings go to stderr, a file that cannot be used ends the command."""
    from profiles.profile_file import ProfileError, read_profile

    try:
        profile, warnings = read_profile(path)
    except ProfileError as error:
        fail(str(error), 2)
    for warning in (*warnings, *(f"{path}: may be stale: {reason}" for reason in aged(profile))):
        print(f"warning: {warning}", file=sys.stderr)  # noqa: T201
    return profile


def aged(profile: Profile) -> tuple[str, ...]:
    """Why the profile may be stale by its date alone: a command does not know what engine and GPU will run."""
    from profiles.query import stale

    return stale(profile, "", "", "", datetime.now(UTC).date())


def limits(load: str, ttft_ms: float | None, tbt_ms: float | None) -> Limits:
    """The default SLO's limits of this load with what was given in their place."""
    from profiles.query import Limits, limits_of

    for name, value in (("--ttft-ms", ttft_ms), ("--tbt-ms", tbt_ms)):
        if value is not None and not value > 0:
            fail(f"{name} must be more than 0", 2)
    default = limits_of(load, Slo())
    return Limits(
        default.ttft_s if ttft_ms is None else ttft_ms / 1e3, default.tbt_s if tbt_ms is None else tbt_ms / 1e3
    )


def console() -> Console:
    """As wide as the terminal; wide enough for the tables where there is none."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=110)


def known(value: float) -> float | None:
    """JSON has no infinity: what is not known is null."""
    return value if math.isfinite(value) else None


def about(profile: Profile) -> dict[str, Any]:
    of = profile.provenance
    return {
        "gpu": profile.gpu,
        "model": profile.model,
        "engine": of.engine,
        "engine_version": of.engine_version,
        "origin": of.origin,
        "energy_counter": of.energy_counter,
        "made_on": of.made_on,
        "stale": list(aged(profile)),
        "points": len(profile.points),
        "origins": {o: n for o in QUALITY if (n := sum(p.origin == o for p in profile.points))},
    }


def point_object(point: Point) -> dict[str, Any]:
    return {
        "tp": point.tp,
        "clock_mhz": point.clock_mhz,
        "offered_rps": point.offered_rps,
        "ttft_p99_ms": known(point.ttft_p99_s * 1e3),
        "tbt_p99_ms": known(point.tbt_p99_s * 1e3),
        "j_per_output_token": known(point.j_per_output_token),
        "watts": known(point.watts),
        "origin": point.origin,
        "quality": QUALITY[point.origin],
    }


def cell(value: float, form: str = ".4g") -> str:
    """A number of a table; "-" where it is not known."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1e4 else format(value, form)
