"""The first plan: the best of its restricted model, never more GPUs than there are, always an answer."""

from dataclasses import replace
from itertools import product
from math import ceil, floor, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.dynamic import first_plan
from controller.plan_books import pool_count, priced, shortfalls, unpacked, violations
from controller.problem import Bound, Exchange, Group, Kind, Move, NodeShape, Plan, Problem, SwitchJoules, usable
from tests.planning import POOLS, column, ladder, problem


def restricted(task: Problem) -> float:
    """The least cost of the restricted model, by trying all of it: every split into segments, every column, and one
    more of every other for the rest. One service, one GPU type."""
    exchange, pools = Exchange.of(task.columns), [d.pool for d in task.demands]
    columns, best = usable(task), inf
    for cuts in product((False, True), repeat=len(pools) - 1):
        ends = [i for i, cut in enumerate(cuts) if cut] + [len(pools) - 1]
        starts = [0] + [end + 1 for end in ends[:-1]]
        ways = []
        for start, end in zip(starts, ends, strict=True):
            mine = [c for c in columns if c.kind.pool == pools[end]]
            needed = {}
            for c in mine:
                factors = [exchange.serves(c.setting, pool) for pool in pools[start : end + 1]]
                if None not in factors:
                    needed[c] = (
                        sum(f.counts * d.rps for f, d in zip(factors, task.demands[start : end + 1], strict=True))
                        / c.rps
                    )
            ways.append([[Group(c, ceil(n - 1e-9))] for c, n in needed.items()])
            ways[-1] += [
                [Group(a, floor(n)), Group(b, 1)]
                for a, n in needed.items()
                for b, m in needed.items()
                if n >= 1 and (n - floor(n)) > 1e-9 and (n - floor(n)) / n * m <= 1 + 1e-9
            ]
        for groups in product(*ways):
            plan = Plan(tuple(g for part in groups for g in part))
            if not unpacked(task, plan):
                best = min(best, priced(task, plan).cost_w)
    return best


@pytest.mark.parametrize(
    ("rps", "tps"),
    [((4.0, 2.0, 1.0), (4,)), ((0.3, 0.2, 0.1), (2,)), ((7.0, 3.3, 0.9), (4,)), ((5.0, 2.0), (2, 4)), ((0.9,), (2, 4))],
)
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_it_is_the_best_of_its_restricted_model(rps: tuple[float, ...], tps: tuple[int, ...], nodes: int) -> None:
    task = problem(rps, tps, (NodeShape("H100", 8, nodes),))
    task = replace(task, columns=task.columns[:: len(rps)])
    best, plan = restricted(task), first_plan(task)
    if best < inf:
        assert not plan.shed
        assert plan.cost_w == pytest.approx(best)
    else:
        assert plan.shed
    assert not violations(task, plan)


def test_switching_costs_count() -> None:
    kinds = [Kind("chat", pool, "H100", 4) for pool in POOLS]
    task = problem(
        tps=(4,), nodes=(NodeShape("H100", 8, 4),), horizon_s=300.0, current=tuple((kind, 1) for kind in kinds),
        switches=tuple(SwitchJoules("chat", "H100", tp, 90_000.0 * tp, 5_000.0) for tp in (2, 4)),
    )  # fmt: skip
    task = replace(task, columns=task.columns[::2])
    plan = first_plan(task)
    assert plan.cost_w == pytest.approx(restricted(task))
    assert plan.switch_j > 0 or plan.counts() == dict(task.current)


def test_what_sleeps_is_woken_before_anything_starts() -> None:
    kind = Kind("chat", "short", "H100", 2)
    task = Problem(
        (column(tp=2, rps=1.0),), problem((3.0,)).demands, (NodeShape("H100", 8),), current=((kind, 1),),
        asleep=((kind, 1),), switches=(SwitchJoules("chat", "H100", 2, 1000.0, 100.0, 30.0),),
    )  # fmt: skip
    assert first_plan(task).switch_j == 1030.0
    assert first_plan(replace(task, asleep=())).switch_j == 2000.0


def test_a_kind_that_sleeps_is_rather_taken_than_one_that_must_start() -> None:
    asleep = Kind("chat", "short", "H100", 4)
    costs = tuple(SwitchJoules("chat", "H100", tp, 9e5, 0.0, 100.0) for tp in (2, 4))
    columns = (column(tp=2, rps=2.0, watts=900.0), column("short", 4, rps=2.0, watts=1000.0))
    task = Problem(columns, problem((2.0,)).demands, (NodeShape("H100", 8),), switches=costs)
    assert first_plan(task).counts() == {Kind("chat", "short", "H100", 2): 1}
    assert first_plan(replace(task, asleep=((asleep, 1),))).counts() == {asleep: 1}


def test_a_group_of_eight_never_straddles_nodes_of_four() -> None:
    task = problem((2.0, 1.0, 3.0), (2, 4, 8), (NodeShape("H100", 4, 6), NodeShape("H100", 8, 1)))
    plan = first_plan(task)
    assert not violations(task, plan)
    assert sum(n for kind, n in plan.counts().items() if kind.tp == 8) <= 1
    only_fours = replace(task, nodes=(NodeShape("H100", 4, 8),))
    assert not any(kind.tp == 8 for kind in first_plan(only_fours).counts())


def test_too_few_gpus_shed_the_rest_and_say_how_much() -> None:
    task = problem((40.0, 20.0, 10.0), nodes=(NodeShape("H100", 8, 1),))
    plan = first_plan(task)
    assert plan.status == "shed"
    assert 0 < sum(rps for _, _, rps in plan.shed) < 70
    assert plan.gpus("H100") == 8
    assert not violations(task, plan)


