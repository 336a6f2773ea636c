"""An answer longer than predicted: each way to go on is the cheapest in a case of its own, and only its costs say so."""

import pytest
from msgspec import structs

from core.instances import State
from core.request import Ask
from core.service import Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from pools.breaker import Breaker
from pools.instance import Instance, Slot
from pools.overrun import Site, Stream, choose, elsewhere, expected_rest, spent_j
from predictor.distribution import lognormal
from profiles.engine_model import load_engine_model

MODEL = load_engine_model("llama-3.1-70b")
LOW, HIGH = MODEL.clocks_mhz[0], MODEL.clocks_mhz[-1]
STREAM = Stream(200, 120, 4000, 0, 0.1, lognormal(100, 400))


def site(name: str = "here", **more: object) -> Site:
    return structs.replace(Site(name, MODEL, 8, HIGH, 8, 8 * 400), **more)


def test_whoever_keeps_its_promise_where_it_is_stays() -> None:
    choice = choose(STREAM, site(), [site("there")])
    assert (choice.action, choice.site) == ("stay", "here")
    assert len(choice.joules) == 2  # the clock is at its highest: there is no boost


def slow() -> Site:
    """So many beside it that its steps are late even at the highest clock."""
    return next(
        site(tp=4, running=n, kv_tokens=n * 1000)
        for n in range(1, 4000)
        if MODEL.decode_step_s(4, HIGH, n, n * 1000) > STREAM.tbt_limit_s
    )


def test_late_steps_make_it_leave() -> None:
    stream = structs.replace(STREAM, out_tokens=2000, prompt_tokens=10)
    choice = choose(
        stream, slow(), [site("empty", running=1, kv_tokens=2000), site("there", running=64, kv_tokens=25_600)]
    )
    assert (choice.action, choice.site) == ("move", "there"), "an empty instance would make every token dearer"


def test_a_boost_where_there_is_nowhere_to_go_and_few_are_beside() -> None:
    alone = site(tp=2, clock_mhz=LOW, running=1, kv_tokens=4000)
    limit_s = 1.01 * MODEL.decode_step_s(2, HIGH, 1, 4000)
    stream = structs.replace(
        STREAM, out_tokens=2000, prompt_tokens=2000, tbt_limit_s=limit_s, length=lognormal(2100, 2400)
    )
    assert MODEL.decode_step_s(2, LOW, 1, 4000) > limit_s
    choice = choose(stream, alone)
    assert choice.action == "boost" and choice.clock_mhz > LOW


def test_no_room_makes_it_leave() -> None:
    here = site(kv_tokens=8 * 400, kv_room=8 * 400)
    stream = structs.replace(STREAM, out_tokens=3000)
    assert choose(stream, here, [site("there", running=2, kv_tokens=700)]).action == "move"
    assert choose(stream, structs.replace(here, kv_room=10**6), [site("there", running=2)]).action == "stay"


def test_what_is_cached_there_is_not_paid_for() -> None:
    stream = structs.replace(STREAM, prompt_tokens=8000)
    full, cached = (choose(stream, slow(), [site("there", cached_tokens=n)]) for n in (0, 8000))
    assert cached.joules[-1] < full.joules[-1]


POOL = PoolSpec("all", ("S", "M", "L"), 2, 8, HIGH, InstanceLimits(64))
SPEC = ServiceSpec("m", "m", 16384, Slo(), Edges(), (POOL,), LauncherSpec("static"))


def instance(name: str) -> Instance:
    made = Instance(name, "h", 1, POOL, Breaker(3, 1, 8), MODEL, now_s=0.0)
    made.set_state(State.READY, 0.0)
    return made


def test_what_an_engine_says_of_its_prefix_cache_is_expected_of_the_next_prompt() -> None:
    here, there = instance("here"), instance("there")
    (before,) = elsewhere(SPEC, [here, there], here, STREAM, 0.0)
    slot = Slot(there, Ask("r", 0, 100, 1, 200, 50, 0.0, 10.0, 0.1), lambda: None)
    slot.cached((90, 100))
    slot.cached(None)  # an engine that says nothing of it teaches nothing
    (after,) = elsewhere(SPEC, [here, there], here, STREAM, 0.0)
    assert (before.cached_tokens, after.cached_tokens) == (0, 180), "of a prompt of 200"
    for _ in range(500):
        slot.cached((0, 100))
    (later,) = elsewhere(SPEC, [here, there], here, STREAM, 0.0)
    assert later.cached_tokens == 0


def test_a_promise_already_broken_is_no_reason_to_pay_for_a_move() -> None:
    broken = structs.replace(STREAM, late=50)
    here, there = slow(), site("there", running=4, kv_tokens=2000)
    gain = choose(STREAM, here, [there]).joules
    lost = choose(broken, here, [there]).joules
    assert lost[-1] - lost[0] > gain[-1] - gain[0]


@pytest.mark.parametrize("out", [100, 400, 2000])
def test_the_longer_it_has_run_the_longer_it_will(out: int) -> None:
    rest = expected_rest(structs.replace(STREAM, out_tokens=out))
    assert rest > expected_rest(structs.replace(STREAM, out_tokens=out // 2))
    assert rest <= STREAM.most_tokens - out


def test_what_was_spent_grows_with_the_answer() -> None:
    assert spent_j(structs.replace(STREAM, out_tokens=400), site()) > spent_j(STREAM, site()) > 0


def test_the_lognormal_has_its_quantiles() -> None:
    made = lognormal(100, 400)
    assert made.quantile(0.5) == pytest.approx(100, rel=0.02)
    assert made.quantile(0.9) == pytest.approx(400, rel=0.03)
    assert lognormal(50, 50).quantile(0.9) < 53
