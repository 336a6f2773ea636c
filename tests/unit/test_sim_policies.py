"""What policies share, how many instances they need, and the command that prints it."""

import random
from dataclasses import replace

import pytest

from core.service import CLASSES, Edges, Slo
from pools.shape import step_tokens
from profiles.engine_model import load_engine_model
from simulator.case import Case, facts_of, make_case, shipped_service
from simulator.joulegate_policy import joulegate
from simulator.lengths import Confused, Oracle, even_confusion, usual_lengths
from simulator.policies import fewest, hopeless, singlepool
from simulator.power import GpuStock, PowerMeter
from simulator.registry import POLICIES, policy_of
from simulator.report import Rates, figures
from simulator.tally import Tally
from simulator.trace import Arrival

MODEL = load_engine_model("llama-2-70b")


def trace(seed: int, rps: float, seconds: float) -> list[Arrival]:
    rng, at_s, out = random.Random(seed), 0.0, []
    while at_s < seconds:
        out.append(Arrival(at_s, rng.choice([60, 200, 500, 900, 2500]), rng.choice([20, 80, 150, 300, 500])))
        at_s += rng.expovariate(rps)
    return out


def quiet(text: str) -> None:
    pass


def case(rps: float = 6.0, seconds: float = 120.0, **options: object) -> Case:
    arrivals = trace(1, rps, seconds)
    return make_case(shipped_service("llama-2-70b"), MODEL, lambda: iter(arrivals), **options)  # type: ignore[arg-type]


def test_a_confused_predictor_is_right_as_often_as_stated() -> None:
    edges = Edges()
    usual = usual_lengths([50, 90, 200, 400, 1000], edges)
    predictor = Confused(even_confusion(0.7), usual, edges, seed=3)
    asked = [Arrival(0.0, 10, tokens) for tokens in (50, 200, 1000)] * 4000
    right = sum(
        predictor.predict(a, 9999).p[["S", "M", "L"].index(edges.output_size(a.output_tokens))] == 1.0 for a in asked
    )
    assert right / len(asked) == pytest.approx(0.7, abs=0.01)
    assert Oracle(edges).predict(Arrival(0.0, 10, 200), 100).q90_tokens == 100
    assert all(sum(row) == pytest.approx(1.0) for row in even_confusion(0.81))


def test_facts_count_every_class() -> None:
    facts = facts_of(iter(trace(1, 5.0, 100.0)), Edges())
    assert sum(facts.by_class) == facts.requests > 400
    assert facts.by_class[CLASSES.index("SS")] > 0 and 800 < facts.mean_context < 1100


def test_a_step_takes_what_keeps_the_tbt_objective() -> None:
    for tp in MODEL.points:
        tokens = step_tokens(MODEL, tp, max(MODEL.clocks_mhz), 0.1)
        assert tokens in (256, 512, 1024, 2048)
        if tokens > 256:
            assert MODEL.step_s(tp, 1980, tokens - 16, 16, 16 * MODEL.context_tokens) <= 0.1
    assert step_tokens(MODEL, 8, 1980, 10.0) == 2048


def test_limits_keep_the_tbt_objective() -> None:
    one = case()
    limits = one.limits()
    context = round(limits.slots * one.facts.mean_context)
    beside = one.costs.step_tokens[8] - limits.slots
    assert 8 < limits.slots < 256 and MODEL.step_s(8, 1980, beside, limits.slots, context) <= 0.1
    assert limits.kv_tokens == MODEL.kv_tokens(8)


def test_hopeless_once_more_than_one_percent_is_missed() -> None:
    tally = Tally(shipped_service("llama-2-70b"))
    is_hopeless = hopeless((200, 50, 0, 0, 0, 0, 0, 0, 0))
    tally.classes[0].missed = 2
    tally.classes[1].missed = 40  # too few requests to judge
    assert not is_hopeless(tally)
    tally.classes[0].missed = 3
    assert is_hopeless(tally)


