"""What placing a request would mean: the time to its first token, the steps of the others, the joules."""

from hypothesis import given
from hypothesis import strategies as st

from core.request import Ask
from core.service import STEP_TOKENS, InstanceLimits, PoolSpec
from pools.breaker import Breaker
from pools.instance import Instance, Slot
from pools.score import added_joules, forecast
from profiles.engine_model import load_engine_model

MODEL = load_engine_model("llama-2-70b")
AT = (8, 1980)
TBT_S = 0.1


def instance(step_tokens: int = 512, slots: int = 256, model: object = MODEL) -> Instance:
    pool = PoolSpec("all", ("S", "M", "L"), 1, *AT, InstanceLimits(slots, 0, step_tokens))
    return Instance("i", "h", 1, pool, Breaker(3, 1, 8), model, now_s=0.0)  # type: ignore[arg-type]


def ask(tokens: int = 100, sequences: int = 1, tbt_s: float = TBT_S) -> Ask:
    return Ask("r", 0, tokens, sequences, sequences * (tokens + 200), 150, 0.0, 10.0, tbt_s)


def hold(held: Instance, number: int, tokens: int = 100, *, decoding: bool = True, tbt_s: float = TBT_S) -> list[Slot]:
    slots = [held.hold(ask(tokens, tbt_s=tbt_s), lambda: None) for _ in range(number)]
    for slot in slots if decoding else ():
        slot.first_token()
    return slots


def test_a_long_prompt_takes_a_step_per_chunk() -> None:
    whole_s, rest_s = MODEL.prefill_s(*AT, 512), MODEL.prefill_s(*AT, 300)
    assert forecast(instance(), ask(3 * 512 + 300)).ttft_s == 3 * whole_s + rest_s
    assert forecast(instance(), ask(3 * 512)).ttft_s == 3 * whole_s


def test_decodes_take_their_tokens_of_each_step() -> None:
    held = instance()
    hold(held, 112)
    context = held.kv_tokens + 1200
    step_s, rest_s = (MODEL.step_s(*AT, tokens, 113, context) for tokens in (400, 200))
    under_way_s = MODEL.decode_step_s(*AT, 112, held.kv_tokens)
    assert forecast(held, ask(1000)).ttft_s == under_way_s + 2 * step_s + rest_s


def test_prompts_ahead_come_first_and_leave_with_their_first_token() -> None:
    held = instance()
    slots = hold(held, 3, 2000, decoding=False)
    behind_s = forecast(held, ask()).ttft_s
    assert behind_s > 6100 / 512 * MODEL.prefill_s(*AT, 512) * 0.9
    for slot in slots:
        slot.first_token()
    assert forecast(held, ask()).ttft_s < behind_s / 5


def test_step_tokens_that_nobody_names_are_those_of_vllm() -> None:
    assert forecast(instance(0), ask(5000)) == forecast(instance(STEP_TOKENS), ask(5000))


@given(st.integers(0, 200), st.integers(0, 20_000), st.integers(0, 3000), st.integers(1, 8000))
def test_more_waiting_prefill_is_never_sooner(running: int, waiting: int, more: int, tokens: int) -> None:
    held = instance()
    hold(held, running)
    held.prefill_tokens = waiting
    before = forecast(held, ask(tokens))
    held.prefill_tokens += more
    after = forecast(held, ask(tokens))
    assert after.ttft_s >= before.ttft_s - 1e-12
    assert added_joules(held, ask(tokens)) > 0


def test_a_chunk_beside_many_decodes_counts_for_their_tbt() -> None:
    held = instance(1024)
    hold(held, 190)
    assert MODEL.decode_step_s(*AT, 191, held.kv_tokens + 300) < TBT_S < MODEL.step_s(*AT, 834, 191, held.kv_tokens)
    assert forecast(held, ask(100)).keeps_others
    long = forecast(held, ask(3000))
    assert not long.keeps_others and long.bearable


def test_a_chunk_too_long_for_anybody_is_not_the_placing_that_harms() -> None:
    held = instance(2048)
    hold(held, 4)
    assert MODEL.step_s(*AT, 2044, 1, 0) > TBT_S
    assert forecast(held, ask(3000)).keeps_others


def test_the_tightest_limit_there_counts_and_goes_with_its_owner() -> None:
    held = instance()
    hold(held, 60)
    (strict,) = hold(held, 1, tbt_s=0.053)  # a chunk beside a single answer keeps that
    assert not forecast(held, ask(1000)).keeps_others
    strict.release()
    assert held.tbt.limit_s == TBT_S
    assert forecast(held, ask(1000)).keeps_others


def test_without_a_model_the_fuller_one_costs_less() -> None:
    full, empty = instance(model=None), instance(model=None)
    hold(full, 2)
    assert added_joules(full, ask()) < added_joules(empty, ask())
    assert forecast(full, ask()).keeps_others and forecast(full, ask()).ttft_s == 0


def test_prompts_wait_for_the_engine_until_one_step_is_left() -> None:
    held = instance()
    assert held.takes_prompt(ask(4000), 0.0), "an empty one takes anything"
    slot = held.hold(ask(4000), lambda: None, 0.0, 1.0)
    assert held.prefill_left(0.0) == 4000 and not held.takes_prompt(ask(100), 0.0)
    assert held.prefill_left(0.5) == 2000 and not held.takes_prompt(ask(100), 0.5)
    assert 398 <= held.prefill_left(0.9) <= 400 and held.takes_prompt(ask(100), 0.9)
    assert held.prefill_left(7.0) == 1, "an overdue prompt is about to end"
    slot.first_token()
    assert held.prefill_left(0.1) == 0 and held.takes_prompt(ask(4000), 0.1)


def test_small_prompts_share_a_step() -> None:
    held = instance()
    held.hold(ask(200), lambda: None, 0.0, 0.5)
    assert held.takes_prompt(ask(300), 0.0)


def test_what_nobody_foretold_counts_whole() -> None:
    held = instance()
    held.hold(ask(4000), lambda: None)
    assert held.prefill_left(100.0) == 4000


def test_a_first_token_calls_for_the_next_prompt_once() -> None:
    held, called = instance(), []
    slot = held.hold(ask(4000), lambda: called.append(held.prefill_tokens))
    slot.first_token()
    slot.first_token()
    slot.release()
    assert called == [0, 0]
    other = held.hold(ask(4000), lambda: called.append(held.prefill_tokens))
    other.release()
    assert called == [0, 0, 0], "a release without a first token is told once"
