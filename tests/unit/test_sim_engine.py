"""The engine of simulations against the step-by-step one, and against answers that can be worked out by hand."""

import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.engine_model import load_engine_model
from simulator.des_engine import NEVER_S, DesEngine, Seq
from simulator.engine import Ask, Engine, EngineLimits
from simulator.sketch import GapSketches, Sketch
from simulator.speech import Speech
from simulator.step_costs import CostBook, DecodeRun
from simulator.tokens import Tokenizer

SPEECH = Speech.of(Tokenizer().word_count)
TBT_LIMIT_S = 0.04


@dataclass(frozen=True)
class Load:
    at_s: float
    prompt: int
    output: int
    priority: int = 0
    abort_s: float | None = None


@dataclass
class Ended:
    """What both engines must agree on."""

    first_s: dict[int, float] = field(default_factory=dict)
    finish_s: dict[int, float] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    joules: float = 0.0
    ended_s: float = 0.0
    counters: tuple[int, int, int, int] = (0, 0, 0, 0)


def model(kv_tokens: int | None = None, profile: str = "llama-2-70b"):
    whole = load_engine_model(profile)
    if kv_tokens is not None:
        from dataclasses import replace

        points = {tp: replace(point, kv_tokens=kv_tokens) for tp, point in whole.points.items()}
        whole = replace(whole, points=points)
    return whole


def by_steps(loads: list[Load], clocks: list[tuple[float, int]], limits: EngineLimits, kv: int | None) -> Ended:
    engine = Engine(model(kv), 8, 1980, limits, SPEECH)
    todo = sorted(
        [(load.at_s, 0, n) for n, load in enumerate(loads)]
        + [(load.abort_s, 1, n) for n, load in enumerate(loads) if load.abort_s is not None]
        + [(at_s, 2, mhz) for at_s, mhz in clocks]
    )
    out, now_s, last_s = Ended(), 0.0, {}
    while todo or engine.has_work:
        while todo and todo[0][0] <= now_s:
            _, kind, n = todo.pop(0)
            if kind == 0:
                load = loads[n]
                engine.add(
                    Ask(f"{n}", [1] * load.prompt, load.output, own_end=load.output, priority=load.priority), now_s
                )
            elif kind == 1:
                engine.abort(f"{n}")
            else:
                engine.set_clock(n)
        if not engine.has_work:
            if todo:
                now_s = todo[0][0]
            continue
        result = engine.step(now_s)
        now_s += result.duration_s
        for one, _ in result.emitted:
            n = int(one.ask.id)
            out.first_s.setdefault(n, now_s)
            if n in last_s:
                out.gaps.append(now_s - last_s[n])
                out.late[n] = out.late.get(n, 0) + (now_s - last_s[n] > TBT_LIMIT_S)
            last_s[n] = now_s
        for one in result.finished:
            out.finish_s[int(one.ask.id)] = now_s
    out.joules, out.ended_s = engine.joules(now_s), now_s
    c = engine.counters
    out.counters = (c.steps, c.prompt_tokens, c.generation_tokens, c.preemptions)
    return out


def by_events(loads: list[Load], clocks: list[tuple[float, int]], limits: EngineLimits, kv: int | None) -> Ended:
    gaps, drawn = GapSketches(1), []
    engine = DesEngine(
        CostBook(model(kv)), 8, 1980, limits, gaps, tbt_limit_s=TBT_LIMIT_S, on_watts=lambda t, w: drawn.append((t, w))
    )
    todo = sorted(
        [(load.at_s, 0, n) for n, load in enumerate(loads)]
        + [(load.abort_s, 1, n) for n, load in enumerate(loads) if load.abort_s is not None]
        + [(at_s, 2, mhz) for at_s, mhz in clocks]
    )
    out, seqs, now_s = Ended(), {}, 0.0
    while todo or engine.next_event_s() < NEVER_S:
        event_s = engine.next_event_s()
        if todo and todo[0][0] < event_s:
            now_s = todo[0][0]
            while todo and todo[0][0] == now_s:
                _, kind, n = todo.pop(0)
                if kind == 0:
                    load = loads[n]
                    seqs[n] = engine.add(load.prompt, load.output, now_s, priority=load.priority, owner=n)
                elif kind == 1:
                    if n in seqs:
                        engine.abort(seqs[n], now_s)
                else:
                    engine.set_clock(n, now_s)
            continue
        now_s = event_s
        firsts, finished = engine.advance(now_s)
        for seq in firsts:
            out.first_s[seq.owner] = seq.first_s
        for seq in finished:
            out.finish_s[seq.owner] = seq.finished_s
            out.late[seq.owner] = seq.gaps_late
    joules = engine.joules_at(now_s)
    out.joules, out.ended_s = joules.prefill + joules.decode + joules.idle, now_s
    c = engine.counters
    out.counters = (c.steps, c.prompt_tokens, c.generation_tokens, c.preemptions)
    assert gaps.pooled().count == c.generation_tokens - len(out.first_s)
    out.gaps = gaps.pooled()
    integral = sum(w * (now_s - t) for t, w in drawn)
    assert integral == pytest.approx(out.joules, rel=1e-9, abs=1e-6)
    assert engine.kv_used() == 0 and engine.running_count == 0 and not engine.has_work
    return out


