"""`joulegate report`: the energy ledger of a day or a month, and what the same traffic would have used otherwise."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.output import AsJson, fail, say
from commands.progress import Bar

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.ledger_query import Span
    from simulator.savings import Saved

J_PER_KWH = 3.6e6
DAY_S = 86_400.0


def report(
    since: Annotated[str, typer.Option(help="Date, ISO 8601 or Unix seconds. Default: a day before --until.")] = "",
    until: Annotated[str, typer.Option(help="The same; a date alone is its beginning, UTC. Default: now.")] = "",
    config: Annotated[Path, typer.Option(help="Names the ledger, the run log, services, price.")] = Path(
        "configs/dev.yaml"
    ),
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for serve.")] = None,
    baseline: Annotated[str, typer.Option(help="singlepool, configured, or none: no savings.")] = "singlepool",
    seeds: Annotated[int, typer.Option(help="Replays of each kind.")] = 3,
    export: Annotated[Path | None, typer.Option(help="Folder for windows.csv, accounts.csv and requests.csv.")] = None,
    as_json: AsJson = False,
) -> None:
    """What was spent, by cause, class, pool and key; and what the controller has saved, modelled, with an interval.

    The savings replay the run log in the simulator: it must still hold the requests of the time."""
    from gateway.config_file import ConfigError, load_config
    from gateway.ledger_query import energy, span_of
    from gateway.tariff import make_tariff

    until_s = _moment("--until", until) if until else _now_s()
    since_s = _moment("--since", since) if since else until_s - DAY_S
    if since_s >= until_s or seeds < 1:
        fail("--since must be before --until, --seeds at least 1", 2)
    try:
        loaded = load_config(config, dict(os.environ), overrides or [])
        one = loaded.energy
        tariff = make_tariff(one.gco2_per_kwh, one.price_per_kwh, one.gco2_file, one.price_file, one.currency)
    except ConfigError as error:
        fail("\n".join(str(problem) for problem in error.errors), 2)
    except (OSError, ValueError) as error:
        fail(str(error), 2)
    span = span_of(since_s, until_s)
    with closing(_ledger(one.path)) as disk:
        found = _answer(energy(disk, span, tariff))
        if export is not None:
            _export(disk, span, export)
        found |= _savings(disk, span, loaded, baseline, seeds)
    say(json.dumps(found) if as_json else _text(found))


def _now_s() -> float:
    from core.clock import SystemClock

    return SystemClock().wall_s()


def _moment(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option}: expected a date, an ISO 8601 moment or Unix seconds, not {text!r}", 2)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _ledger(path: str | None) -> sqlite3.Connection:
    if path is None or not Path(path).exists():
        fail(f"there is no ledger at {path}: energy.path of the configuration names it", 1)
    return sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)


def _answer(found: dict[str, Any]) -> dict[str, Any]:
    """Kilowatt-hours under the names that others rely on; idle holds parked, switching holds starting."""
    lines = {name: joules / J_PER_KWH for name, joules in found["lines"].items()}
    groups = ("by_service", "by_class", "by_pool", "by_key")
    kept = ("since", "until", "quality", "residual_share", "model_error", "requests", "output_tokens", "good_tokens",
            "j_per_good_token", "co2", "cost", *groups)  # fmt: skip
    return {
        "meter_kwh": found["meter_j"] / J_PER_KWH,
        "filled_kwh": found["filled_j"] / J_PER_KWH,
        "requests_kwh": lines["requests"],
        "prefill_kwh": lines["prefill"],
        "decode_kwh": lines["decode"],
        "idle_kwh": lines["idle"] + lines["parked"],
        "parked_kwh": lines["parked"],
        "switching_kwh": lines["switching"] + lines["starting"],
        "starting_kwh": lines["starting"],
        "residual": lines["residual"],
        **{name: found[name] for name in kept},
    }


def _export(disk: sqlite3.Connection, span: Span, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for table in ("windows", "accounts", "requests"):
        rows = disk.execute(f"select * from {table} where t >= ? and t < ? order by t", (span.since_s, span.until_s))
        with (folder / f"{table}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(column[0] for column in rows.description)
            writer.writerows(rows)


def _savings(disk: sqlite3.Connection, span: Span, config: Config, baseline: str, seeds: int) -> dict[str, Any]:
    """`saved_kwh` is null, with the reason, where it cannot be told."""
    from simulator.savings import BASELINES
    from simulator.trace import TraceError

    if baseline == "none":
        return {"saved_kwh": None, "savings": {"why_not": "not asked for"}}
    if baseline not in BASELINES:
        fail(f"--baseline: {', '.join(BASELINES)} or none, not {baseline}", 2)
    try:
        by_service = _by_service(disk, span, config, baseline, seeds)
    except (TraceError, OSError, ValueError) as error:
        return {"saved_kwh": None, "savings": {"why_not": str(error)}}
    if not by_service:
        why = "the run log has no completed request of that time, of a service with a profile"
        return {"saved_kwh": None, "savings": {"why_not": why}}
    total = None
    for one in by_service.values():
        total = one.saved if total is None else total.plus(one.saved)
    assert total is not None
    told = {name: _told(one) for name, one in by_service.items()}
    return {"saved_kwh": total.kwh(), "savings": {"baseline": baseline, "quality": "modelled", "services": told}}


def _told(one: Saved) -> dict[str, Any]:
    return {
        "saved_kwh": one.saved.kwh(),
        "meter_kwh": one.meter_j / J_PER_KWH,
        "simulated_kwh": one.simulated_j / J_PER_KWH,
        "meter_to_simulated": one.ratio,
        "meter_to_simulated_by_cause": one.ratios,
        "baseline_simulated_kwh": one.baseline_j / J_PER_KWH,
        "baseline_instances": one.instances,
        "would_save_kwh": None if one.proposed is None else one.proposed.kwh(),
    }


def _by_service(disk: sqlite3.Connection, span: Span, config: Config, baseline: str, seeds: int) -> dict[str, Saved]:
    from gateway.config import to_services
    from gateway.ledger_query import joules_by_window, lines_between
    from gateway.ledger_store import WINDOW_S
    from simulator.savings import Served, read_traffic, savings

    logs = _run_logs(config)
    planned = config.controller.plan == "energy" and config.controller.mode == "enforce"
    found = {}
    with Bar() as bar:
        for spec in to_services(config):
            traffic = read_traffic(logs, spec.name, span.since_s, span.until_s) if spec.profile else None
            if traffic is None:
                continue
            metered_j = joules_by_window(disk, spec.name, traffic.begins_s, traffic.ends_s)
            served = Served(config.controller.gpus, planned, _settings(config), config.controller.interval_s)
            lines_j = lines_between(disk, spec.name, traffic.begins_s, traffic.ends_s)
            found[spec.name] = savings(
                spec, traffic, served, baseline, metered_j, WINDOW_S, lines_j, range(seeds), bar.note
            )
    return found


def _settings(config: Config) -> Any:
    from gateway.wiring import settings_of

    return settings_of(config)


def _run_logs(config: Config) -> list[Path]:
    """Oldest first."""
    if config.run_log.path is None:
        raise ValueError("run_log.path is null: there is nothing to replay")
    path = Path(config.run_log.path)
    kept = [path.with_name(f"{path.name}.{number}") for number in range(config.run_log.keep, 0, -1)]
    return [one for one in (*kept, path) if one.exists()]


def _text(found: dict[str, Any]) -> str:
    day = [f"{datetime.fromtimestamp(found[name], UTC):%Y-%m-%d %H:%M} UTC" for name in ("since", "until")]
    quality = found["quality"]
    rows = [f"{day[0]} to {day[1]}", f"  meter      {found['meter_kwh']:10.4f} kWh  {quality['meter']}"]
    if abs(found["filled_kwh"]) > 1e-9:
        rows.append(f"  no counter {found['filled_kwh']:10.4f} kWh  modelled")
    for name, label in (("requests_kwh", "requests"), ("idle_kwh", "idle"), ("switching_kwh", "switching")):
        rows.append(f"  {label:10} {found[name]:10.4f} kWh  {quality['requests']}")
    rows.append(f"  residual   {found['residual']:10.4f} kWh  ({found['residual_share']:.2%})")
    if found["j_per_good_token"] is not None:
        rows.append(f"  {found['j_per_good_token']:.2f} J per token of requests that kept their objectives")
    if found["co2"] is not None:
        rows.append(f"  {found['co2']['g'] / 1000:.3f} kg CO2")
    if found["cost"] is not None:
        rows.append(f"  {found['cost']['amount']:.2f} {found['cost']['currency']}")
    for group in ("by_key", "by_class"):
        rows.append(f"{group.removeprefix('by_')}: requests, kWh, J per good token")
        for name, one in found[group].items():
            good = one["j_per_good_token"]
            told = "-" if good is None else f"{good:.2f}"
            rows.append(f"  {name:20} {one['requests']:8.0f} {one['joules'] / J_PER_KWH:10.4f} {told:>8}")
    saved = found["saved_kwh"]
    if saved is None:
        rows.append(f"saved: not told, {found['savings']['why_not']}")
    else:
        against = found["savings"]["baseline"]
        told = f"{saved['mid']:.4f} kWh ({saved['low']:.4f} to {saved['high']:.4f}), modelled"
        rows.append(f"saved against {against}: {told}")
        for name, one in found["savings"]["services"].items():
            if one["would_save_kwh"] is not None:
                more = one["would_save_kwh"]
                rows.append(f"  {name}: the controller would have saved {more['mid']:.4f} kWh "
                            f"({more['low']:.4f} to {more['high']:.4f}), modelled")  # fmt: skip
    return "\n".join(rows)
