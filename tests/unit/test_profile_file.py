"""NAME.profile.csv: exact round trips, faults with their place, and no input that ends in a traceback."""

from __future__ import annotations

import math
import os
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiles.profile import MAY_BE_UNKNOWN, UNKNOWN, Point, Profile, Provenance, Residual
from profiles.profile_file import ProfileError, format_profile, load_profile, parse_profile, read_profile, save_profile
from tests.profile_samples import PROVENANCE, profile, row, sample

RESIDUAL = Residual(4, 1200, 1.0300000000000002, 0.97, 0.021, 0.03, 41, 17)


def problems(text: str) -> list[str]:
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, "p.profile.csv")
    return [str(problem) for problem in caught.value.problems]


def edited(column: str, value: str, points: int = 1) -> str:
    """A good profile whose last row has another text in one column."""
    rows = [row(offered_rps=1.0 + n) for n in range(points)]
    lines = format_profile(profile(rows)).splitlines()
    names = lines[-points - 1].split(",")
    cells = lines[-1].split(",")
    cells[names.index(column)] = value
    return "\n".join([*lines[:-1], ",".join(cells)]) + "\n"


def test_round_trip_is_exact(tmp_path: Path) -> None:
    unknown = row(offered_rps=1.5, **dict.fromkeys(MAY_BE_UNKNOWN, UNKNOWN))
    idle = row(offered_rps=0.0, output_tps=0.0, ttft_p50_s=UNKNOWN, ttft_p99_s=UNKNOWN, tbt_p50_s=UNKNOWN)
    idle = replace(idle, tbt_p99_s=UNKNOWN, j_per_output_token=UNKNOWN, watts=480.1)
    made = profile([row(offered_rps=0.1 + 0.2), unknown, idle, row(load="in4000-out600", origin="derived")])
    made = replace(made, residuals=(RESIDUAL,))
    path = tmp_path / "deep" / "a.profile.csv"
    save_profile(made, path)
    assert load_profile(path) == made
    assert path.read_text().startswith("---\nschema: 1\n")
    assert os.listdir(path.parent) == ["a.profile.csv"]  # no draft is left


def test_the_sample_has_nothing_odd(tmp_path: Path) -> None:
    path = tmp_path / "a.profile.csv"
    save_profile(sample(), path)
    assert read_profile(path) == (sample(), ())


FINITE = st.floats(min_value=0, max_value=1e12, allow_nan=False)


@example(values=[], notes="\x85\u2028\ufeff\x00\n---\n", source="")
@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        st.fixed_dictionaries({n: FINITE for n in ("watts", "running", "kv_share", "window_s")}), max_size=5
    ),
    notes=st.text(max_size=40),
    source=st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=40),
)
def test_whatever_is_written_is_read_back(values: list[dict[str, float]], notes: str, source: str) -> None:
    rows = [row(offered_rps=1.0 + n, **{**v, "kv_share": v["kv_share"] / 1e12}) for n, v in enumerate(values)]
    made = replace(profile(rows or [row()]), provenance=replace(PROVENANCE, notes=notes, source=source))
    again = parse_profile(format_profile(made), "x")[0]
    assert again == made


def test_saving_refuses_what_could_not_be_read_back_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.profile.csv"
    save_profile(profile([row()]), path)
    before = path.read_bytes()
    for bad in (row(watts=math.nan), row(offered_rps=math.inf), row(load="a,b"), row(watts=-1.0)):
        with pytest.raises(ProfileError, match="row 2"):
            save_profile(profile([row(), bad]), path)
    with pytest.raises(ProfileError):
        save_profile(replace(profile([row()]), gpu=""), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.profile.csv"]


def test_an_odd_measurement_is_saved_and_refused_on_loading(tmp_path: Path) -> None:
    path = tmp_path / "a.profile.csv"
    save_profile(profile([row(tbt_p50_s=0.03), row(offered_rps=2.0, tbt_p50_s=0.01)]), path)
    with pytest.raises(ProfileError, match=r"a\.profile\.csv:\d+: tbt_p50_s: .*does not fall with load"):
        load_profile(path)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("watts", "nan", "must be a number, not 'nan'"),
        ("watts", "inf", "must be a number, not 'inf'"),
        ("watts", "1e999", "is too large"),
        ("watts", "-3", "is negative (-3)"),
        ("watts", "1_000", "must be a number"),
        ("tp", "4.5", "must be a whole number"),
        ("tp", "0", "must be more than 0"),
        ("clock_mhz", "", "is empty and must be known"),
        ("offered_rps", "", "is empty and must be known"),
        ("saturated", "yes", "must be true or false"),
        ("ttft_p50_s", "9", "ttft_p50_s 9 is above ttft_p99_s 0.6"),
        ("tbt_p50_s", "9", "tbt_p50_s 9 is above tbt_p99_s 0.03"),
        ("kv_share", "1.5", "must not exceed 1"),
        ("origin", "guessed", "must be measured, emulated or derived"),
        ("load", "", "must be 1 to 64 letters"),
    ],
)
def test_a_bad_cell_is_named_with_line_and_column(column: str, value: str, told: str) -> None:
    text = edited(column, value, points=2)
    line = len(text.splitlines())
    assert problems(text)[0].startswith(f"p.profile.csv:{line}: {column}: ")
    assert told in problems(text)[0]


