"""Plots of the engine models against the published figures. Owns only the drawing; imports matplotlib when it draws."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.check_rows import Comparison
from profiles.engine_model import load_engine_model
from profiles.published import ML_ENERGY, read_ml_energy
from profiles.published_facts import read_facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ABSOLUTE = (("time", "s"), ("step", "s"), ("TTFT", "s"), ("TBT", "s"), ("watts", "W"), ("joules", "J"))
MARKERS = ("o", "^")  # ten colours, two shapes


def draw_all(compared: Iterable[Comparison], data: Path, out: Path) -> list[Path]:
    """parity.png, batch.png (where the ML.ENERGY file is there) and clocks.png; the files written."""
    out.mkdir(parents=True, exist_ok=True)
    written = [_parity(tuple(compared), out / "parity.png"), _clocks(out / "clocks.png")]
    if (data / ML_ENERGY).exists():
        written.append(_batch(data, out / "batch.png"))
    return written


def _parity(compared: tuple[Comparison, ...], path: Path) -> Path:
    """Model against published, one dot per row, in three panels: seconds, watts, ratios and the rest."""
    figure, axes = _subplots(1, 3, (17, 5.5))
    panels: tuple[list[Comparison], ...] = ([], [], [])
    for one in compared:
        panels[_panel(one.quantity.name)].append(one)
    for axis, panel, title in zip(axes, panels, ("seconds", "watts", "ratios, joules"), strict=True):
        names = list(dict.fromkeys(one.quantity.name for one in panel))
        for index, name in enumerate(names):
            dots = [one for one in panel if one.quantity.name == name]
            axis.scatter(
                [one.published for one in dots],
                [one.modelled for one in dots],
                s=8,
                color=f"C{index % 10}",
                marker=MARKERS[index // 10 % 2],
                label=name,
            )
        values = [value for one in panel for value in (one.published, one.modelled)] or [1.0]
        ends = [min(values) * 0.9, max(values) * 1.1]
        for factor, style in ((1.0, "-"), (1.1, ":"), (0.9, ":")):
            axis.plot(ends, [end * factor for end in ends], style, color="grey", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="published", ylabel="modelled", title=f"{title}; dotted: ±10 %")
        axis.legend(fontsize=5, loc="upper left")
    return _save(figure, path)


def _batch(data: Path, path: Path) -> Path:
    """Decode step and watts against the batch: the model's line, the fit rows filled, the check rows hollow."""
    runs = read_ml_energy(data)
    names = sorted({(run.model, run.tp) for run in runs})
    figure, axes = _subplots(2, len(names), (3.2 * len(names), 6.5))
    for column, (name, tp) in enumerate(names):
        model = load_engine_model(name)
        mine = [run for run in runs if (run.model, run.tp) == (name, tp)]
        batches = range(1, int(max(run.running for run in mine)) + 1)
        mhz = model.clocks_mhz[-1]
        steps = [1e3 * model.decode_step_s(tp, mhz, batch, batch * model.context_tokens) for batch in batches]
        watts = [model.watts(tp, mhz, batch) / tp for batch in batches]
        for row, (lines, unit) in enumerate(((steps, "decode step, ms"), (watts, "W of one GPU"))):
            axis = axes[row * len(names) + column]
            axis.plot(batches, lines, linewidth=1)
            for is_fit, face in ((True, "tab:orange"), (False, "none")):
                dots = [run for run in mine if run.is_fit == is_fit]
                seen = [1e3 * run.itl_s if row == 0 else run.watts / tp for run in dots]
                label = "fit" if is_fit else "check"
                axis.scatter(
                    [r.running for r in dots], seen, s=18, facecolors=face, edgecolors="tab:orange", label=label
                )
            axis.set(xscale="log", title=f"{name} TP{tp}", xlabel="sequences", ylabel=unit)
    axes[0].legend(fontsize=7)
    return _save(figure, path)


def _clocks(path: Path) -> Path:
    """Energy against clock: multipliers of watts x time of the model, and Table I's cells relative to 1980 MHz."""
    figure, axes = _subplots(1, 3, (15, 4.5))
    model = load_engine_model("llama-2-70b")
    cells = [cell for cell in read_facts().cells if cell.table == "I"]
    for axis, tp in zip(axes, (2, 4, 8), strict=True):
        point = model.points[tp]
        for phase, times in (("decode", point.tbt), ("prefill", point.ttft)):
            energy = [time * watts for time, watts in zip(times, point.watts, strict=True)]
            axis.plot(model.clocks_mhz, energy, label=f"model, {phase}")
        for load_class in dict.fromkeys(cell.load_class for cell in cells):
            mine = [cell for cell in cells if (cell.load_class, cell.tp) == (load_class, tp)]
            top = [cell.energy for cell in mine if cell.clock_mhz == model.clocks_mhz[-1]]
            if top:
                relative = [cell.energy / top[0] for cell in mine]
                axis.plot(
                    [cell.clock_mhz for cell in mine], relative, "o--", markersize=4, linewidth=0.5, label=load_class
                )
        axis.set(title=f"Llama-2-70B TP{tp}", xlabel="MHz", ylabel="energy relative to 1980 MHz")
        axis.legend(fontsize=6)
    return _save(figure, path)


def _panel(name: str) -> int:
    is_ratio = any(word in name for word in ("ratio", "/", "scaling", "against", "multipliers"))
    if is_ratio and not name.startswith("watts against"):
        return 2
    unit = next((unit for word, unit in ABSOLUTE if word in name), "")
    return {"s": 0, "W": 1}.get(unit, 2)


def _subplots(rows: int, columns: int, size: tuple[float, float]) -> tuple[object, list[Axes]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(rows, columns, at + 1) for at in range(rows * columns)]


def _save(figure: object, path: Path) -> Path:
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    figure.savefig(path, dpi=110)
    return path
