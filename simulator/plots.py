"""Pictures of a comparison as SVG text. Imports matplotlib only when it draws; decides nothing.

The same figures give the same text: no date in it, and ids by a fixed salt.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from simulator.timeline import CAUSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"prefill": "#3b6ea5", "decode": "#e08e3c", "idle": "#b9b9b9", "switching": "#b04a5a"}
HOUR_S, MINUTE_S = 3600.0, 60.0
LONG_S = 3 * HOUR_S  # from here on the axis counts hours


def energy_by_cause(report: Mapping[str, Any]) -> str:
    """A bar per policy, and the bounds as lines."""
    figure, (axes,) = _figure(1, 3.2)
    names = list(report["policies"])
    left = [0.0] * len(names)
    for cause in CAUSES:
        kwh = [report["policies"][name]["energy_by_cause"][cause] for name in names]
        axes.barh(names, kwh, left=left, color=COLOURS[cause], label=cause)
        left = [a + b for a, b in zip(left, kwh, strict=True)]
    for key, style in (("bound_kwh", "-"), ("fluid_bound_kwh", ":")):
        if report.get(key):
            axes.axvline(report[key], color="black", linestyle=style, label=key.removesuffix("_kwh").replace("_", " "))
    axes.invert_yaxis()
    axes.set_xlabel("kWh (modelled)")
    axes.legend(fontsize=8)
    return _svg(figure)


def watts(timelines: Mapping[str, Mapping[str, Any]]) -> str:
    """The cluster's watts over time, a line per policy."""
    figure, (axes,) = _figure(1, 3.2)
    for name, columns in timelines.items():
        total = [sum(together) / 1000 for together in zip(*columns["watts"].values(), strict=True)]
        axes.plot(_times(columns), total, linewidth=1, label=name)
    axes.set(ylabel="kW (modelled)", xlabel=_unit(next(iter(timelines.values()))))
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, ncols=2)
    return _svg(figure)


def over_time(columns: Mapping[str, Any]) -> str:
    """One policy: watts by cause, READY instances by pool, clocks of the pools."""
    figure, (power, pools, clocks) = _figure(3, 6.4)
    times = _times(columns)
    power.stackplot(
        times, *([w / 1000 for w in columns["watts"][cause]] for cause in CAUSES), labels=CAUSES,
        colors=[COLOURS[cause] for cause in CAUSES],
    )  # fmt: skip
    power.set_ylabel("kW (modelled)")
    by_pool = columns["instances"]["pool"]
    if by_pool:
        pools.stackplot(times, *by_pool.values(), labels=list(by_pool), step="post")
    pools.set_ylabel("instances READY")
    for pool, mhz in columns["clock_mhz"].items():
        clocks.plot(times, [float("nan") if one is None else one for one in mhz], linewidth=1, label=pool)
    clocks.set(ylabel="MHz, mean of the pool", xlabel=_unit(columns))
    clocks.set_ylim(bottom=0)
    for axes in (power, pools, clocks):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7, ncols=3, loc="lower left")
    return _svg(figure)


def bars(groups: Mapping[str, Mapping[str, float]], ylabel: str) -> str:
    """Groups of bars beside each other: {series: {group: value}}; a series may lack a group."""
    figure, (axes,) = _figure(1, 3.4)
    names = list(dict.fromkeys(name for one in groups.values() for name in one))
    width = 0.8 / max(1, len(groups))
    for number, (series, values) in enumerate(groups.items()):
        places = [names.index(name) + (number - (len(groups) - 1) / 2) * width for name in values]
        axes.bar(places, list(values.values()), width, label=series)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel(ylabel)
    axes.legend(fontsize=8)
    return _svg(figure)


def _times(columns: Mapping[str, Any]) -> list[float]:
    unit_s = HOUR_S if _is_long(columns) else MINUTE_S
    return [at_s / unit_s for at_s in columns["at_s"]]


def _unit(columns: Mapping[str, Any]) -> str:
    return "hours" if _is_long(columns) else "minutes"


def _is_long(columns: Mapping[str, Any]) -> bool:
    return bool(columns["at_s"]) and columns["at_s"][-1] >= LONG_S


def _figure(rows: int, height: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, height), layout="constrained")
    axes = [figure.add_subplot(rows, 1, row + 1) for row in range(rows)]
    for above, below in pairwise(axes):
        above.sharex(below)
    for one in axes:
        one.grid(alpha=0.3)
    return figure, axes


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "joulegate", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()