def agree(loads: list[Load], clocks: list[tuple[float, int]], limits: EngineLimits, kv: int | None = None) -> Ended:
    steps, events = by_steps(loads, clocks, limits, kv), by_events(loads, clocks, limits, kv)
    assert events.counters == steps.counters
    assert events.first_s == pytest.approx(steps.first_s, rel=1e-9)
    assert events.finish_s == pytest.approx(steps.finish_s, rel=1e-9)
    assert {n: late for n, late in events.late.items()} == {n: steps.late.get(n, 0) for n in events.late}
    assert events.ended_s == pytest.approx(steps.ended_s, rel=1e-9)
    assert events.joules == pytest.approx(steps.joules, rel=1e-9)
    expected = Sketch()
    for gap in steps.gaps:
        expected.add(gap)
    for q in (0.1, 0.5, 0.9, 0.99, 1.0):
        if expected.count:
            assert events.gaps.quantile(q) == pytest.approx(expected.quantile(q), rel=0.003)
    return steps


TIMES = st.floats(0, 4, allow_nan=False)
LOADS = st.lists(
    st.builds(
        Load, at_s=TIMES, prompt=st.integers(1, 400), output=st.integers(1, 60), priority=st.integers(0, 2),
        abort_s=st.one_of(st.none(), st.none(), TIMES),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    LOADS,
    st.lists(st.tuples(TIMES, st.sampled_from([800, 1200, 1980])), max_size=3),
    st.sampled_from([EngineLimits(256, 2048, 2048), EngineLimits(4, 600, 64), EngineLimits(8, 1024, 5)]),
    st.sampled_from([None, 600, 1500]),
)
def test_it_decides_what_the_step_by_step_engine_decides(loads, clocks, limits, kv) -> None:
    agree(*apart(loads, clocks, limits), limits, kv)


def apart(loads, clocks, limits):
    """At equal times either order is right, so no two times are equal. A prompt leaves room for an answer."""
    loads = [
        Load(
            load.at_s + n * 1.37e-5,
            min(load.prompt, limits.max_model_len - 1),
            load.output,
            load.priority,
            None if load.abort_s is None else load.at_s + load.abort_s + n * 1.11e-5 + 7e-6,
        )
        for n, load in enumerate(loads)
    ]
    return loads, [(at_s + n * 1.73e-5 + 3e-6, mhz) for n, (at_s, mhz) in enumerate(clocks)]


@pytest.mark.parametrize("seed", range(6))
def test_a_busy_hour_with_little_room_preempts_alike(seed: int) -> None:
    rng = random.Random(seed)
    at_s, loads = 0.0, []
    for _ in range(150):
        at_s += rng.expovariate(6.0)
        loads.append(Load(at_s, rng.randint(20, 900), rng.randint(1, 300)))
    limits = EngineLimits(32, 2048, 512)
    ended = agree(loads, [(5.0, 1200), (12.0, 1600)], limits, kv=6000)
    assert ended.counters[3] > 0


def alone(prompt: int, output: int, clock_mhz: int = 1980) -> tuple[Seq, DesEngine]:
    engine = DesEngine(CostBook(model()), 8, clock_mhz, EngineLimits(), GapSketches(1))
    seq = engine.add(prompt, output, 0.0)
    while (at_s := engine.next_event_s()) < NEVER_S:
        engine.advance(at_s)
    return seq, engine


def test_one_request_alone_takes_its_prefill_and_its_steps() -> None:
    m = model()
    seq, engine = alone(700, 250)
    prefill_s = m.prefill_s(8, 1980, 700)
    decode_s = sum(m.decode_step_s(8, 1980, 1, 700 + k) for k in range(1, 250))
    assert seq.first_s == pytest.approx(prefill_s)
    assert seq.finished_s == pytest.approx(prefill_s + decode_s)
    assert engine.joules.prefill == pytest.approx(prefill_s * m.watts(8, 1980, 0, 700))
    assert engine.joules.decode == pytest.approx(decode_s * m.watts(8, 1980, 1))
    assert engine.joules.idle == 0.0


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    m = model()
    seq, _ = alone(5000, 2)
    chunks_s = [m.prefill_s(8, 1980, tokens) for tokens in (2048, 2048, 904)]
    assert seq.first_s == pytest.approx(sum(chunks_s))


def test_a_full_batch_decodes_together() -> None:
    m = model()
    engine = DesEngine(CostBook(m), 8, 1980, EngineLimits(64, 8192, 64 * 20), GapSketches(1))
    seqs = [engine.add(20, 101, 0.0) for _ in range(64)]
    while (at_s := engine.next_event_s()) < NEVER_S:
        engine.advance(at_s)
    expected_s = m.prefill_s(8, 1980, 64 * 20) + sum(m.decode_step_s(8, 1980, 64, 64 * (20 + k)) for k in range(1, 101))
    assert all(seq.finished_s == pytest.approx(expected_s) for seq in seqs)
    assert engine.counters.generation_tokens == 64 * 101


def test_prefill_of_one_at_a_time_is_an_m_d_1_queue() -> None:
    """Answers of one token and a batch of one: a fixed service time. Mean wait by Pollaczek and Khinchine."""
    m, rng = model(), random.Random(7)
    engine = DesEngine(CostBook(m), 8, 1980, EngineLimits(max_num_seqs=1), GapSketches(1))
    service_s = m.prefill_s(8, 1980, 2000)
    rho, count, at_s, waits = 0.7, 60_000, 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rho / service_s)
        while engine.next_event_s() <= at_s:
            _, finished = engine.advance(engine.next_event_s())
            waits += [seq.finished_s - seq.owner - service_s for seq in finished]
        engine.add(2000, 1, at_s, owner=at_s)
    expected_s = rho * service_s / (2 * (1 - rho))
    assert sum(waits) / len(waits) == pytest.approx(expected_s, rel=0.05)