def test_every_fault_is_listed_not_only_the_first() -> None:
    text = edited("watts", "nan", points=3).replace("---\ntp,", "---\ntp,", 1)
    lines = text.splitlines()
    lines[-3] = lines[-3].replace("true", "maybe").replace("false", "maybe")
    assert [p.split(": ")[1] for p in problems("\n".join(lines))] == ["saturated", "watts"]


def test_columns_and_rows_must_fit() -> None:
    text = format_profile(profile([row()]))
    assert "watts: column is missing" in problems(text.replace(",watts,", ",vatts,"))[1]
    assert "vatts: is no column of a profile" in problems(text.replace(",watts,", ",vatts,"))[0]
    assert "stands twice" in problems(text.replace(",watts,", ",tp,"))[0]
    assert "cells, the table has" in problems(text.rstrip("\n") + ",7\n")[0]
    assert "the table is missing" in problems(text[: text.index("tp,clock")])[0]
    assert "holds no operating point" in problems("\n".join(text.splitlines()[:-1]))[0]
    optional = text.replace(",origin\n", "\n").replace(",measured\n", "\n")
    assert parse_profile(optional, "x")[0].points[0].origin == "measured"


def test_the_header_is_checked_key_by_key() -> None:
    text = format_profile(replace(profile([row()]), residuals=(RESIDUAL,)))
    cases = {
        text.replace("schema: 1", "schema: 2"): "p.profile.csv:2: schema: is 2; this joulegate reads schema 1",
        text.replace("schema: 1", "schema: one"): "p.profile.csv:2: schema: must be a whole number",
        text.replace("gpu: ", "gpus: "): "p.profile.csv:3: gpus: is no key here",
        text.replace("model: test-70b", "model: 70"): "p.profile.csv:4: model: must be text; put it in quotes",
        text.replace("'2026-11-01'", "yesterday"): "provenance.made_on: must be a date such as 2026-11-21",
        text.replace("origin: emulated", "origin: dreamt"): "provenance.origin: must be one of measured",
        text.replace("max_num_seqs: 256", "max_num_seqs: many"): "provenance.limits.max_num_seqs: must be a whole",
        text.replace("latency: 1.0300000000000002", "latency: 0"): "residuals.0.latency: must be more than 0",
        re.sub(r"residuals:\n.*?\n---", "residuals: 3\n---", text, flags=re.DOTALL): "residuals: must be a list",
        text.replace("---\nschema", "schema", 1): "a profile starts with a line '---'",
        text.replace("---\ntp", "tp"): "the header has no end",
        text.replace("schema: 1", "schema: [1"): "is no YAML",
        "": "a profile starts with a line '---'",
    }
    for bad, told in cases.items():
        assert any(told in problem for problem in problems(bad)), (told, problems(bad))


def test_a_date_without_quotes_is_a_date() -> None:
    text = format_profile(profile([row()])).replace("'2026-11-01'", "2026-11-01")
    assert parse_profile(text, "x")[0].provenance.made_on == "2026-11-01"


def test_duplicate_rows_are_named() -> None:
    text = format_profile(profile([row(), row(watts=1201.0)]))
    assert "repeats LL TP4 1200 MHz at 1 rps" in problems(text)[0]


def physics(points: list[Point]) -> tuple[list[str], list[str]]:
    """(errors, warnings)"""
    try:
        return [], [str(w) for w in parse_profile(format_profile(profile(points)), "x")[1]]
    except ProfileError as error:
        return [str(p) for p in error.problems], []


