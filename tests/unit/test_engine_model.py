"""The engine models: their answers agree with the published figures they come from, and never turn the wrong way."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.engine_model import EngineModel, engine_model_names, load_engine_model

MODELS = {name: load_engine_model(name) for name in engine_model_names()}
PLACES = [(model, tp) for model in MODELS.values() for tp in model.points]
places = st.sampled_from(PLACES)
clocks = st.floats(500, 2200)


def test_names_and_an_unknown_name() -> None:
    assert set(engine_model_names()) == {
        "llama-3.1-8b", "llama-3.1-70b", "llama-2-70b", "qwen3-32b", "gpt-oss-120b",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"known: llama-3\.1-8b, "):
        load_engine_model("gpt-2")
    with pytest.raises(ValueError, match=r"no TP8; known: \[1, 2, 4\]"):
        MODELS["llama-3.1-8b"].decode_step_s(8, 1980, 1, 1)


@pytest.mark.parametrize(
    ("name", "tp", "batch", "context", "measured_ms"),
    [
        ("llama-3.1-8b", 1, 64, 500, 11.5),  # ML.ENERGY v3, lm-arena-chat
        ("llama-3.1-8b", 1, 256, 500, 26.1),
        ("llama-3.1-70b", 4, 64, 500, 22.4),
        ("llama-3.1-70b", 4, 256, 500, 39.8),
        ("qwen3-32b", 2, 64, 850, 22.4),
        ("gpt-oss-120b", 1, 32, 1075, 18.0),
        ("llama-2-70b", 8, 52, 767, 28.8),  # jovan-vllm, SL at 3/s
        ("llama-2-70b", 4, 60, 767, 39.8),
    ],
)
def test_decode_steps_are_within_a_tenth_of_the_source(
    name: str, tp: int, batch: int, context: int, measured_ms: float
) -> None:
    step_ms = 1e3 * MODELS[name].decode_step_s(tp, 1980, batch, batch * context)
    assert step_ms == pytest.approx(measured_ms, rel=0.1)


@pytest.mark.parametrize(
    ("name", "tp", "batch", "measured_w"),
    [("llama-3.1-8b", 1, 8, 486), ("llama-3.1-8b", 1, 512, 688), ("llama-3.1-70b", 4, 128, 2184)],
)
def test_watts_are_within_a_tenth_of_the_source(name: str, tp: int, batch: int, measured_w: float) -> None:
    assert MODELS[name].watts(tp, 1980, batch) == pytest.approx(measured_w, rel=0.1)


@pytest.mark.parametrize(("model", "tp"), PLACES, ids=lambda value: getattr(value, "model", str(value)))
def test_idle_kv_and_the_energy_valley(model: EngineModel, tp: int) -> None:
    assert model.watts(tp, 1980, 0) == 115 * tp
    assert model.watts(tp, 1980, 0) < model.watts(tp, 800, 1) <= 690 * tp
    assert model.kv_tokens(tp) > 8000
    assert model.decode_step_s(tp, 1980, 0, 0) == model.prefill_s(tp, 1980, 0) == 0
    energy = [model.watts(tp, c, 32) * model.decode_step_s(tp, c, 32, 9000) for c in model.clocks_mhz]
    assert model.clocks_mhz[energy.index(min(energy))] in (1000, 1200, 1400)


def test_clocks_interpolate_and_clamp() -> None:
    model = MODELS["llama-2-70b"]
    at = [model.decode_step_s(8, clock, 1, 0) / model.decode_step_s(8, 1980, 1, 0) for clock in (100, 800, 1100, 3000)]
    assert at == pytest.approx([1.76, 1.76, 1.30, 1.0])


@settings(deadline=None)
@given(places, clocks, clocks, st.integers(0, 512), st.integers(0, 512), st.integers(0, 9000), st.integers(0, 9000))
def test_monotone(
    place: tuple[EngineModel, int], one_mhz: float, other_mhz: float, b1: int, b2: int, t1: int, t2: int
) -> None:
    model, tp = place
    slow, fast = sorted((one_mhz, other_mhz))
    (few, many), (less, more) = sorted((b1, b2)), sorted((t1, t2))
    steps = [
        model.step_s(tp, fast, less, few, less),
        model.step_s(tp, fast, more, few, less),
        model.step_s(tp, fast, more, many, less),
        model.step_s(tp, fast, more, many, more),
        model.step_s(tp, slow, more, many, more),
    ]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(steps)), steps
    watts = [model.watts(tp, slow, few, less), model.watts(tp, slow, many, more), model.watts(tp, fast, many, more)]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(watts)), watts