def test_joules_and_tokens_of_a_moment_lie_on_the_way() -> None:
    seq_engine = DesEngine(CostBook(model()), 8, 1980, EngineLimits(), GapSketches(1))
    seq = seq_engine.add(300, 100, 0.0)
    first_s = seq_engine.next_event_s()
    seq_engine.advance(first_s)
    end_s = seq_engine.next_event_s()
    middle_s = (first_s + end_s) / 2
    tokens = [seq_engine.generated(seq, first_s + k * (end_s - first_s) / 10) for k in range(11)]
    assert tokens == sorted(tokens) and tokens[0] == 1 and 45 <= tokens[5] <= 55 and tokens[10] == 100
    at_middle = seq_engine.joules_at(middle_s)
    seq_engine.advance(end_s)
    assert at_middle.decode == pytest.approx(seq_engine.joules.decode / 2)


@given(st.floats(1e-3, 1e-1), st.floats(0, 1e-4), st.integers(1, 500), st.floats(0, 1))
def test_a_run_counts_its_steps(first_s: float, slope_s: float, steps: int, share: float) -> None:
    run = DecodeRun(first_s, slope_s)
    elapsed_s = share * run.total_s(steps)
    begun = run.steps_begun(elapsed_s)
    assert run.total_s(begun) >= elapsed_s and (begun == 0 or run.total_s(begun - 1) < elapsed_s or begun == 1)
    limit_s = first_s + share * (run.last_s(steps) - first_s)
    assert abs(run.later_than(limit_s, steps) - sum(first_s + k * slope_s > limit_s for k in range(steps))) <= 1


def test_a_sketch_answers_the_nearest_rank_from_above() -> None:
    rng, sketch = random.Random(1), Sketch()
    values = [rng.lognormvariate(-3, 1) for _ in range(5000)]
    for value in values:
        sketch.add(value)
    for q in (0.01, 0.5, 0.9, 0.99, 1.0):
        exact = sorted(values)[math.ceil(q * len(values)) - 1]
        assert exact <= sketch.quantile(q) <= exact * 1.0026
    assert Sketch().quantile(0.5) is None


@pytest.mark.parametrize("late_steps", range(8))
def test_a_sequence_that_went_elsewhere_is_nothing_to_its_first_engine_any_more(late_steps: int) -> None:
    """Also where both engines count the same steps, so that what one remembers of its end is what the other plans."""
    gaps, book = GapSketches(1), CostBook(model())
    here, there = (DesEngine(book, 8, 1980, EngineLimits(), gaps) for _ in range(2))
    companions = [here.add(10, 400, 0.0), there.add(10, 400, 0.0)]
    moving = here.add(20, 60, 0.0)
    step_s = book.model.decode_step_s(8, 1980, 2, 60)
    for engine in (here, there):
        run_to(engine, 20 * step_s)
    here.abort(moving, 20 * step_s)
    run_to(here, (22 + late_steps) * step_s)
    run_to(there, (22 + late_steps) * step_s)
    out, now_s = moving.generated, (22 + late_steps) * step_s
    assert 0 < out < 60 and moving.finished_s is None
    moved = there.adopt(moving, now_s)
    ended = run_to(here, 1000.0) + run_to(there, 1000.0)
    assert set(ended) == {*companions, moved} and len(ended) == 3
    assert moved.generated == moved.end == 60 and moving.generated == out
    assert here.counters.generation_tokens + there.counters.generation_tokens == 400 + 400 + 60


def run_to(engine: DesEngine, until_s: float) -> list[Seq]:
    """Those that ended by then."""
    ended: list[Seq] = []
    while (due_s := engine.next_event_s()) <= until_s:
        ended += engine.advance(due_s)[1]
    return ended