@pytest.mark.parametrize(("second", "errors", "warnings"), [(0.0195, 0, 0), (0.017, 0, 1), (0.009, 1, 0)])
def test_latency_may_not_fall_with_load(second: float, errors: int, warnings: int) -> None:
    found = physics([row(tbt_p50_s=0.02), row(offered_rps=2.0, tbt_p50_s=second)])
    assert tuple(map(len, found)) == (errors, warnings), found


@pytest.mark.parametrize(("faster", "errors", "warnings"), [(0.021, 0, 0), (0.025, 0, 1), (0.05, 1, 0)])
def test_latency_may_not_rise_with_the_clock(faster: float, errors: int, warnings: int) -> None:
    slow = [row(tbt_p50_s=0.02), row(offered_rps=3.0, tbt_p50_s=0.02)]
    fast = [row(clock_mhz=1980, offered_rps=2.0, tbt_p50_s=faster, tbt_p99_s=0.06)]
    found = physics(slow + fast)
    assert tuple(map(len, found)) == (errors, warnings), found


def test_corners_of_the_grid() -> None:
    held = [row(clock_mhz=c) for c in (800, 1200, 1980)]
    assert physics(held) == ([], [])
    # The slowest clock may hold nothing; the fastest may not hold less than a slower one.
    assert physics([row(clock_mhz=800, saturated=True), *held[1:]]) == ([], [])
    errors, _ = physics([*held[:2], row(clock_mhz=1980, saturated=True)])
    assert "holds loads at 1200 MHz and none at 1980 MHz, which is faster" in errors[0]
    _, warnings = physics([*held, row(load="SS"), row(load="SS", clock_mhz=1980)])
    assert len(warnings) == 1
    assert "SS TP4 has no row at 800 MHz, a corner of the grid" in warnings[0]


def test_joules_that_do_not_add_up_are_a_warning() -> None:
    _, warnings = physics([row(j_per_output_token=9.0)])
    assert "is not watts / output_tps" in warnings[0]


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", Path("/nonexistent\0")):
        with pytest.raises(ProfileError, match="cannot be read"):
            load_profile(path)
    (tmp_path / "binary").write_bytes(b"---\n\xff\xfe")
    with pytest.raises(ProfileError, match="is not a text file"):
        load_profile(tmp_path / "binary")


GOOD = format_profile(replace(sample(loads=("SS",), tps=(4,), clocks=(800, 1980)), residuals=(RESIDUAL,)))
SPICE = ["nan", "-1", "", "---", "\n", ",", '"', "'", "[", "{", "*a", "&a", "!!python/object:os.system", "\x00", "\ud7ff", "1e400",
         "?", ": ", "- ", "\t", "\r", "99999999999999999999", "2026-99-99", "true", "null", "~", "|", ">", "%YAML 9", "١٢"]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(GOOD)), st.integers(0, 60), st.sampled_from(SPICE)), min_size=1, max_size=4
    )
)
def test_a_damaged_file_is_read_or_refused(edits: list[tuple[int, int, str]]) -> None:
    text = GOOD
    for at, length, spice in edits:
        text = text[:at] + spice + text[at + length :]
    check_read_or_refused(text)


@settings(max_examples=200, deadline=None)
@given(header=st.text(max_size=200), table=st.text(max_size=200))
def test_any_text_is_read_or_refused(header: str, table: str) -> None:
    check_read_or_refused(header + table)
    check_read_or_refused(f"---\n{header}\n---\n{table}")
    check_read_or_refused(GOOD[: GOOD.index("tp,clock")] + table)


def check_read_or_refused(text: str) -> None:
    try:
        read, _ = parse_profile(text, "p.profile.csv")
    except ProfileError as error:
        assert error.problems
        assert all(re.match(r"p\.profile\.csv(:\d+)?: ", str(problem)) for problem in error.problems)
        return
    assert isinstance(read, Profile)
    numbers = [getattr(p, f.name) for p in read.points for f in fields(p) if f.type == "float"]
    assert all(value >= 0 for value in numbers)  # NaN fails too


def test_deep_nesting_is_refused() -> None:
    check_read_or_refused("---\n" + "[" * 5000 + "\n---\ntp\n")
    check_read_or_refused("---\n" + "{a: " * 5000 + "\n---\ntp\n")
    check_read_or_refused("---\n&a [*a]\n---\ntp\n")


def test_the_manual_names_every_column_and_key() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")
    for name in [f.name for kind in (Point, Provenance, Residual) for f in fields(kind)]:
        assert re.search(rf"`(provenance\.)?{name}`|{name}:", manual), name
