"""What the ablation switches off, and that it is on again afterwards."""

import numpy as np
import pytest

from bench.ablate import key, switched, worst
from bench.ablate_cases import AS_IS, VARIANTS
from bench.ablate_plans import Foreseen, fewer, regridded, slowed
from controller import health, planning
from pools.router import Router
from profiles.engine_model import load_engine_model

MODEL = load_engine_model("llama-2-70b")


def test_constants_are_switched_for_the_run_only() -> None:
    before, order = (planning.MEAN_ROOM, health.TRIMS), Router._fullest_first
    places = {"controller.planning:MEAN_ROOM": 3.0, "pools.router:Router._fullest_first": len}
    with pytest.raises(ZeroDivisionError), switched(places):
        assert planning.MEAN_ROOM == 3.0 and Router._fullest_first is len  # type: ignore[comparison-overlap]
        raise ZeroDivisionError
    assert before == (planning.MEAN_ROOM, health.TRIMS) and Router._fullest_first is order


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_every_variant_names_what_there_is(variant: object) -> None:
    with switched(variant.constants):  # type: ignore[attr-defined]
        pass


def test_variants_have_names_and_keys_of_their_own() -> None:
    assert (
        len({variant.name for variant in VARIANTS}) == len({key(variant, 0) for variant in VARIANTS}) == len(VARIANTS)
    )
    assert key(AS_IS, 0) != key(AS_IS, 1)


def test_a_finer_grid_agrees_where_clocks_were_measured() -> None:
    fine = regridded(MODEL, range(800, 1981, 20))
    for mhz in (800, 1200, 1980):
        assert fine.step_s(4, mhz, 400, 30, 9000) == pytest.approx(MODEL.step_s(4, mhz, 400, 30, 9000))
    assert MODEL.watts(4, 1200, 8) < fine.watts(4, 1300, 8) < MODEL.watts(4, 1400, 8)
    alone = fewer(MODEL, (8,), clocks=False)
    assert set(alone.points) == {8} and alone.clocks_mhz == (1980,)
    assert alone.step_s(8, 1980, 400, 30, 9000) == pytest.approx(MODEL.step_s(8, 1980, 400, 30, 9000))


def test_slower_engines_take_longer_for_every_step() -> None:
    slow = slowed(MODEL, 1.25)
    for prompt, running in ((0, 30), (400, 0), (400, 30)):
        assert slow.step_s(4, 1200, prompt, running, 9000) == pytest.approx(
            1.25 * MODEL.step_s(4, 1200, prompt, running, 9000)
        )
    assert slowed(MODEL, 1.0) == MODEL and key(AS_IS, 0, 1.25) != key(AS_IS, 0)


def test_foresight_tells_the_mean_and_the_busiest_minute_ahead() -> None:
    minutes = np.ones((10, 9, 3))
    minutes[6] *= 4.0
    soon = Foreseen(minutes, 300.0).forecast(0.0, 300.0, 0.95)
    assert soon.total_mean.requests_rps == pytest.approx(9 * (4 + 4) / 5)
    assert soon.total_upper.requests_rps == pytest.approx(36.0)
    assert Foreseen(minutes, 1e6).forecast(0.0, 300.0, 0.95).total_mean.requests_rps == pytest.approx(9.0)


def test_the_worst_class_is_one_that_says_something() -> None:
    classes = {"SS": {"requests": 99, "attainment": 0.1}, "LL": {"requests": 100, "attainment": 0.98}}
    assert worst({"by_class": classes}) == 0.98
