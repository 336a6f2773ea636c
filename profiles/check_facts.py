"""The engine models beside published tables and figures. Owns which cell is compared with which answer."""

from __future__ import annotations

from profiles.check_rows import (
    CLOCK_AIM,
    LATENCY_AIM,
    POWER_AIM,
    Comparison,
    Models,
    Quantity,
    Steady,
    steady_state,
    steady_watts,
)
from profiles.engine_model import EngineModel
from profiles.published_facts import EnergyCell, Facts, GridRow

GRID_TTFT = Quantity("TTFT: H100 grid, other classes", LATENCY_AIM)
GRID_TBT = Quantity("TBT: H100 grid, first and middle loads", LATENCY_AIM)
GRID_TBT_LAST = Quantity(
    "TBT: H100 grid, last load inside the SLO",
    LATENCY_AIM,
    "vLLM 0.2.7 has no chunked prefill: near the limit most gaps hold a prefill",
)
GRID_WATTS = Quantity("watts: H100 grid, other classes", POWER_AIM)
FIG_3 = Quantity("watts against tokens in flight: DynamoLLM Fig. 3", POWER_AIM)
IDLE = Quantity("idle watts, bare and loaded: DynamoLLM", POWER_AIM)
TABLE_CLOCK = Quantity(
    "energy against clock: DynamoLLM Tables I-III",
    CLOCK_AIM,
    "joules of unknown normalisation; the model is near saturation in the worst cells",
)
TABLE_TP = Quantity(
    "energy against TP: DynamoLLM Tables I-III",
    POWER_AIM,
    "joules of unknown normalisation; the model charges small TPs for the stalls behind prefills",
)
TABLE_LOAD = Quantity(
    "energy against load: DynamoLLM Table II",
    POWER_AIM,
    "joules of unknown normalisation, which hardly change with load there",
)
GRID_CLOCK = Quantity("clock multipliers left out and interpolated: H100", CLOCK_AIM)
A800_TIME = Quantity(
    "clock multipliers of time: A800 TP2 and TP4",
    CLOCK_AIM,
    "two TP1 rows stand for TP2 and TP4; cells of the source disagree",
)
A800_WATTS = Quantity(
    "clock multipliers of watts: A800 TP2 and TP4",
    CLOCK_AIM,
    "two TP1 rows stand for TP2 and TP4; cells of the source disagree",
)
QUANTITIES = (
    GRID_TTFT, GRID_TBT, GRID_TBT_LAST, GRID_WATTS, FIG_3, IDLE,
    TABLE_CLOCK, TABLE_TP, TABLE_LOAD, GRID_CLOCK, A800_TIME, A800_WATTS,
)  # fmt: skip
TOP_MHZ = 1980


def compare_facts(facts: Facts, models: Models) -> list[Comparison]:
    llama = models["h100", "llama-2-70b"]
    compared: list[Comparison] = []
    for row in facts.grid:
        if not row.is_fit:
            compared += _grid_row(row, llama)
    for tokens, watts, is_fit in facts.fig_3:
        if not is_fit:
            compared.append(Comparison(FIG_3, f"{tokens} tokens", watts, llama.watts(8, TOP_MHZ, 0, tokens)))
    idle = facts.raw["fig_3"]
    compared.append(Comparison(IDLE, "bare", idle["bare_idle_w"], 8 * llama.bare_idle_w))
    compared.append(Comparison(IDLE, "loaded", idle["loaded_idle_w"], 8 * llama.idle_w))
    return compared + compare_cells(facts, models) + _between_clocks(facts) + _a800(facts, models)


