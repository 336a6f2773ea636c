"""The engine core: batching, room, order, joules, and answers that continue identically elsewhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.engine_model import load_engine_model
from simulator.engine import Ask, Engine, EngineLimits, Running
from simulator.speech import Speech, mean_length
from simulator.tokens import END_ID, Tokenizer

TOKENIZER = Tokenizer()
SPEECH = Speech.of(TOKENIZER.word_count)


def new_engine(profile: str = "llama-3.1-8b", tp: int = 1, **limits: int) -> Engine:
    return Engine(load_engine_model(profile), tp, 1980, EngineLimits(**limits), SPEECH)


def ask(id: str = "a", prompt: list[int] | None = None, **wishes: object) -> Ask:
    given_ids = prompt or TOKENIZER.encode(f" say something about {id} and the world")
    return Ask(**({"id": id, "prompt": given_ids, "max_tokens": 64} | wishes))  # type: ignore[arg-type]


def run(engine: Engine, now_s: float = 0.0) -> tuple[float, list[Running]]:
    """Steps until the engine is empty."""
    done: list[Running] = []
    while engine.has_work:
        result = engine.step(now_s)
        now_s += result.duration_s
        done += result.finished
    return now_s, done


def answer(prompt: list[int], **wishes: object) -> Running:
    engine = new_engine()
    one = engine.add(ask(prompt=prompt, **wishes), 0.0)
    run(engine)
    return one


@settings(deadline=None)
@given(st.lists(st.integers(0, TOKENIZER.size - 1), min_size=1, max_size=40), st.data())
def test_an_answer_continues_identically_elsewhere(prompt: list[int], data: st.DataObject) -> None:
    whole = answer(prompt, max_tokens=80)
    cut = data.draw(st.integers(0, len(whole.generated) - 1))
    rest = answer([*prompt, *whole.generated[:cut]], max_tokens=80 - cut)
    assert whole.generated[:cut] + rest.generated == whole.generated
    assert rest.finish_reason == whole.finish_reason


def test_answers_do_not_depend_on_the_company() -> None:
    alone = answer(ask("x").prompt).generated  # type: ignore[arg-type]
    engine = new_engine(max_num_seqs=4)
    crowd = [engine.add(ask(f"{n}", priority=n % 3), 0.0) for n in range(9)]
    one = engine.add(ask("x"), 0.0)
    _, done = run(engine)
    assert one.generated == alone
    assert len(done) == 10 and all(other.finish_reason for other in crowd)


def test_lengths_spread_as_promised() -> None:
    means = [mean_length([seed, seed * 7 % 2000, 3]) for seed in range(300)]
    assert 20 <= min(means) < 25 and 500 < max(means) <= 600
    engine = new_engine()
    head = TOKENIZER.encode(TOKENIZER.filler(16, seed=3))
    for n in range(200):
        engine.add(ask(f"{n}", prompt=[*head, *TOKENIZER.encode(f" {n}")], max_tokens=5000), 0.0)
    _, done = run(engine)
    mean = sum(len(one.generated) for one in done) / len(done)
    assert mean == pytest.approx(mean_length(head), rel=0.3)


def test_how_answers_end() -> None:
    prompt = TOKENIZER.encode(" an answer that ends by itself")
    own = answer(prompt, max_tokens=900, own_end=33)
    assert (len(own.generated), own.generated[-1], own.finish_reason) == (33, END_ID, "stop")
    assert END_ID not in own.generated[:-1]
    assert answer(prompt, max_tokens=10, own_end=33).finish_reason == "length"
    long = answer(prompt, max_tokens=3000, ignore_eos=True)
    assert (len(long.generated), long.finish_reason) == (3000, "length") and END_ID not in long.generated
    least = answer(prompt, max_tokens=3000, min_tokens=700)
    assert len(least.generated) > 700 and END_ID not in least.generated[:700]
    word = long.generated[5]
    stopped = answer(prompt, max_tokens=3000, ignore_eos=True, stop_ids=frozenset([word]))
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", word)
    forced = answer(prompt, forced=(65, 66))
    assert (forced.generated, forced.finish_reason) == ([65, 66, END_ID], "stop")


def test_the_context_ends_an_answer_and_refuses_a_prompt() -> None:
    engine = new_engine(max_model_len=50)
    one = engine.add(ask(prompt=[97] * 40, ignore_eos=True, max_tokens=1000), 0.0)
    run(engine)
    assert (one.total, one.finish_reason) == (50, "length")
    for size in (0, 50, 51):
        with pytest.raises(ValueError, match="1 to 49 tokens"):
            engine.add(Ask("b", [97] * size, 5), 0.0)


def test_prefill_is_chunked_and_decodes_go_first() -> None:
    engine = new_engine()
    engine.add(ask("short", ignore_eos=True), 0.0)
    engine.step(0.0)
    engine.add(ask("long", prompt=[97] * 5000), 0.0)
    results = [engine.step(float(n)) for n in range(1, 4)]
    assert [result.prefill_tokens for result in results] == [2047, 2047, 906]
    assert [[one.ask.id for one, _ in result.emitted] for result in results] == [
        ["short"], ["short"], ["short", "long"],
    ]  # fmt: skip


def test_slots_and_priorities() -> None:
    engine = new_engine(max_num_seqs=2)
    for name, priority in (("a", 0), ("b", 0), ("late", 5), ("soon", -5), ("later", 5)):
        engine.add(ask(name, priority=priority, own_end=4), 0.0)
    engine.step(0.0)
    assert {one.ask.id for one in engine.running} == {"soon", "a"}
    assert engine.waiting_count == 3
    _, done = run(engine, 1.0)
    assert [one.ask.id for one in done] == ["soon", "a", "b", "late", "later"]


def test_overflow_preempts_the_youngest_and_loses_nothing() -> None:
    engine = new_engine("llama-3.1-70b", tp=2, max_model_len=8000)
    prompts = {f"{n}": [97 + n] * 2000 for n in range(4)}
    for name, prompt in prompts.items():
        engine.add(ask(name, prompt=prompt, max_tokens=400, ignore_eos=True), 0.0)
    peak, now_s, done = 0, 0.0, []
    while engine.has_work:
        result = engine.step(now_s)
        now_s += result.duration_s
        peak = max(peak, engine.kv_used)
        done += result.finished
    assert engine.counters.preemptions > 0
    assert peak <= engine.kv_tokens and engine.kv_used == 0
    assert {len(one.generated) for one in done} == {400}
    preempted = next(one for one in done if one.ask.id == "3")
    assert preempted.generated == answer(prompts["3"], max_tokens=400, ignore_eos=True).generated


def test_abort_frees_at_once() -> None:
    engine = new_engine(max_num_seqs=1)
    engine.add(ask("runs", ignore_eos=True), 0.0)
    engine.add(ask("waits"), 0.0)
    engine.step(0.0)
    assert engine.abort("waits") and engine.abort("runs")
    assert not engine.abort("runs")
    assert not engine.has_work and engine.kv_used == 0 and not engine.running


def test_joules_are_the_integral_of_watts() -> None:
    engine = new_engine()
    assert engine.joules(10.0) == pytest.approx(1150)
    engine.add(ask(ignore_eos=True, max_tokens=20), 10.0)
    now_s, expected = 10.0, 1150.0
    while engine.has_work:
        result = engine.step(now_s)
        assert engine.joules(now_s) == pytest.approx(expected)
        assert engine.joules(now_s + result.duration_s / 2) == pytest.approx(
            expected + result.watts * result.duration_s / 2
        )
        now_s += result.duration_s
        expected += result.watts * result.duration_s
    assert engine.joules(now_s + 1) == pytest.approx(expected + 115)
    assert engine.watts(now_s + 1) == 115


def test_a_lower_clock_is_slower_and_draws_less() -> None:
    def load(clock_mhz: int) -> tuple[float, float]:
        engine = new_engine()
        engine.set_clock(clock_mhz)
        for n in range(20):
            engine.add(ask(f"{n}", ignore_eos=True), 0.0)
        end_s, _ = run(engine)
        return end_s, engine.joules(end_s)

    (fast_s, fast_j), (slow_s, slow_j) = load(1980), load(1200)
    assert slow_s > fast_s and slow_j < fast_j
