"""Timing, histograms, dialects, GPU books, traces: parts too small for a file of their own."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.clock import SystemClock
from core.errors import Overloaded
from core.histogram import Histogram
from core.service import InstanceLimits, PoolSpec
from gateway.dialect import Dialect, error_body, error_event, is_shaped, reshape
from gateway.timing import Timing
from pools.breaker import Breaker
from pools.counters import EngineCounters
from pools.gpu_book import GpuBook, NoRoom, islands_of
from pools.instance import Instance
from simulator.trace import Arrival, TraceError, read_azure, window


def test_a_merged_chunk_is_as_many_gaps_as_it_has_events() -> None:
    timing = Timing(0.0, 1.0, 0.1)
    timing.chunk(0.5, 2)
    timing.chunk(0.77, 3)
    assert timing.ttft_s == 0.5
    assert timing.gaps == 3 and timing.gaps_late == 0
    assert timing.gap_times.total == pytest.approx(0.27)


@pytest.mark.parametrize(("late", "attained"), [(1, True), (2, True), (3, False)])
def test_one_percent_of_gaps_may_be_late(late: int, attained: bool) -> None:
    timing = Timing(0.0, 1.0, 0.1)
    now_s = 0.5
    timing.chunk(now_s, 1)
    for gap in range(150):
        now_s += 0.2 if gap < late else 0.05
        timing.chunk(now_s, 1)
    assert timing.attained(stream=True, output_tokens=151, ended_s=now_s) is attained


def test_a_late_first_token_is_a_miss_whatever_follows() -> None:
    timing = Timing(0.0, 0.25, 0.1)
    timing.chunk(0.26, 1)
    assert not timing.attained(stream=True, output_tokens=1, ended_s=0.26)


def test_a_whole_answer_has_its_tokens_time() -> None:
    timing = Timing(0.0, 0.25, 0.1)
    assert timing.attained(stream=False, output_tokens=10, ended_s=1.25)
    assert not timing.attained(stream=False, output_tokens=10, ended_s=1.26)


@given(st.lists(st.floats(0, 1000), max_size=50))
def test_a_histogram_loses_nothing(values: list[float]) -> None:
    one, two = Histogram(), Histogram()
    for value in values:
        one.add(value)
    two.merge(one)
    assert two.count == len(values)
    assert two.total == pytest.approx(sum(values))
    for bound_index, bound in enumerate(two.bounds):
        assert sum(two.counts[: bound_index + 1]) == sum(v <= bound for v in values)


@pytest.mark.parametrize(
    "said", [b'{"detail":"Not Found"}', b'{"error":"Unauthorized"}', b"<html>", b"", b"null", b"[1]"]
)
@pytest.mark.parametrize("dialect", list(Dialect))
def test_every_error_of_an_engine_gets_the_clients_shape(said: bytes, dialect: Dialect) -> None:
    assert is_shaped(dialect, reshape(dialect, 404, said))


def test_an_error_that_is_right_already_passes_byte_for_byte() -> None:
    said = b'{"error": {"message":"m","type":"BadRequestError","param":null,"code":400}}'
    assert reshape(Dialect.OPENAI, 400, said) is said
    assert json.loads(reshape(Dialect.ANTHROPIC, 400, said))["error"] == {
        "type": "invalid_request_error",
        "message": "m",
    }


@pytest.mark.parametrize("dialect", list(Dialect))
def test_errors_in_streams_are_one_event_that_carries_the_same(dialect: Dialect) -> None:
    error = Overloaded("full", retry_after_s=1)
    event = error_event(dialect, error)
    assert event.count(b"\n\n") == 1 and event.endswith(b"\n\n")
    body = json.loads(event.partition(b"data: ")[2])
    assert body["error"]["message"] == "full" == json.loads(error_body(dialect, error))["error"]["message"]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.booleans()), max_size=30), st.sampled_from([None, 2, 4, 8]))
def test_no_gpu_is_held_twice_and_groups_are_of_one_island(steps: list[tuple[int, bool]], size: int | None) -> None:
    islands = None if size is None else islands_of([f"GPU-{number}" for number in range(16)], size)
    book = GpuBook(islands)
    for number, (tp, give_back) in enumerate(steps):
        try:
            got = book.take(str(number), tp)
        except NoRoom:
            assert islands is not None
            taken = {gpu for held in book.held.values() for gpu in held}
            assert all(len(set(island) - taken) < tp for island in islands)
            continue
        assert len(got) == tp
        if islands is None:
            first = int(got[0])
            assert first % tp == 0 and got == tuple(str(gpu) for gpu in range(first, first + tp)), "neighbours"
        else:
            assert any(set(got) <= set(island) for island in islands)
        if give_back:
            book.give_back(str(number))
        gpus = [gpu for group in book.held.values() for gpu in group]
        assert len(gpus) == len(set(gpus))


def test_small_groups_fill_an_island_before_they_open_another() -> None:
    book = GpuBook(islands_of([str(number) for number in range(16)], 8))
    for name in "abcd":
        book.take(name, 2)
    assert book.take("large", 8) == tuple(str(number) for number in range(8, 16))


def test_gpus_that_nobody_has_told_yet() -> None:
    book = GpuBook(())
    with pytest.raises(NoRoom, match="not known yet"):
        book.take("a-1", 1)
    book.hold("b-1", ["GPU-one"])
    book.know((("GPU-one", "GPU-two"),))
    assert book.take("a-1", 1) == ("GPU-two",)


def test_reads_an_azure_trace(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    arrivals = list(read_azure(file))
    assert [(a.input_tokens, a.output_tokens) for a in arrivals] == [(374, 44), (396, 109)]
    assert arrivals[1].at_s == pytest.approx(4.314579)
    assert window(arrivals, 4.0, 10.0) == [Arrival(pytest.approx(0.314579), 396, 109)]


def test_reads_the_layout_of_2024(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,5,6\n")
    assert list(read_azure(file)) == [Arrival(0.0, 5, 6)]


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n",
                                  "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,x,2\n"])  # fmt: skip
def test_what_is_no_trace_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(TraceError, match=r"t\.csv"):
        list(read_azure(file))


@pytest.mark.parametrize("islands", [None, islands_of([str(number) for number in range(8)], 4)])
def test_a_gpu_that_is_taken_out_is_given_to_nobody(islands: tuple | None) -> None:
    book = GpuBook(islands)
    held = book.take("before", 2)
    book.exclude((held[0], "2"))
    assert book.held["before"] == held, "who has it keeps it"
    assert "2" not in {gpu for holder in "abc" for gpu in book.take(holder, 1)}
    book.exclude(())
    assert "2" in {gpu for holder in "def" for gpu in book.take(holder, 1)}


def test_a_faster_clock_is_faster_in_all_it_says() -> None:
    real, fast = SystemClock(), SystemClock(1000.0)
    before_s, wall_s, real_s = fast.now_s(), fast.wall_s(), real.now_s()
    asyncio.run(fast.sleep(20.0))
    asyncio.run(fast.sleep_until(before_s + 40.0))
    passed_s = real.now_s() - real_s
    assert 0.04 <= passed_s < 20, "forty of its seconds are forty milliseconds"
    assert fast.now_s() - before_s == pytest.approx(fast.wall_s() - wall_s, rel=0.2)


def server() -> Instance:
    pool = PoolSpec("all", ("S", "M", "L"), 1, 1, 0, InstanceLimits(8, 0, 512))
    return Instance("i", "h", 1, pool, Breaker(3, 1, 8), None, now_s=0.0)


def test_a_server_without_energy_counters_is_asked_once() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(404)

    async def read() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            counters, one = EngineCounters(http, SystemClock()), server()
            for _ in range(5):  # as the ledger does
                assert await counters.read([one] if counters.covers(one) else []) == {}
            assert not counters.covers(one) and counters.covers(server())

    asyncio.run(read())
    assert len(asked) == 1