def compare_cells(facts: Facts, models: Models) -> list[Comparison]:
    """Energies as ratios: to 1980 MHz at the same TP and load, to TP8 at the same clock, to Table I's load."""
    lengths = facts.raw["h100_grid"]
    found: dict[tuple[str, str, float, int, int], tuple[float, float]] = {}
    for cell in facts.cells:
        modelled = _request_energy(cell, models["h100", cell.model], lengths)
        if modelled is not None:
            found[cell.model, cell.load_class, cell.load_tps, cell.tp, cell.clock_mhz] = (cell.energy, modelled)
    compared = []
    for (model, load_class, load, tp, mhz), (energy, modelled) in found.items():
        label = f"{model} {load_class} {load:.0f}/s TP{tp} {mhz} MHz"
        for quantity, base in (
            (TABLE_CLOCK, (model, load_class, load, tp, TOP_MHZ)),
            (TABLE_TP, (model, load_class, load, 8, mhz)),
            (TABLE_LOAD, (model, load_class, facts.raw["table_1"]["load_tps"], tp, mhz)),
        ):
            if base in found and base != (model, load_class, load, tp, mhz):
                base_energy, base_modelled = found[base]
                compared.append(Comparison(quantity, label, energy / base_energy, modelled / base_modelled))
    return compared


def _grid_row(row: GridRow, model: EngineModel) -> list[Comparison]:
    label = f"{row.load_class} TP{row.tp} {row.rps:g}/s"
    steady = _grid_state(row, model)
    running = max(1, round(row.running))
    decode_s = model.decode_step_s(row.tp, TOP_MHZ, running, round(row.context_tokens))
    compared = [Comparison(GRID_TBT_LAST if row.place == "last" else GRID_TBT, label, row.tbt_s, decode_s)]
    if steady is not None:
        compared.append(Comparison(GRID_TTFT, label, row.ttft_s, steady.ttft_s))
        share = row.rps * model.prefill_s(row.tp, TOP_MHZ, row.input_tokens)
        # The published gaps say how many sequences ran; the model's own gaps are compared above.
        watts = steady_watts(model, row.tp, TOP_MHZ, share, row.running, row.input_tokens)
        compared.append(Comparison(GRID_WATTS, label, row.watts, watts))
    return compared


def _grid_state(row: GridRow, model: EngineModel) -> Steady | None:
    return steady_state(model, row.tp, TOP_MHZ, row.rps, row.input_tokens, row.output_tokens)


def _request_energy(cell: EnergyCell, model: EngineModel, lengths: dict[str, dict[str, int]]) -> float | None:
    """Instance power x the latency of a request, which is how the cells of the tables behave."""
    prompt, output = lengths["input_tokens"][cell.load_class[0]], lengths["output_tokens"][cell.load_class[1]]
    rps = cell.load_tps / prompt
    steady = steady_state(model, cell.tp, cell.clock_mhz, rps, prompt, output)
    return None if steady is None else steady.watts * (steady.ttft_s + output * steady.gap_s)


def _between_clocks(facts: Facts) -> list[Comparison]:
    """Every inner clock of the grid, from a straight line between its neighbours: what is asked between grid clocks."""
    compared = []
    for phase in ("tbt", "ttft", "watts"):
        for tp in (2, 4, 8):
            mhz, measured = facts.h100_clocks(phase, tp)
            for at in range(1, len(mhz) - 1):
                share = (mhz[at] - mhz[at - 1]) / (mhz[at + 1] - mhz[at - 1])
                between = measured[at - 1] + share * (measured[at + 1] - measured[at - 1])
                compared.append(Comparison(GRID_CLOCK, f"{phase} TP{tp} {mhz[at]} MHz", measured[at], between))
    return compared


def _a800(facts: Facts, models: Models) -> list[Comparison]:
    model = models["a100", "llama-3.1-70b"]
    compared = []
    for row in facts.a800:
        if row.is_fit or row.tp not in model.points:
            continue
        point = model.points[row.tp]
        for mhz, time, watts in zip(row.clocks_mhz, row.time, row.watts, strict=True):
            if mhz not in model.clocks_mhz[:-1]:
                continue
            at = model.clocks_mhz.index(mhz)
            label = f"{row.phase} TP{row.tp} {mhz} MHz"
            compared.append(Comparison(A800_TIME, label, time, point.tbt[at]))
            compared.append(Comparison(A800_WATTS, label, watts, point.watts[at]))
    return compared
