"""The lean engine decides what the emulated engine decides; a sweep that was killed ends in the same profile."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from core.clock import SystemClock
from pools.measure import Lengths, Probe, Rule
from pools.measure_journal import Journal, JournalError
from pools.measure_profile import rows_of
from pools.measure_run import identity, run_sweep
from pools.measure_stats import measured_of
from pools.measure_sweep import Space, Sweep
from pools.measure_verify import verify
from profiles.engine_model import load_engine_model
from profiles.profile import Profile, Provenance
from profiles.profile_file import load_profile, save_profile
from simulator.engine import Ask, Engine, EngineLimits
from simulator.measured import LeanEngine, SimulatedTarget, steps_begun
from simulator.speech import Speech

LIMITS = EngineLimits(256, 8192, 2048)
CLASSES = (Lengths("SS", 467, 96), Lengths("LM", 4085, 256))


def emulated(model: str, tp: int, clock: int, limits: EngineLimits, load: list[tuple[float, int, int]]) -> list[float]:
    """When each request finishes on simulator.engine.Engine, stepped as the server's loop steps it."""
    engine = Engine(load_engine_model(model), tp, clock, limits, Speech.of(500))
    finished: dict[str, float] = {}
    now_s, coming = 0.0, list(load)
    while coming or engine.has_work:
        if not engine.has_work:
            now_s = max(now_s, coming[0][0])
        while coming and coming[0][0] <= now_s:
            at_s, prompt, output = coming.pop(0)
            number = len(load) - len(coming) - 1
            engine.add(Ask(str(number), [300 + number % 100] * prompt, output, ignore_eos=True), at_s)
        result = engine.step(now_s)
        now_s += result.duration_s
        for one in result.finished:
            finished[one.ask.id] = now_s
    return [finished[str(number)] for number in range(len(load))] + [engine.joules(now_s)]


def lean(model: str, tp: int, clock: int, limits: EngineLimits, load: list[tuple[float, int, int]]) -> list[float]:
    engine = LeanEngine(load_engine_model(model), tp, clock, limits)
    seqs = []
    for at_s, prompt, output in load:
        engine.run_until(at_s)
        seqs.append(engine.add(at_s, prompt, output))
    while engine.running or engine.waiting:
        engine.run_until(engine.now_s + 0.001)
    end_s = max(one.finished_s or 0.0 for one in seqs)
    return [one.finished_s or 0.0 for one in seqs] + [engine.joules(end_s)]


@pytest.mark.parametrize("seed", range(6))
def test_the_lean_engine_finishes_when_the_emulated_one_does(seed: int) -> None:
    """Seeds differ in load; TP2 of a 70B model has so little KV room that sequences are preempted."""
    draw = random.Random(seed)
    rps = (0.5, 3.0, 8.0, 20.0, 1.0, 40.0)[seed]
    tp, clock = ((2, 1980), (4, 1200), (2, 800), (8, 1600), (2, 1000), (4, 1980))[seed]
    limits = EngineLimits(*((256, 8192, 2048), (16, 8192, 512))[seed % 2])
    at_s, load = 0.0, []
    for _ in range(60):
        at_s += draw.expovariate(rps)
        load.append((at_s, draw.choice((30, 467, 1010, 3000)), draw.choice((1, 2, 96, 256))))
    expected = emulated("llama-2-70b", tp, clock, limits, load)
    assert lean("llama-2-70b", tp, clock, limits, load) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("growth_s", [0.0, 1e-6, 1e-3])
def test_steps_begun_is_a_count(growth_s: float) -> None:
    for elapsed_s in (1e-9, 0.01, 0.0399999, 0.04, 0.5, 3.0):
        begun, at_s = 0, 0.0
        while at_s < elapsed_s - 1e-12 and begun < 70:
            at_s += 0.02 + begun * growth_s
            begun += 1
        assert abs(steps_begun(0.02, growth_s, elapsed_s, 70) - begun) <= (1 if growth_s == 0 else 0)


def test_a_window_adds_up() -> None:
    target = SimulatedTarget(load_engine_model("llama-2-70b"), LIMITS)
    asyncio.run(target.configure(4, 1980))
    window = target.window(Probe(4, 1980, CLASSES[0], 4.0), Rule())
    row = measured_of(window, "emulated").point
    assert row.output_tps == pytest.approx(4.0 * 96, rel=0.15)
    assert 1000 < row.watts < 2800 and not row.saturated
    assert row.watts == pytest.approx(row.j_per_output_token * row.output_tps)
    assert row.ttft_p50_s <= row.ttft_p99_s and row.tbt_p50_s <= row.tbt_p99_s
    assert row.running == pytest.approx(row.output_tps * row.tbt_p50_s, rel=0.5)
    again = target.window(Probe(4, 1980, CLASSES[0], 4.0), Rule())
    assert again == window


