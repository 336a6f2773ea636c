"""From forecasts to a plan: it fits the machines there are, whatever their number."""

from dataclasses import replace
from functools import cache

import pytest

from controller.demand import Demand, observed
from controller.knowledge import Knowledge, ServiceKnowledge, Settings
from controller.planning import Ask, Asked, Ordered, ServicePlan, drafted, make_plan
from controller.problem import Bound, Kind
from core.instances import ClassCount
from core.service import CLASSES, Edges, InstanceLimits, LauncherSpec, PoolSpec, ServiceSpec, Slo
from pools.shape import step_tokens
from profiles.engine_model import load_engine_model

NAME = "llama-3.1-8b"
POOLS = tuple(
    PoolSpec(name, (size,), 1, 2, 1980, InstanceLimits(128))
    for name, size in (("short", "S"), ("medium", "M"), ("long", "L"))
)
SPEC = ServiceSpec(NAME, NAME, 16_384, Slo(), Edges(), POOLS, LauncherSpec("emulated"), NAME)


@cache
def asked(rps: float) -> Asked:
    """After ten minutes of a steady load, all classes alike."""
    demand = Demand()
    for minute in range(11):
        n = int(rps * 60 * minute / len(CLASSES))
        demand = observed(demand, SPEC, 60.0 * minute, (ClassCount(n, 400 * n, n, 150 * n, n, n),) * len(CLASSES))
    model = load_engine_model(NAME)
    steps = {tp: step_tokens(model, tp, max(model.clocks_mhz), SPEC.slo.tbt_s) for tp in model.points}
    return Asked(ServiceKnowledge(SPEC, model, steps), demand)


def ask(rps: float, gpus: int, node_gpus: int, **settings: object) -> Ask:
    one = asked(rps)
    knowledge = Knowledge({NAME: one.knowledge}, replace(Settings(), **settings), gpus, node_gpus)  # type: ignore[arg-type]
    return Ask(knowledge, {NAME: one}, {}, 600.0, 600.0)


@pytest.mark.parametrize(("gpus", "node_gpus"), [(4, 8), (3, 8), (12, 8), (6, 4), (16, 8), (1, 16)])
def test_a_plan_has_no_more_gpus_than_there_are(gpus: int, node_gpus: int) -> None:
    plan = make_plan(ask(900.0, gpus, node_gpus))[NAME]
    used = sum(target.count * target.kind.tp for target in plan.targets)
    assert gpus - 1 <= used <= gpus, "a load that needs them all gets them all"
    assert all(target.kind.tp <= min(gpus, node_gpus) for target in plan.targets)


def instances(plan: ServicePlan) -> dict[str, int]:
    counted: dict[str, int] = {}
    for (pool, _), count in plan.counts().items():
        counted[pool] = counted.get(pool, 0) + count
    return counted


@pytest.mark.parametrize("pool", ["short", "medium", "long"])
def test_the_other_pools_are_planned_with_what_an_order_leaves_them(pool: str) -> None:
    free = ask(200.0, 16, 8)
    three, none = (replace(free, ordered=Ordered((Bound(NAME, pool, n, n),))) for n in (3, 0))
    plan = make_plan(three)[NAME]
    assert instances(plan)[pool] == 3 and plan.ordered == three.ordered
    assert sum(target.count * target.kind.tp for target in plan.targets) <= 16
    assert pool not in instances(make_plan(none)[NAME])


def test_parked_instances_and_recorded_changes_are_what_a_plan_weighs() -> None:
    one = asked(20.0)
    known = replace(one.knowledge, wake_j={2: 40.0}, reshard_j=((2, 1, 700.0),))
    task = replace(ask(20.0, 16, 8), asked={NAME: replace(one, knowledge=known)}, asleep={(NAME, "long", 2): 1})
    found = drafted(task).problem
    gpu = found.columns[0].kind.gpu
    assert found.asleep == ((Kind(NAME, "long", gpu, 2), 1),)
    assert {s.tp: s.wake_j for s in found.switches}[2] == 40.0
    assert {(m.before.tp, m.after.tp, m.joules) for m in found.moves} == {(2, 1, 700.0)}


def test_cells_whose_steps_take_more_than_their_room_are_not_planned_with() -> None:
    whole, tight = (
        {
            (one.tp, price.clock_mhz)
            for one in make_plan(ask(8.0, 64, 8, tbt_room=room))[NAME].alone
            for price in one.clocks
        }
        for room in (1.0, 0.2)
    )
    model = asked(8.0).knowledge.model
    assert model is not None and tight and tight < whole
    assert all(model.decode_step_s(tp, mhz, 1, 400) <= 0.2 * SPEC.slo.tbt_s for tp, mhz in tight)


def test_where_gpus_are_short_clocks_are_priced_for_what_comes_and_not_for_what_finds_room() -> None:
    """Four GPUs carry a part of what is planned for. At no clock are they enough for all of it, and the prices say so."""
    roomy, short = make_plan(ask(200.0, 64, 8))[NAME], make_plan(ask(200.0, 4, 8))[NAME]
    assert short.status.endswith("shed") and not roomy.status.endswith("shed")
    assert short.planned == pytest.approx(roomy.planned)
    assert all(min(price.needs for price in target.clocks) > target.count for target in short.targets)
    assert all(min(price.needs for price in target.clocks) <= target.count for target in roomy.targets)
