"""Every baseline on a small load: it ends, its books balance, it stays within the GPUs, and the seed fixes it."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from profiles.engine_model import load_engine_model
from simulator.case import Case, make_case, shipped_service
from simulator.registry import POLICIES, Policy
from simulator.report import Rates, figures
from simulator.run import Ran
from simulator.trace import Arrival

GPUS = 32
OWN = [policy for policy in POLICIES if policy.name not in ("singlepool", "multipool", "joulegate")]


def waves(seed: int, seconds: float = 120.0) -> list[Arrival]:
    """Busy, calm, busy: enough for two instances of TP8 at times, for one at others."""
    rng, at_s, out = random.Random(seed), 0.0, []
    while at_s < seconds:
        out.append(Arrival(at_s, rng.choice([60, 200, 500, 900, 2500]), rng.choice([20, 80, 150, 300, 500])))
        at_s += rng.expovariate(2.0 if 40 < at_s < 80 else 6.0)
    return out


def quiet(text: str) -> None:
    pass


def ran(policy: Policy, seed: int = 0) -> Ran:
    arrivals = waves(seed)

    def read() -> Iterator[Arrival]:
        return iter(arrivals)

    case: Case = make_case(shipped_service("llama-2-70b"), load_engine_model("llama-2-70b"), read, seed=seed)
    case = replace(case, static_instances=GPUS // 8)
    return policy.run(case, GPUS, quiet)


@pytest.mark.parametrize("policy", OWN, ids=lambda policy: policy.name)
def test_it_ends_with_balanced_books(policy: Policy) -> None:
    found = ran(policy)
    assert not found.in_flight  # the books are checked by the run itself when nothing is left in flight
    assert found.tally.total_arrived == len(waves(0))
    assert found.tally.attainment_all is not None and found.tally.attainment_all > 0.9
    assert found.gpu_s.held <= GPUS * found.duration_s * (1 + 1e-9)
    assert found.gpu_s.held + found.gpu_s.given_back == pytest.approx(GPUS * found.duration_s)


@pytest.mark.parametrize("policy", OWN, ids=lambda policy: policy.name)
def test_the_seed_fixes_it(policy: Policy) -> None:
    first, again = (figures(ran(policy, seed=3), Rates()) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("policy", OWN, ids=lambda policy: policy.name)
def test_a_model_on_fewer_gpus_without_a_profile_runs_too(policy: Policy) -> None:
    arrivals = waves(1, 30.0)

    def read() -> Iterator[Arrival]:
        return iter(arrivals)

    case = make_case(shipped_service("llama-3.1-8b"), load_engine_model("llama-3.1-8b"), read)
    found = policy.run(replace(case, static_instances=4), 4 * case.tp, quiet)
    assert not found.in_flight and found.tally.total_arrived == len(arrivals)
