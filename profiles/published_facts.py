"""Published figures typed in by hand: the H100 grid, DynamoLLM's tables and figure 3, the A800 clock table.

Owns the reading of published_facts.yaml and its split into fit and check sets (`is_fit`). Compares nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import Any

import yaml

FACTS_FILE = Path(__file__).with_name("published_facts.yaml")
FIT_CLASSES = ("SL", "MM", "LS", "LM", "LL")  # the anti-diagonal; LS, LM and LL are one: their answers are cut alike


@dataclass(frozen=True, slots=True)
class GridRow:
    """One measured cell of Llama-2-70B on H100 at 1980 MHz."""

    load_class: str
    tp: int
    rps: float
    input_tokens: int
    output_tokens: int
    ttft_s: float
    tbt_s: float
    watts: float
    place: str  # first, middle or last load inside the SLO

    @property
    def is_fit(self) -> bool:
        return self.load_class in FIT_CLASSES

    @property
    def running(self) -> float:
        """Little's law: sequences that decode at the same time."""
        return self.rps * self.output_tokens * self.tbt_s

    @property
    def context_tokens(self) -> float:
        return self.running * (self.input_tokens + self.output_tokens / 2)

    @property
    def alone_s(self) -> float:
        """The time to the first token without its M/D/1 queue, from S + S * u / (2 (1 - u)), u = rps * S."""
        rate, seen_s = self.rps, self.ttft_s
        root = sqrt((1 + rate * seen_s) ** 2 - 2 * rate * seen_s)
        return (1 + rate * seen_s - root) / rate


@dataclass(frozen=True, slots=True)
class EnergyCell:
    """Joules of one class, TP and clock, in a unit that only ratios within `table` remove."""

    table: str
    model: str
    load_class: str
    load_tps: float
    tp: int
    clock_mhz: int
    energy: float


@dataclass(frozen=True, slots=True)
class ClockRow:
    """Multipliers relative to the highest clock of the row's grid."""

    phase: str
    tp: int
    clocks_mhz: tuple[int, ...]
    time: tuple[float, ...]
    watts: tuple[float, ...]

    @property
    def is_fit(self) -> bool:
        return self.tp == 1


@dataclass(frozen=True)
class Facts:
    """published_facts.yaml."""

    raw: Mapping[str, Any]

    @cached_property
    def grid(self) -> tuple[GridRow, ...]:
        raw = self.raw["h100_grid"]
        last: dict[tuple[str, int], int] = {}
        for index, row in enumerate(raw["rows"]):
            last[row[0], row[1]] = index
        rows: list[GridRow] = []
        for index, (load_class, tp, rps, ttft_ms, tbt_ms, watts) in enumerate(raw["rows"]):
            is_first = not rows or (rows[-1].load_class, rows[-1].tp) != (load_class, tp)
            place = "first" if is_first else "last" if last[load_class, tp] == index else "middle"
            output = raw["output_tokens"][load_class[1]]
            if load_class[0] == "L":
                output = raw["output_tokens_after_long_input"]
            rows.append(
                GridRow(
                    load_class, tp, rps, raw["input_tokens"][load_class[0]], output,
                    ttft_ms / 1e3, tbt_ms / 1e3, watts, place,
                )
            )  # fmt: skip
        return tuple(rows)

    @cached_property
    def cells(self) -> tuple[EnergyCell, ...]:
        """Tables I to III without the rows that a later table repeats."""
        load = self.raw["table_1"]["load_tps"]
        rows = [("I", "llama-2-70b", name, load, by_tp) for name, by_tp in self.raw["table_1"]["cells"].items()]
        rows += [("II", "llama-2-70b", "MM", tps, row) for tps, row in self.raw["table_2"].items() if tps != load]
        rows += [("III", "llama-3.1-70b", "MM", load, self.raw["table_3"]["llama3-70b"])]
        clocks = self.raw["dynamollm_clocks_mhz"]
        return tuple(
            EnergyCell(table, model, load_class, tps, tp, mhz, energy)
            for table, model, load_class, tps, by_tp in rows
            for tp, energies in by_tp.items()
            for mhz, energy in zip(clocks, energies, strict=True)
            if energy is not None
        )

    @cached_property
    def fig_3(self) -> tuple[tuple[int, float, bool], ...]:
        """(tokens in flight, watts of 8 GPUs, is it in the fit set): 2^odd tokens from 512 up are."""
        return tuple(
            (tokens, kw * 1e3, tokens >= 512 and (tokens.bit_length() - 1) % 2 == 1)
            for tokens, kw in self.raw["fig_3"]["kw"].items()
        )

    @cached_property
    def a800(self) -> tuple[ClockRow, ...]:
        raw = self.raw["a800_clocks"]
        return tuple(
            ClockRow(
                row["phase"],
                row["tp"],
                tuple(raw["mhz"]),
                tuple(row["time"]),
                tuple(energy / time for energy, time in zip(row["energy"], row["time"], strict=True)),
            )
            for row in raw["rows"]
        )

    def h100_clocks(self, phase: str, tp: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """(MHz, multipliers) of `phase`: tbt, ttft or watts."""
        raw = self.raw["h100_clocks"]
        return tuple(raw["mhz"]), tuple(raw[phase][tp])


def read_facts() -> Facts:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return Facts(yaml.load(FACTS_FILE.read_text(encoding="utf-8"), Loader=loader))
