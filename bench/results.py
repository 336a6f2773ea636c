"""From segments to figures: medians per gateway, ratios joulegate / peer, the JSON and the table. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.gateways import AGAIN, OURS
from bench.ratios import LEAST_PAIRS, Ratio, rank, ratio, tells_apart
from bench.segments import FLOOD, PACED, REQUESTS, Segment

DIRECT = "direct"
FIGURES = {  # figure -> the step that gives it
    "cpu_us_per_chunk": PACED,
    "cpu_s_per_1000": REQUESTS,
    "chunks_per_cpu_s": FLOOD,
    "instructions_per_chunk": PACED,
    "instructions_per_request": REQUESTS,
}
PLAIN = {"requests_per_s": REQUESTS, "chunks_per_s": FLOOD, "lag_p99_ms": PACED}  # shown, but not for ratios
ADDED_TTFT = "added_ttft_p50_ms"
ADDED_LAG = "added_lag_p99_ms"
SMALLEST_TTFT_MS = 0.05  # a smaller added TTFT is within the noise of the two figures it is the difference of
COLUMNS = (
    ("cpu_us_per_chunk", "CPU us / chunk", ".1f"),
    ("cpu_s_per_1000", "CPU s / 1,000", ".3f"),
    ("chunks_per_cpu_s", "chunks / CPU s", ",.0f"),
    ("added_ttft_p50_ms", "TTFT +p50 ms", ".2f"),
    ("added_ttft_p99_ms", "+p99 ms", ".2f"),
    (ADDED_LAG, "lag +p99 ms", ".2f"),
    ("rss_mb", "RSS MB", ".0f"),
)


@dataclass(slots=True)
class Results:
    """Everything that a run has measured."""

    segments: list[Segment] = field(default_factory=list)
    rss: dict[str, dict[int, float]] = field(default_factory=dict)  # gateway -> start -> MB after its load
    missing: dict[str, str] = field(default_factory=dict)  # peers left out, and why

    def names(self) -> list[str]:
        return list(dict.fromkeys(s.gateway for s in self.segments if s.gateway != DIRECT))

    def by_round(self, name: str, step: str, figure: str) -> dict[int, tuple[float, bool]]:
        """Round -> value and whether it was noisy. Of a repeated segment the quieter one counts."""
        best: dict[int, Segment] = {}
        for segment in self.segments:
            if segment.gateway != name or segment.step != step or figure not in segment.values:
                continue
            known = best.get(segment.round)
            if known is None or segment.span.foreign < known.span.foreign:
                best[segment.round] = segment
        return {number: (s.values[figure], s.noisy) for number, s in best.items()}

    def ttft_ms(self, name: str) -> list[float]:
        return [us / 1000 for s in self.segments if s.gateway == name and s.step == PACED for us in s.ttft_us]


def clean_pairs(
    ours: Mapping[int, tuple[float, bool]], theirs: Mapping[int, tuple[float, bool]]
) -> tuple[dict[int, float], dict[int, float], bool]:
    """Rounds in which neither was disturbed; all rounds, and True, if that leaves fewer than three or than half."""
    shared = ours.keys() & theirs.keys()
    quiet = {number for number in shared if not ours[number][1] and not theirs[number][1]}
    noisy = len(quiet) < len(shared) and len(quiet) < max(LEAST_PAIRS, len(shared) / 2)
    kept = shared if noisy else quiet
    return {r: ours[r][0] for r in kept}, {r: theirs[r][0] for r in kept}, noisy


def values_of(measured: Mapping[int, tuple[float, bool]]) -> list[float]:
    quiet = [value for value, noisy in measured.values() if not noisy]
    return quiet if len(quiet) >= LEAST_PAIRS else [value for value, _ in measured.values()]


def gateway_figures(results: Results, name: str) -> dict[str, float]:
    figures: dict[str, float] = {}
    for figure, step in {**FIGURES, **PLAIN}.items():
        values = values_of(results.by_round(name, step, figure))
        if values:
            figures[figure] = round(median(values), 4)
    direct, through = results.ttft_ms(DIRECT), results.ttft_ms(name)
    if direct and through:
        for q, key in ((0.5, ADDED_TTFT), (0.99, "added_ttft_p99_ms")):
            figures[key] = round(rank(through, q) - rank(direct, q), 3)
    lags = added_lag(results, name)
    if lags:
        figures[ADDED_LAG] = round(median(values_of(lags)), 3)
    if name in results.rss:
        figures["rss_mb"] = round(median(results.rss[name].values()), 1)
    return figures


def added_ttft(results: Results, name: str) -> dict[int, tuple[float, bool]]:
    direct = results.by_round(DIRECT, PACED, "ttft_p50_ms")
    through = results.by_round(name, PACED, "ttft_p50_ms")
    return {r: (max(v - direct[r][0], SMALLEST_TTFT_MS), n) for r, (v, n) in through.items() if r in direct}


def added_lag(results: Results, name: str) -> dict[int, tuple[float, bool]]:
    """From the stub's stamp on an event to the client's reading of it, less the same without a gateway."""
    direct = results.by_round(DIRECT, PACED, "lag_p99_ms")
    through = results.by_round(name, PACED, "lag_p99_ms")
    return {r: (lag - direct[r][0], noisy) for r, (lag, noisy) in through.items() if r in direct}


def compare(results: Results, name: str) -> dict[str, tuple[Ratio, bool]]:
    """joulegate / `name`, figure by figure; True = too few undisturbed rounds."""
    found: dict[str, tuple[Ratio, bool]] = {}
    for figure, step in FIGURES.items():
        sides = results.by_round(OURS, step, figure), results.by_round(name, step, figure)
        _add(found, figure, *sides)
    _add(found, ADDED_TTFT, added_ttft(results, OURS), added_ttft(results, name))
    rss = ({n: (v, False) for n, v in results.rss.get(who, {}).items()} for who in (OURS, name))
    _add(found, "rss_mb", *rss)
    return found


def _add(
    found: dict[str, tuple[Ratio, bool]],
    figure: str,
    ours: Mapping[int, tuple[float, bool]],
    theirs: Mapping[int, tuple[float, bool]],
) -> None:
    left, right, noisy = clean_pairs(ours, theirs)
    one = ratio(left, right)
    if one is not None:
        found[figure] = one, noisy and figure != "rss_mb"


def failures(results: Results) -> dict[str, dict[str, int]]:
    """Gateway -> kind of fault -> how often. Also what hit the direct path, where nothing is between."""
    total: dict[str, dict[str, int]] = {}
    for segment in results.segments:
        for kind, count in segment.faults.items():
            kinds = total.setdefault(segment.gateway, {})
            kinds[kind] = kinds.get(kind, 0) + count
    return total


def first_errors(results: Results) -> dict[str, str]:
    return {s.gateway: s.first_error for s in reversed(results.segments) if s.first_error}


def as_json(results: Results, about: Mapping[str, object]) -> dict[str, object]:
    compared = {name: compare(results, name) for name in results.names() if name != OURS}
    ratios = {
        name: {figure: {**one.as_json(), "noisy": noisy} for figure, (one, noisy) in figures.items()}
        for name, figures in compared.items()
    }
    told: dict[str, object] = {
        "gateways": {name: gateway_figures(results, name) for name in results.names()},
        "ratios": ratios,
        "missing": results.missing,
        "faults": failures(results),
        "first_errors": first_errors(results),
    }
    if AGAIN in compared:
        told["self_check"] = {
            figure: {"tells_apart": round(tells_apart(one), 4), "scatter": round(one.scatter, 4)}
            for figure, (one, _) in compared[AGAIN].items()
        }
    return {**told, **about, "segments": [s.as_json() for s in results.segments]}


def table(results: Results) -> str:
    """For people: figures per gateway, then the ratios with their intervals."""
    lines = ["gateway".ljust(20) + "".join(title.rjust(16) for _, title, _ in COLUMNS)]
    for name in results.names():
        figures = gateway_figures(results, name)
        cells = (format(figures.get(key, math.nan), spec).rjust(16) for key, _, spec in COLUMNS)
        lines.append(name.ljust(20) + "".join(cells))
    lines += ["", "joulegate / peer: median [95 % interval] scatter of one round, * = others used the gateway's core"]
    for name in results.names():
        if name == OURS:
            continue
        lines.append(name)
        for figure, (one, noisy) in compare(results, name).items():
            mark = " *" if noisy else ""
            spread = "" if math.isnan(one.scatter) else f"  +-{one.scatter * 100:.1f} %"
            lines.append(f"  {figure:26}{one.median:8.3f} [{one.low:.3f}, {one.high:.3f}]{spread}  n={one.n}{mark}")
            if name == AGAIN:
                lines.append(f"  {'':26}differences below {tells_apart(one) * 100:.1f} % are noise")
    return "\n".join([*lines, *problems(results)])


def problems(results: Results) -> Sequence[str]:
    lines = [f"left out: {name}: {reason}" for name, reason in results.missing.items()]
    errors = first_errors(results)
    for name, kinds in failures(results).items():
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        lines.append(f"FAILED: {name}: {told} {errors.get(name, '')}".rstrip())
    measured = [s for s in results.segments if s.gateway != DIRECT]
    noisy = share(measured)
    if noisy:
        lines.append(
            f"noise: in {noisy * 100:.0f} % of the segments others used the gateway's core; run it on a quiet machine"
        )
    return lines


def share(segments: Iterable[Segment]) -> float:
    flags = [segment.noisy for segment in segments]
    return sum(flags) / len(flags) if flags else 0.0
