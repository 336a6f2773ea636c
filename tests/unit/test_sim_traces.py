"""Traces: told by content, put in order, scaled without touching their burstiness, and made up in a trace's shape."""

import itertools
import json
import random
from pathlib import Path

import pytest

from simulator.trace import Arrival, TraceError
from simulator.trace_formats import Excluded, open_trace
from simulator.trace_scale import scaled, sliced, thinned
from simulator.trace_synthetic import QUANTILES, dispersion, fit, generate, rank_correlation, read_week

AZURE_2023 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
AZURE_2024 = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01.017335+00:00,2399,6\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n118,GPT-4,417,276,693,API log\n"
MOONCAKE = '{"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n{"timestamp": 4000, "input_length": 7319, "output_length": 490, "hash_ids": [0]}\n'


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "whatever.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AZURE_2023, [(0.0, 374, 44), (4.314579, 396, 109)]),
        (AZURE_2024, [(0.0, 2162, 5), (1.007405, 2399, 6)]),
        ("\ufeff" + AZURE_2023, [(0.0, 374, 44), (4.314579, 396, 109)]),
        (BURSTGPT, [(0.0, 472, 18), (113.0, 417, 276)]),
        (MOONCAKE, [(0.0, 6758, 500), (3.0, 7319, 490)]),
    ],
)
def test_formats_are_told_by_content(tmp_path: Path, text: str, expected: list[tuple[float, int, int]]) -> None:
    excluded = Excluded()
    found = [(a.at_s, a.input_tokens, a.output_tokens) for a in open_trace(file(tmp_path, text), excluded)]
    assert [f[1:] for f in found] == [e[1:] for e in expected]
    assert [f[0] for f in found] == pytest.approx([e[0] for e in expected], abs=1e-5)
    assert excluded.total == (1 if text == BURSTGPT else 0)


def test_a_run_log_is_replayed_by_arrival(tmp_path: Path) -> None:
    def row(t: float, e2e_s: float, out: int | None, outcome: str = "completed") -> str:
        return json.dumps({"kind": "request", "t": t, "e2e_s": e2e_s, "outcome": outcome, "input_tokens": 10,
                           "output_tokens": out})  # fmt: skip

    rows = [
        '{"kind": "tick", "t": 1.0}',
        row(100.0, 1.0, 5),
        row(101.0, 9.0, 70),
        row(102, 1, None, "shed"),
        row(103, 1, 9, "cut"),
    ]
    arrivals = list(open_trace(file(tmp_path, "\n".join(rows))))
    assert [(a.at_s, a.output_tokens) for a in arrivals] == [(0.0, 70), (7.0, 5)]


def test_what_exceeds_the_context_is_left_out_and_counted(tmp_path: Path) -> None:
    excluded = Excluded()
    assert [a.input_tokens for a in open_trace(file(tmp_path, MOONCAKE), excluded, 7300)] == [6758]
    assert (excluded.too_long, excluded.empty) == (1, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", ":1: expected the columns"),
        ("", ":1:"),
        ('{"x": 1}\n', ":1: neither"),
        ("{broken\n", ":1:"),
        (AZURE_2023 + "yesterday,1,2\n", ":4:"),
        (AZURE_2023 + "2023-11-16 18:15:51,many,2\n", ":4:"),
        (BURSTGPT + "x,ChatGPT,1,1,2,API log\n", ":5:"),
        (MOONCAKE + '{"timestamp": 4}\n', ":3: KeyError"),
        (MOONCAKE + "[1]\n", ":3: expected an object"),
        (BURSTGPT + "300,m,1,1,2,l\n900,m,1,1,2,l\n1100,m,1,1,2,l\n600,m,1,1,2,l\n", "out of order"),
    ],
)
def test_what_is_no_trace_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TraceError) as caught:
        list(open_trace(file(tmp_path, text)))
    assert says in str(caught.value) and "whatever.txt" in str(caught.value)


def test_small_disorder_is_put_right(tmp_path: Path) -> None:
    text = BURSTGPT + "100,m,7,7,14,l\n"
    assert [a.at_s for a in open_trace(file(tmp_path, text))] == [0.0, 95.0, 113.0]


def poisson(seed: int, rate: float, seconds: float) -> list[Arrival]:
    rng, at_s, out = random.Random(seed), 0.0, []
    while at_s < seconds:
        out.append(Arrival(at_s, rng.randint(1, 900), rng.randint(1, 300)))
        at_s += rng.expovariate(rate)
    return out


def test_whole_copies_are_shifted_and_nothing_else() -> None:
    base = poisson(1, 2.0, 300.0)
    tripled = list(scaled(lambda: iter(base), 3, seed=5))
    assert len(tripled) == 3 * len(base)
    assert [a.at_s for a in tripled] == sorted(a.at_s for a in tripled) and tripled[0].at_s == 0.0
    assert sorted(a.input_tokens for a in tripled) == sorted(3 * [a.input_tokens for a in base])
    assert tripled == list(scaled(lambda: iter(base), 3, seed=5)) != list(scaled(lambda: iter(base), 3, seed=6))
    assert tripled[-1].at_s <= base[-1].at_s + 60.0


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 2.5])
def test_fractions_are_thinned(factor: float) -> None:
    base = poisson(2, 5.0, 1000.0)
    count = sum(1 for _ in scaled(lambda: iter(base), factor, seed=1))
    assert count == pytest.approx(factor * len(base), rel=0.1)
    assert factor not in (1.0,) or count == len(base)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_is_a_positive_number(factor: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        scaled(lambda: iter(()), factor, seed=1)


def test_a_slice_counts_from_its_start_and_reads_no_further() -> None:
    endless = (Arrival(float(n), 1, 1) for n in itertools.count())
    assert [a.at_s for a in sliced(endless, 10.0, 3.0)] == [0.0, 1.0, 2.0]
    assert len(list(thinned(poisson(1, 5, 400), 0.5, 1))) == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize("bursty", [1.0, 4.0])
def test_a_synthetic_trace_has_the_shape_it_was_fitted_to(bursty: float) -> None:
    base = poisson(3, 6.0, 3000.0)
    shape = fit(base)
    assert shape.dispersion == pytest.approx(1.0, abs=0.1) and len(shape.input_tokens) == len(QUANTILES)
    from dataclasses import replace

    made = list(generate(replace(shape, dispersion=bursty, rank_correlation=0.6), 3000.0, seed=9))
    again = fit(made)
    assert again.rate_rps == pytest.approx(shape.rate_rps, rel=0.05)
    assert again.dispersion == pytest.approx(bursty, rel=0.1)
    assert again.rank_correlation == pytest.approx(0.6, abs=0.05)
    middle = QUANTILES.index(0.5)
    assert again.input_tokens[middle] == pytest.approx(shape.input_tokens[middle], rel=0.1)
    assert again.output_tokens[-1] <= shape.output_tokens[-1]


def test_a_week_shapes_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "week.csv"
    path.write_text("hour,requests\n0,100\n1,300\n")
    week = read_week(path)
    assert week == (0.5, 1.5)
    from dataclasses import replace

    shape = replace(fit(poisson(1, 4.0, 500.0)), week=week)
    made = list(generate(shape, 7200.0, seed=1))
    early = sum(1 for a in made if a.at_s < 3600)
    assert early / len(made) == pytest.approx(0.25, abs=0.03)
    with pytest.raises(TraceError):
        read_week(path, "nothing")


def test_ranks_and_dispersion_of_known_cases() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0
    even = [Arrival(float(n), 1, 1) for n in range(600)]
    assert dispersion(even) == 1.0
