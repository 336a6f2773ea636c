"""`joulegate profile fit`: an engine model from a measured profile, to simulate, plan and emulate the operator's own
machine. Owns options and the report; the fit is simulator/fit_model.py's."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.output import AsJson, fail, say
from commands.profile_shared import ProfilePath, console, opened

if TYPE_CHECKING:
    from profiles.engine_model import EngineModel
    from simulator.fit_model import Fitted

QUANTITIES = ("ttft_p50", "ttft_p99", "gap_mean", "watts")


def fit(
    path: ProfilePath,
    out: Annotated[Path | None, typer.Option(help="NAME.model.yaml; default: beside the profile.")] = None,
    kv_tokens: Annotated[int, typer.Option(help="KV cache tokens of one GPU, as vLLM prints; 0: no limit.")] = 0,
    start_s: Annotated[float, typer.Option(help="Seconds from start to ready.")] = 90.0,
    like: Annotated[str, typer.Option(help="Engine model that gives what a profile does not tell.")] = "llama-3.1-70b",
    as_json: AsJson = False,
) -> None:
    """Fit an engine model to a profile. Switching costs and watts of unused GPUs are taken over from --like.

    A service whose `profile` is the written file is simulated, planned and emulated with it.
    """
    from profiles.engine_model import MODEL_SUFFIX, load_engine_model
    from profiles.model_file import save_model
    from profiles.profile_file import SUFFIX
    from simulator.fit_model import FULL_KV, Assumed, fit_model

    if kv_tokens < 0 or not 0 <= start_s < float("inf"):
        fail("--kv-tokens and --start-s must not be negative", 2)
    profile = opened(path)
    target = out or path.with_name(path.name.removesuffix(SUFFIX) + MODEL_SUFFIX)
    if not target.name.endswith(MODEL_SUFFIX):
        fail(f"--out must end in {MODEL_SUFFIX}", 2)
    try:
        base = load_engine_model(like)
        assumed = Assumed(base.switch, start_s, base.bare_idle_w, base.parked_w, kv_tokens or FULL_KV)
        fitted = fit_model(profile, assumed, lambda text: typer.echo(text, err=True))
        save_model(fitted.model, target, _notes(path, like, fitted))
    except (ValueError, OSError) as error:
        fail(str(error), 1)
    if as_json:
        say(json.dumps(_object(target, fitted)))
    else:
        _show(target, fitted)


def _notes(path: Path, like: str, fitted: Fitted) -> dict[str, Any]:
    return {
        "made_by": f"joulegate profile fit {path.name}",
        "quality": "modelled: fitted to measured windows",
        "assumed": f"switch, start_s, bare_idle_w, parked_w: not in a profile; those of {like} unless given",
        "windows": len(fitted.residuals),
        "median_error": _errors(fitted, 0.5),
        "p90_error": _errors(fitted, 0.9),
    }


def _errors(fitted: Fitted, share: float) -> dict[str, float]:
    found = {}
    for name in QUANTITIES:
        off = sorted(abs(float(getattr(one, name)) - 1) for one in fitted.residuals)
        found[name] = round(float(median(off)) if share == 0.5 else off[min(len(off) - 1, int(share * len(off)))], 4)
    return found


def _object(target: Path, fitted: Fitted) -> dict[str, Any]:
    return {
        "out": str(target),
        "windows": len(fitted.residuals),
        "median_error": _errors(fitted, 0.5),
        "p90_error": _errors(fitted, 0.9),
        "rows": [
            {"tp": one.point.tp, "clock_mhz": one.point.clock_mhz, "load": one.point.load, "rps": one.point.offered_rps}
            | {name: round(getattr(one, name), 4) for name in QUANTITIES}
            for one in fitted.residuals
        ],
    }


def _show(target: Path, fitted: Fitted) -> None:
    from rich.table import Table

    table = Table("TP", "MHz", "load", "rps", "TTFT p50", "TTFT p99", "mean gap", "watts", title="simulated / measured")
    for one in fitted.residuals:
        point = one.point
        cells = [f"{getattr(one, name):.3f}" for name in QUANTITIES]
        table.add_row(str(point.tp), str(point.clock_mhz), point.load, f"{point.offered_rps:g}", *cells)
    console().print(table)
    middle, high = _errors(fitted, 0.5), _errors(fitted, 0.9)
    say("; ".join(f"{name} median {middle[name]:.1%} p90 {high[name]:.1%}" for name in QUANTITIES))
    say(_constants(fitted.model))
    say(f"wrote {target}")


def _constants(model: EngineModel) -> str:
    lines = []
    for tp, point in model.points.items():
        steps = ", ".join(
            f"{at:.0f}: {1e3 * s:.3g}" for at, s in zip(point.running_knots, point.decode_knots_s, strict=True)
        )
        lines.append(
            f"TP{tp}: decode step, ms by batch {{{steps}}}; prefill {1e3 * point.prefill_base_s:.3g} ms + "
            f"{1e3 * point.prefill_per_token_s:.3g} ms a token; {1e3 * model.front_s:.3g} ms outside of steps"
        )
    return "\n".join(lines)
