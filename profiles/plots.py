"""Pictures of a profile as PNG files. Imports matplotlib only when it draws; decides nothing.

Every picture says where its points come from (measured, emulated, derived).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.frontier import Frontier
from profiles.profile import CPU_SECONDS, ORIGINS, UNKNOWN, Point, Profile
from profiles.query import Operating, ProfileIndex

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = {"measured": "o", "emulated": "s", "derived": "x"}
SIZE = (7.0, 4.6)
FILLED = {0.95: "-", 0.5: "--"}


def units(profile: Profile) -> tuple[str, str]:
    """What the profile's watts and joules are called."""
    return ("busy cores", "CPU-s") if profile.provenance.energy_counter == CPU_SECONDS else ("W", "J")


def draw_all(index: ProfileIndex, frontiers: Mapping[str, Frontier], out: Path) -> tuple[Path, ...]:
    """Writes every picture that the profile has points for; answers the files."""
    out.mkdir(parents=True, exist_ok=True)
    written = [
        draw_frontier(index.profile, one, out / f"frontier-{_file(load)}.png")
        for load, one in frontiers.items()
        if one.points
    ]
    for load in frontiers:
        written += draw_clock(index, load, out / f"energy-clock-{_file(load)}.png")
        written += draw_load(index, load, out / f"watts-load-{_file(load)}.png")
    return tuple(written)


def draw_frontier(profile: Profile, front: Frontier, path: Path) -> Path:
    """Joules against TBT p99, all held points in grey, the frontier in colour by TP."""
    figure, axes = _figure()
    joule = units(profile)[1]
    held = [p for p in profile.points if p.load == front.load and not p.saturated and _drawable(p)]
    axes.scatter(*_xy(held), s=14, color="0.8", label=f"not on the frontier ({front.of - len(front.points)})")
    for tp in sorted({p.tp for p in front.points}):
        for origin in ORIGINS:
            points = [p for p in front.points if p.tp == tp and p.origin == origin and _drawable(p)]
            if points:
                x, y = _xy(points)
                axes.scatter(x, y, s=30, marker=MARKERS[origin], color=_colour(tp), label=f"TP{tp} {origin}")
    axes.set(xlabel="TBT p99 (ms)", ylabel=f"{joule} per output token", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    return _save(figure, axes, f"{profile.model} on {profile.gpu}: frontier of {front.load}", path)


def draw_clock(index: ProfileIndex, load: str, path: Path) -> list[Path]:
    """The U: joules per output token against the clock, of an instance that is nearly full at each clock (solid), and
    of one that is half full (dashed)."""
    figure, axes = _figure()
    joule = units(index.profile)[1]
    for tp in index.tps:
        for share, style in FILLED.items():
            known = []
            for clock in index.clocks_mhz(load, tp):
                at = index.at(load, tp, clock, share * index.sheets[load, tp].curves[clock].loads[-1])
                if isinstance(at, Operating) and at.j_per_output_token < UNKNOWN:
                    known.append((clock, at.j_per_output_token))
            if len(known) > 1:
                told = f"TP{tp}, {share:.0%} of its largest load"
                axes.plot(*zip(*known, strict=True), style, marker="o", markersize=4, color=_colour(tp), label=told)
    axes.set(xlabel="clock (MHz)", ylabel=f"{joule} per output token")
    return _save_if_drawn(figure, axes, f"{index.profile.model}: energy against clock, {load}", path)


def draw_load(index: ProfileIndex, load: str, path: Path) -> list[Path]:
    """Watts against offered load at the highest and the lowest clock of every TP: rows and the smoothed curve."""
    figure, axes = _figure()
    for tp in index.tps:
        clocks = index.clocks_mhz(load, tp)
        for clock in dict.fromkeys(clocks[:1] + clocks[-1:]):
            curve = index.sheets[load, tp].curves[clock]
            if curve.values["watts"][0] == UNKNOWN:
                continue
            colour = _colour(tp)
            style = "-" if clock == clocks[-1] else "--"
            axes.plot(curve.loads, curve.values["watts"], style, color=colour, label=f"TP{tp} {clock} MHz")
            rows = [
                p for p in index.profile.points if p.cell == (load, tp, clock) and not p.saturated and p.offered_rps
            ]
            for origin in ORIGINS:
                mine = [p for p in rows if p.origin == origin]
                axes.scatter(
                    [p.offered_rps for p in mine], [p.watts for p in mine], s=16, color=colour, marker=MARKERS[origin]
                )
    axes.set(xlabel="offered load (requests/s)", ylabel=f"{units(index.profile)[0]} of the instance", ylim=(0, None))
    return _save_if_drawn(figure, axes, f"{index.profile.model}: watts against load, {load}", path)


def draw_against_model(pairs: Mapping[str, Sequence[tuple[float, float]]], title: str, path: Path) -> list[Path]:
    """Measured against modelled, one panel a quantity. `pairs`: name with unit -> (measured, modelled)."""
    from matplotlib.figure import Figure

    told = {name: [p for p in rows if min(p) > 0 and max(p) < math.inf] for name, rows in pairs.items()}
    told = {name: rows for name, rows in told.items() if rows}
    if not told:
        return []
    figure = Figure(figsize=(4.2 * len(told), 4.2), layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, len(told), squeeze=False)[0], told.items(), strict=True):
        flat = [value for pair in rows for value in pair]
        ends = (min(flat) * 0.9, max(flat) * 1.1)
        axes.fill_between(ends, [e * 0.9 for e in ends], [e * 1.1 for e in ends], color="0.92", label="within 10 %")
        axes.plot(ends, ends, color="0.6", linewidth=1)
        axes.scatter(*zip(*rows, strict=True), s=12)
        scale = "log" if ends[1] > 10 * ends[0] else "linear"
        axes.set(xscale=scale, yscale=scale, xlabel=f"measured {name}", ylabel="modelled", xlim=ends, ylim=ends)
        axes.legend(fontsize=8)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return [path]


def _figure() -> tuple[Figure, Axes]:
    """A figure of its own, bound to no window system and to no global state of matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    return figure, figure.subplots()


def _save(figure: Figure, axes: Axes, title: str, path: Path) -> Path:
    axes.set_title(title, fontsize=10)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)
    return path


def _save_if_drawn(figure: Figure, axes: Axes, title: str, path: Path) -> list[Path]:
    return [_save(figure, axes, title, path)] if axes.lines else []


def _drawable(point: Point) -> bool:
    return point.tbt_p99_s < UNKNOWN and 0 < point.j_per_output_token < UNKNOWN


def _xy(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [p.tbt_p99_s * 1e3 for p in points], [p.j_per_output_token for p in points]


def _colour(tp: int) -> str:
    return f"C{tp.bit_length()}"


def _file(load: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in load)