def test_idle_is_idle() -> None:
    model = load_engine_model("llama-2-70b")
    target = SimulatedTarget(model, LIMITS)
    asyncio.run(target.configure(8, 1980))
    row = measured_of(target.window(Probe(8, 1980, CLASSES[0], 0.0), Rule()), "emulated").point
    assert row.watts == pytest.approx(model.watts(8, 1980, 0)) and row.offered_rps == 0


class Killed(Exception):
    pass


def swept(path: Path, resume: bool = False, kill_after: int = 0, seed: int = 0) -> Profile:
    target = SimulatedTarget(load_engine_model("llama-3.1-8b"), LIMITS)
    space = Space((1,), (1200, 1980), CLASSES, budget_s=2400.0, seed=seed)
    taken = []

    def told(sweep: Sweep, probe: Probe) -> None:
        taken.append(probe)
        if kill_after and len(taken) > kill_after:
            raise Killed

    with Journal(path, identity(space, Rule(), target), resume) as journal:
        sweep = asyncio.run(run_sweep(space, target, Rule(), journal, SystemClock(), told))
    rows, _ = rows_of(sweep)
    made = Provenance("emulated", "2026-11-21", "test", "emulated", Rule().sentence, "emulated-vllm", "0")
    return Profile("H100", "llama-3.1-8b", made, rows)


def test_a_killed_sweep_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    save_profile(swept(tmp_path / "whole.journal.jsonl"), tmp_path / "whole.profile.csv")
    path = tmp_path / "cut.journal.jsonl"
    with pytest.raises(Killed):
        swept(path, kill_after=7)
    torn = path.read_bytes()
    lines = torn.splitlines(keepends=True)
    assert len(lines) == 1 + 7
    path.write_bytes(torn + lines[-1][:40])
    with pytest.raises(JournalError, match="--resume"):
        swept(path)
    with pytest.raises(Killed):
        swept(path, resume=True, kill_after=12)
    assert len(path.read_bytes().splitlines()) == 1 + 12
    save_profile(swept(path, resume=True), tmp_path / "cut.profile.csv")
    assert (tmp_path / "cut.profile.csv").read_bytes() == (tmp_path / "whole.profile.csv").read_bytes()
    assert path.read_bytes() == (tmp_path / "whole.journal.jsonl").read_bytes()
    load_profile(tmp_path / "cut.profile.csv")


def test_a_journal_of_another_sweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.journal.jsonl"
    with pytest.raises(Killed):
        swept(path, kill_after=2)
    with pytest.raises(JournalError, match="other seed"):
        swept(path, resume=True, seed=1)
    path.write_text("{}\n")
    with pytest.raises(JournalError, match="no journal"):
        swept(path, resume=True)
    path.write_text('{"sweep": ')
    with pytest.raises(Killed):
        swept(path, kill_after=1)
    assert json.loads(path.read_text().splitlines()[0])["sweep"]["seed"] == 0


def test_verifying_takes_points_that_the_sweep_did_not(tmp_path: Path) -> None:
    target = SimulatedTarget(load_engine_model("llama-3.1-8b"), LIMITS)
    space = Space((1,), (1980,), CLASSES, budget_s=2400.0)
    with Journal(tmp_path / "v.journal.jsonl", {}, False) as journal:
        sweep = asyncio.run(run_sweep(space, target, Rule(), journal, SystemClock(), lambda *_: None))
    made = Provenance("emulated", "2026-11-21", "test", "emulated", "rule", "emulated-vllm", "0")
    profile = Profile("H100", "llama-3.1-8b", made, rows_of(sweep)[0])
    seen = asyncio.run(verify(sweep, profile, target, Rule(), 6, lambda *_: None))
    assert seen.points + seen.steep_points + seen.refused + seen.saturated_answered >= 6
    assert seen.median["watts"] < 0.1


def test_a_prompt_of_which_one_token_is_left_still_gets_its_first_token() -> None:
    """513 tokens in steps of 512: the second step computes one prompt token, like a decode, and ends the prefill."""
    engine = LeanEngine(load_engine_model("llama-2-70b", "h100"), 4, 1980, EngineLimits(256, 8192, 512))
    one = engine.add(0.0, 513, 5)
    engine.run_until(10.0)
    assert one.first_s is not None and one.finished_s is not None and 0 < one.first_s < one.finished_s < 10.0
    assert len(engine.heard.firsts) == 1
    assert sum(count for _, count in engine.heard.gaps(0.0, 10.0)) == 4
