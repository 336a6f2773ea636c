"""From segments to the figures that the bench tells."""

import json

import pytest

from bench.gateways import AGAIN, OURS
from bench.machine import Span
from bench.results import DIRECT, Results, as_json, clean_pairs, compare, failures, gateway_figures, table
from bench.segments import FLOOD, PACED, REQUESTS, Segment, faults, figures, load_args

GOOD = {"ok": 64, "errors": 0, "unfinished": 0, "events": 8192, "altered": 0, "no_end": 0, "elapsed_s": 3.2}


def segment(name: str, step: str, number: int, foreign: float = 0.0, **values: float) -> Segment:
    span = Span(cpu=0.2, waited=0.0, foreign=foreign, wall=3.0)
    times = [values["ttft_p50_ms"] * 1000] * 4 if "ttft_p50_ms" in values else []
    return Segment(name, step, number, values, span, {}, "", foreign > 0.05, times)


def three_rounds(peer: str = "nginx") -> Results:
    results = Results()
    for number, machine in enumerate((1.0, 1.5, 0.9)):
        for name, cost in ((OURS, 2.0), (peer, 1.0)):
            paced = {"cpu_us_per_chunk": 20 * cost * machine, "ttft_p50_ms": 0.3 + 0.4 * cost, "lag_p99_ms": 0.2 + cost}
            results.segments.append(segment(name, PACED, number, **paced))
            results.segments.append(segment(name, REQUESTS, number, cpu_s_per_1000=0.05 * cost * machine))
            results.segments.append(segment(name, FLOOD, number, chunks_per_cpu_s=200_000 / cost / machine))
        results.segments.append(segment(DIRECT, PACED, number, ttft_p50_ms=0.3, lag_p99_ms=0.2))
    results.rss = {OURS: {0: 80.0}, peer: {0: 20.0}}
    return results


def test_every_promised_key_is_there() -> None:
    told = json.loads(json.dumps(as_json(three_rounds(), {"rounds": 3})))
    keys = {
        "cpu_us_per_chunk",
        "cpu_s_per_1000",
        "added_ttft_p50_ms",
        "added_ttft_p99_ms",
        "chunks_per_cpu_s",
        "rss_mb",
    }
    assert set(told["gateways"]) == {OURS, "nginx"} and all(keys <= set(g) for g in told["gateways"].values())
    assert told["ratios"]["nginx"]["cpu_us_per_chunk"]["median"] == pytest.approx(2.0)
    assert told["ratios"]["nginx"]["chunks_per_cpu_s"]["median"] == pytest.approx(0.5)
    assert told["ratios"]["nginx"]["added_ttft_p50_ms"]["median"] == pytest.approx(2.0)
    assert told["ratios"]["nginx"]["rss_mb"]["median"] == pytest.approx(4.0)
    assert {"median", "low", "high"} <= set(told["ratios"]["nginx"]["cpu_s_per_1000"])
    assert "self_check" not in told and told["rounds"] == 3


def test_the_direct_path_is_subtracted_from_ttft_and_lag() -> None:
    figures_of = gateway_figures(three_rounds(), OURS)
    assert figures_of["added_lag_p99_ms"] == pytest.approx(2.0)
    assert figures_of["added_ttft_p50_ms"] == pytest.approx(0.8) and figures_of["added_ttft_p99_ms"] == pytest.approx(
        0.8
    )


def test_a_repeated_segment_counts_once_and_the_quieter_one() -> None:
    results = Results(
        [segment(OURS, PACED, 0, 0.4, cpu_us_per_chunk=90.0), segment(OURS, PACED, 0, 0.01, cpu_us_per_chunk=30.0)]
    )
    assert results.by_round(OURS, PACED, "cpu_us_per_chunk") == {0: (30.0, False)}


def test_disturbed_rounds_are_left_out_while_enough_remain() -> None:
    theirs = {n: (1.0, False) for n in range(4)}
    left, right, noisy = clean_pairs({**theirs, 2: (9.0, True)}, theirs)
    assert sorted(left) == [0, 1, 3] == sorted(right) and not noisy
    left, _, noisy = clean_pairs({**theirs, 2: (9.0, True), 3: (9.0, True)}, theirs)
    assert sorted(left) == [0, 1, 2, 3] and noisy
    assert clean_pairs({0: (1.0, False)}, {0: (1.0, False)})[2] is False  # few rounds are not noisy ones


def test_a_self_check_says_what_is_noise() -> None:
    results = three_rounds(AGAIN)
    told = as_json(results, {})
    assert told["self_check"]["cpu_us_per_chunk"]["tells_apart"] == pytest.approx(1.0)  # type: ignore[index]
    assert "differences below 100.0 % are noise" in table(results)


def test_wrong_answers_are_told() -> None:
    results = three_rounds()
    results.segments[0].faults = {"altered": 2, "errors": 1}
    results.segments[3].faults = {"errors": 4}
    results.segments[0].first_error = "502 no"
    results.missing["smg"] = "not installed"
    assert failures(results)[OURS] == {"altered": 2, "errors": 1}
    assert "FAILED: joulegate: 2 altered, 1 errors 502 no" in table(results)
    assert "left out: smg: not installed" in table(results)


def test_a_tie_with_the_direct_path_is_no_division_by_zero() -> None:
    results = Results()
    for number in range(3):
        results.segments += [segment(n, PACED, number, ttft_p50_ms=0.3) for n in (OURS, "nginx", DIRECT)]
    assert compare(results, "nginx")["added_ttft_p50_ms"][0].median == 1.0


@pytest.mark.parametrize(
    ("change", "exact", "found"),
    [
        ({}, True, {}),
        ({"altered": 3}, True, {"altered": 3}),
        ({"altered": 3}, False, {}),
        ({"errors": 1, "no_end": 2}, False, {"errors": 1, "no_end": 2}),
        ({"ok": 0}, True, {"nothing answered": 1}),
    ],
)
def test_faults(change: dict[str, int], exact: bool, found: dict[str, int]) -> None:
    assert faults({**GOOD, **change}, exact) == found


def test_figures_of_a_segment() -> None:
    paced = {**GOOD, "ttft_us": {"p50": 700.0}, "lag_us": {"p99": 900.0}}
    assert figures(PACED, paced, 0.4096, None)["cpu_us_per_chunk"] == pytest.approx(50.0)
    assert figures(PACED, paced, 0.4, 8192e3)["instructions_per_chunk"] == pytest.approx(1000.0)
    assert figures(REQUESTS, {"ok": 4000, "elapsed_s": 2.0}, 0.4, None)["cpu_s_per_1000"] == pytest.approx(0.1)
    assert figures(FLOOD, GOOD, 0.08192, None)["chunks_per_cpu_s"] == pytest.approx(100_000)
    assert figures(FLOOD, {"ok": 0}, 0.1, None) == {}


def test_a_longer_paced_step_repeats_its_streams() -> None:
    for seconds, runs in ((1.0, "1"), (2.56, "1"), (2.6, "2"), (10.0, "4")):
        args = load_args(PACED, seconds)
        assert args[args.index("-k") + 1] == runs
    assert "-S" not in load_args(REQUESTS, 2.0) and "bench:n=128,i=0" in load_args(FLOOD, 2.0)