def test_the_fewest_are_enough_and_one_fewer_is_not() -> None:
    tried: list[str] = []
    slo = Slo({"S": 0.5, "M": 0.75, "L": 4.0})
    arrivals = trace(1, 11.0, 60.0)
    one = make_case(shipped_service("llama-2-70b", slo), MODEL, lambda: iter(arrivals), predictor="oracle")
    sized = fewest(one, tried.append)
    assert sized.kept and sized.ran.tally.keeps_promise()
    assert sized.instances == 1 or f"{sized.instances - 1} instances: not enough" in tried
    assert sized.ran.setup.gpus == 8 * sized.instances


def test_policies_serve_every_request() -> None:
    one = case(rps=4.0, seconds=60.0)
    for ran in (policy.run(one, 32, quiet) for policy in POLICIES):
        assert ran.tally.total_arrived == one.facts.requests and not ran.in_flight


def test_joulegate_has_its_first_plan_ready_and_stays_within_its_gpus() -> None:
    one = case(rps=4.0, seconds=120.0)
    ran = joulegate(one, 32, quiet)
    plan = ran.setup.first_plan
    assert plan is not None and sum(count * tp for (_, tp), count in plan.counts().items()) <= 32
    assert ran.tally.attainment_all > 0.9 and ran.gpu_s.held <= 32 * ran.duration_s
    assert joulegate(one, 32, quiet).joules == ran.joules, "twice the same"


def test_singlepool_takes_the_static_size_where_it_is_known() -> None:
    one = replace(case(rps=4.0, seconds=60.0), static_instances=3)
    assert [pool.instances for pool in singlepool(one, 8, quiet).setup.spec.pools] == [3]


def test_a_policy_is_found_by_its_name() -> None:
    assert [policy_of(policy.name) for policy in POLICIES] == list(POLICIES)
    with pytest.raises(KeyError, match="known: singlepool"):
        policy_of("nosuch")


def test_a_predictor_has_an_accuracy() -> None:
    for wrong in ("1.5", "guess", "-1"):
        with pytest.raises(ValueError, match="predictor"):
            case(predictor=wrong)
    assert case(predictor="live").lengths().predict(Arrival(0.0, 5, 5), 100).q90_tokens <= 100


def test_figures_add_up() -> None:
    ran = joulegate(case(rps=2.0, seconds=60.0), 8, quiet)
    row = figures(ran, Rates(2.0, 0.5, 400.0), power_cap_w=1.0)
    kwh = ran.joules / 3.6e6
    assert row["cost_usd"] == pytest.approx(2.0 * ran.gpu_s.held / 3600 + 0.5 * kwh)
    assert row["gco2"] == pytest.approx(400.0 * kwh) and row["over_power_cap"] == 1.0
    assert row["energy_kwh"] == pytest.approx(sum(row["energy_by_cause"].values()))
    assert figures(ran, Rates(), power_cap_w=1e9)["over_power_cap"] == 0.0


def test_watts_over_time_add_up() -> None:
    meter = PowerMeter()
    stock = GpuStock(16, 75.0, meter)
    assert stock.reserve(16) and not stock.reserve(1) and not stock.at_hand(8)
    stock.use(8, 0.5)
    stock.unreserve(8)
    meter.change(0.5, 100.0)
    meter.change(3.25, -100.0)
    stock.put(8, 3.25, keep=True)
    assert stock.at_hand(8)
    meter.until(5.0)
    stock.until(5.0)
    assert list(meter.per_bin_j) == pytest.approx([50.0, 100.0, 100.0, 25.0 + 600 * 0.75, 600.0])
    assert meter.joules == pytest.approx(sum(meter.per_bin_j)) and meter.watts_quantile(0.5) == pytest.approx(100.0)
    assert (stock.seconds.held, stock.seconds.bare, stock.seconds.given_back) == pytest.approx((36.0, 14.0, 44.0))
