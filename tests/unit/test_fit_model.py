"""An engine model from a profile: constants that are known come back, files survive the disk, bad ones are told."""

from dataclasses import replace
from pathlib import Path

import pytest

from pools.measure import Lengths, Probe, Rule
from pools.measure_stats import measured_of
from profiles.engine_model import load_engine_model
from profiles.model_file import save_model
from profiles.profile import Point, Profile, Provenance
from simulator.engine import EngineLimits
from simulator.fit_model import Assumed, fit_model
from simulator.measured import SimulatedTarget

MODEL = load_engine_model("llama-3.1-8b")
LIMITS = EngineLimits(256, 8192, 2048)
ASSUMED = Assumed(MODEL.switch, MODEL.start_s, MODEL.bare_idle_w, MODEL.parked_w)
FRONT_S = 0.02


def measured(name: str, prompt: int, answer: int, rps: float) -> Point:
    target = SimulatedTarget(replace(MODEL, front_s=FRONT_S), LIMITS)
    target.at(1, 1980)
    window = target.window(Probe(1, 1980, Lengths(name, prompt, answer), rps), Rule(window_s=20.0, window_max_s=40.0))
    return measured_of(window, "measured").point


def profile(*points: Point) -> Profile:
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 8192}
    told = Provenance("measured", "2026-11-21", "", "nvml-total-energy", "", "vllm", "0.32.0", limits=limits)
    return Profile("H100", "mine", told, points)


def test_known_constants_come_back(tmp_path: Path) -> None:
    loads = [("A", 200, 40, 2.0), ("A", 200, 40, 8.0), ("A", 200, 40, 20.0), ("B", 1500, 20, 2.0), ("B", 1500, 20, 8.0),
             ("B", 1500, 20, 12.0)]  # fmt: skip
    fitted = fit_model(profile(measured("A", 200, 40, 0.0), *(measured(*load) for load in loads)), ASSUMED)
    for one in fitted.residuals:
        assert 0.85 < one.ttft_p50 < 1.15 and 0.9 < one.gap_mean < 1.1 and 0.9 < one.watts < 1.1, one
    assert fitted.model.prefill_s(1, 1980, 1500) + fitted.model.front_s == pytest.approx(
        0.024e-3 * 1500 + FRONT_S, rel=0.1
    )
    for running in (1, 8, 16):
        ours, theirs = (model.decode_step_s(1, 1980, running, 220 * running) for model in (fitted.model, MODEL))
        assert ours == pytest.approx(theirs, rel=0.15)
    # A load that no row has.
    fresh = SimulatedTarget(fitted.model, LIMITS)
    fresh.at(1, 1980)
    window = fresh.window(Probe(1, 1980, Lengths("C", 700, 30), 10.0), Rule())
    other, true = measured_of(window, "emulated").point, measured("C", 700, 30, 10.0)
    assert other.ttft_p50_s == pytest.approx(true.ttft_p50_s, rel=0.15)
    assert other.watts == pytest.approx(true.watts, rel=0.1)

    save_model(fitted.model, tmp_path / "mine.model.yaml", {"windows": 6})
    again = load_engine_model(str(tmp_path / "mine.model.yaml"))
    assert again.decode_step_s(1, 1980, 5, 100) == pytest.approx(fitted.model.decode_step_s(1, 1980, 5, 100))
    assert again.switch.reshard_units == MODEL.switch.reshard_units and again.front_s == pytest.approx(
        fitted.model.front_s
    )


def test_too_few_rows_are_told() -> None:
    row = measured("A", 200, 20, 4.0)
    with pytest.raises(ValueError, match="1 measured loads at 1980 MHz; a fit takes 6"):
        fit_model(profile(row), ASSUMED)
    with pytest.raises(ValueError, match="no measured load"):
        fit_model(profile(replace(row, saturated=True)), ASSUMED)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not an engine model"),
        ("schema: 7", "schema 7"),
        ("schema: 1\ngpu: H100", "no 'model'"),
        ("a: [", "not an engine"),
    ],
)
def test_a_file_that_is_none_is_told_with_its_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.model.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.model\.yaml") as caught:
        load_engine_model(str(path))
    assert says in str(caught.value)
    with pytest.raises(ValueError, match="No such file"):
        load_engine_model(str(tmp_path / "none.model.yaml"))