def test_what_weighs_more_is_shed_less() -> None:
    task = problem((8.0,), services=("chat", "batch"), nodes=(NodeShape("H100", 8, 1),))
    task = replace(task, demands=tuple(replace(d, weight=10.0 if d.service == "chat" else 1.0) for d in task.demands))
    shed = {service: rps for service, _, rps in first_plan(task).shed}
    assert shed.get("chat", 0.0) < shed["batch"]


def test_without_gpus_or_columns_everything_is_shed() -> None:
    task = problem(nodes=(NodeShape("H100", 1, 4),))
    assert first_plan(task).shed == (("chat", "short", 4.0), ("chat", "medium", 2.0), ("chat", "long", 1.0))
    assert first_plan(replace(task, columns=())).groups == ()
    assert first_plan(Problem((), (), ())).cost_w == 0


def test_no_load_needs_nothing_but_the_floor() -> None:
    assert first_plan(problem((0.0, 0.0, 0.0))).groups == ()
    plan = first_plan(problem((0.0, 0.0, 0.0), floors=(("chat", 2),)))
    assert [(g.column.kind.tp, g.count) for g in plan.groups] == [(2, 2)]
    short = first_plan(problem((0.0, 0.0, 0.0), nodes=(NodeShape("H100", 2, 1),), floors=(("chat", 2),)))
    assert short.status == "short"


def test_what_is_ordered_bounds_a_pool() -> None:
    orders = (Bound("chat", "short", 4, 4), Bound("chat", "long", 2))
    task = problem((4.0, 2.0, 0.3), nodes=(NodeShape("H100", 8, 4),), bounds=orders)
    plan = first_plan(task)
    assert not violations(task, plan) and not shortfalls(task, plan) and not plan.shed
    assert pool_count(plan, "chat", "short") == 4 and pool_count(plan, "chat", "long") >= 2
    short = replace(task, nodes=(NodeShape("H100", 2, 1),))
    assert first_plan(short).status == "short" and not violations(short, first_plan(short))


def test_n_plus_one_counts_over_the_service() -> None:
    alone, spare = (first_plan(problem((0.4, 0.2, 0.1), spare=s)) for s in (frozenset(), frozenset({"chat"})))
    task = problem((0.4, 0.2, 0.1), spare=frozenset({"chat"}))
    assert shortfalls(task, replace(alone, status=""))
    assert not shortfalls(task, spare)
    assert not violations(task, spare)


def test_a_power_cap_binds() -> None:
    free = first_plan(problem())
    peak_w = sum(g.count * g.column.peak_w for g in free.groups)
    capped = problem(power_cap_w=0.9 * peak_w)
    plan = first_plan(capped)
    assert not violations(capped, plan)
    assert plan.groups


def test_two_gpu_types_are_planned_together() -> None:
    nodes = (NodeShape("H100", 8, 1), NodeShape("A100", 8, 2))
    task = problem((4.0, 1.5, 0.7), (2, 4), nodes)
    plan = first_plan(task)
    assert not violations(task, plan)
    assert not plan.shed
    assert plan.gpus("H100") > 0 and plan.gpus("A100") > 0


def test_moves_are_cheaper_than_stopping_and_starting() -> None:
    before, after = Kind("chat", "short", "H100", 4), Kind("chat", "short", "H100", 2)
    task = Problem(
        (column(tp=2, rps=2.0),), (*problem((2.0,)).demands,), (NodeShape("H100", 8),), current=((before, 1),),
        switches=tuple(SwitchJoules("chat", "H100", tp, 1000.0, 100.0) for tp in (2, 4)),
        moves=(Move(before, after, 50.0),),
    )  # fmt: skip
    assert first_plan(task).switch_j == 50.0
    assert first_plan(replace(task, moves=())).switch_j == 1100.0


@pytest.mark.parametrize(
    "change",
    [{"eta": 1.5}, {"horizon_s": 0.0}, {"columns": (column(tp=2), column(tp=3))}, {"demands": ()},
     {"columns": (column(rps=0.0),)}],
)  # fmt: skip
def test_what_can_not_be_planned_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        replace(problem(), **change)  # type: ignore[arg-type]


def test_a_worse_column_goes_only_within_its_kind() -> None:
    better, worse = column(rps=2.0, watts=900.0), column(rps=1.9, watts=950.0)
    elsewhere = column("short", 4, rps=1.9, watts=950.0)
    task = Problem((better, worse, elsewhere), problem((2.0,)).demands, (NodeShape("H100", 8),))
    assert set(usable(task)) == {better, elsewhere}


bounds = st.lists(
    st.builds(Bound, st.just("chat"), st.sampled_from(POOLS), st.integers(0, 3), st.none() | st.integers(3, 4)),
    max_size=3, unique_by=lambda bound: bound.pool,
).map(tuple)  # fmt: skip
loads = st.tuples(*[st.floats(0, 30).map(lambda x: round(x, 3))] * 3)
shapes = st.lists(
    st.builds(NodeShape, st.sampled_from(["H100", "A100"]), st.sampled_from([2, 3, 4, 8]), st.integers(1, 3)),
    min_size=1, max_size=3,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(loads, shapes, st.sampled_from([inf, 9000.0, 3000.0]), st.sampled_from([0.0, 0.5, 1.0]), bounds)
def test_whatever_is_asked_the_plan_fits_and_covers_or_sheds(
    rps: tuple[float, ...], nodes: list[NodeShape], cap_w: float, eta: float, bound: tuple[Bound, ...]
) -> None:
    task = problem(rps, (2, 4, 8), tuple(nodes), power_cap_w=cap_w, eta=eta, latency_w=50.0, bounds=bound)
    assert not violations(task, first_plan(task))


def test_the_same_problem_gives_the_same_plan() -> None:
    assert first_plan(problem()) == first_plan(problem())
    assert ladder("long", 2)[0] in problem().columns
