"""What the bench reads of the kernel."""

import os
import time

import pytest

from bench.counters import parse_count
from bench.machine import (
    TICK_S,
    Reading,
    Stat,
    between,
    cpu_s,
    family,
    parse_idle_s,
    parse_rss_kb,
    parse_stat,
    parse_waited_s,
    rss_mb,
)

STAT = """cpu  320624 0 53323 2295095 3319 0 3627 211 0 0
cpu0 110834 0 22974 1200971 850 0 1687 102 0 0
cpu1 209789 0 30349 1094124 2468 0 1940 109 0 0
intr 1 2 3
"""


def test_a_command_name_may_hold_blanks_and_brackets() -> None:
    assert parse_stat("42 (a) b (c) S 7 42 40 0 -1 4194560 1 2") == Stat(parent=7, session=40, state="S")


def test_a_family_is_a_session_and_its_descendants() -> None:
    stats = {
        10: Stat(1, 10, "S"),
        11: Stat(10, 10, "S"),
        12: Stat(11, 12, "S"),  # a child with a session of its own
        13: Stat(12, 12, "S"),
        14: Stat(1, 10, "S"),  # its parent ended
        20: Stat(1, 20, "S"),
    }
    assert family(10, stats) == {10, 11, 12, 13, 14}
    assert family(20, stats) == {20}


def test_idle_waiting_and_stolen_time_is_nobodys() -> None:
    assert parse_idle_s(STAT, 1) == pytest.approx((1094124 + 2468 + 109) * TICK_S)
    with pytest.raises(ValueError, match="no core 7"):
        parse_idle_s(STAT, 7)


def test_foreign_time_is_what_neither_idles_nor_is_ours() -> None:
    before = Reading(at=10.0, cpu=1.0, waited=0.5, idle=100.0, all_cpu=5.0)
    after = Reading(at=14.0, cpu=2.0, waited=0.7, idle=102.0, all_cpu=6.2)
    span = between(before, after)
    assert span.cpu == 1.0 and span.waited == pytest.approx(0.2) and span.wall == 4.0
    assert span.foreign == pytest.approx((4.0 - 2.0 - 1.2) / 4.0)


def test_foreign_time_is_never_negative() -> None:
    assert between(Reading(0.0, 0.0, 1.0, 0.0, 0.0), Reading(1.0, 0.5, 0.0, 0.9, 0.5)).foreign == 0.0


def test_schedstat_and_rollup() -> None:
    assert parse_waited_s("498043720 250000000 5") == 0.25
    assert parse_rss_kb("00400000-7fff [rollup]\nRss:            1234 kB\nPss:  900 kB\nRss:  6 kB\n") == 1240


def test_the_clock_of_a_process_counts_its_work() -> None:
    me = os.getpid()
    before, until = cpu_s([me]), time.process_time() + 0.02
    while time.process_time() < until:
        pass
    assert 0.015 < cpu_s([me]) - before < 1.0
    assert rss_mb([me]) > 5


def test_a_process_that_ended_counts_nothing() -> None:
    assert cpu_s([2**22 + 1]) == 0.0 and rss_mb([2**22 + 1]) == 0.0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1234567,,instructions,1000,100.00,,\n", 1234567.0),
        ("1234567,,instructions:u,1000,100.00,,\n", 1234567.0),
        ("<not supported>,,instructions,0,100.00,,\n", None),
        ("<not counted>,,instructions,0,0.00,,\n", None),
        ("perf: no such event\n", None),
        ("", None),
    ],
)
def test_what_perf_counts(text: str, count: float | None) -> None:
    assert parse_count(text) == count
