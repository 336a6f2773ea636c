"""The integer programme: equal to trying everything on small cases, and always with an answer."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller import solver
from controller.dynamic import first_plan
from controller.plan_books import shortfalls, violations
from controller.problem import Bound, Demand, Kind, Move, NodeShape, Plan, Problem, SwitchJoules
from controller.solver import Limits, solve
from tests.planning import column, problem, tried

EXACT = Limits(time_s=None, gap=1e-7)


def tiny(rps: tuple[float, ...] = (4.2, 1.6), gpus: int = 8, **more: object) -> Problem:
    """Two pools, five columns; the long pool may take from the short one."""
    columns = (
        column("short", 2, 1.9, 800.0, running=12.0), column("short", 4, 4.0, 1500.0, running=14.0),
        column("medium", 2, 0.8, 820.0, running=14.0, short=1.5),
        column("medium", 4, 1.9, 1490.0, running=15.0, short=3.6),
        column("medium", 4, 1.4, 1100.0, running=16.0, clock_mhz=1200, short=2.7),
    )  # fmt: skip
    demands = tuple(Demand("chat", pool, load) for pool, load in zip(("short", "medium"), rps, strict=True))
    return Problem(columns, demands, (NodeShape("H100", gpus),), **more)  # type: ignore[arg-type]


KINDS = {c.kind.pool + str(c.kind.tp): c.kind for c in tiny().columns}


@pytest.mark.parametrize(
    "task",
    [
        tiny(),
        tiny((0.3, 0.2)),
        tiny((6.0, 0.4)),
        tiny((2.0, 1.2), gpus=12),
        tiny((0.3, 0.2), current=((KINDS["short4"], 1),), switches=(SwitchJoules("chat", "H100", 4, 5e5, 1e4),)),
        tiny((2.0, 0.6), power_cap_w=2900.0),
        tiny((1.5, 0.5), eta=0.3, latency_w=100.0),
        tiny(
            (1.5, 0.5),
            etas=(("chat", 0.3),),
            latency_w=100.0,
            current=((KINDS["short4"], 1),),
            switches=tuple(SwitchJoules("chat", "H100", tp, 5e5, 1e4) for tp in (2, 4)),
        ),
        tiny((1.5, 0.5), bounds=(Bound("chat", "short", 2, 2),)),
        tiny(
            (4.0, 0.2),
            asleep=((KINDS["short4"], 1),),
            switches=tuple(SwitchJoules("chat", "H100", tp, 5e5, 1e4, 2e3) for tp in (2, 4)),
        ),
        tiny((1.5, 0.5), bounds=(Bound("chat", "short", 0, 0), Bound("chat", "medium", 3))),
    ],
)
def test_it_finds_what_trying_everything_finds(task: Problem) -> None:
    best = min((plan.cost_w for plan in tried(task, 3)), default=inf)
    plan = solve(task, EXACT)
    assert plan.cost_w == pytest.approx(best, rel=1e-6)
    assert plan.bound_w == pytest.approx(best, rel=1e-5)
    assert not violations(task, plan)


@pytest.mark.parametrize("rps", [(4.0, 2.0, 1.0), (0.5, 0.2, 0.2), (9.0, 5.0, 1.5)])
def test_it_is_never_worse_than_the_first_plan(rps: tuple[float, ...]) -> None:
    task = problem(rps, (2, 4, 8), (NodeShape("H100", 8, 5),))
    first, best = first_plan(task), solve(task)
    assert best.bound_w <= best.cost_w <= first.cost_w
    assert not violations(task, best)
    assert best.gap <= 0.005


def test_h100_and_a100_are_planned_together_in_whole_nodes() -> None:
    task = problem((5.0, 2.0, 0.7), (2, 4, 8), (NodeShape("H100", 8, 1), NodeShape("A100", 4, 4)))
    plan = solve(task, EXACT)
    counts = plan.counts()
    assert not violations(task, plan)
    assert not plan.shed
    assert {kind.gpu for kind in counts} == {"H100", "A100"}
    assert not any(kind.gpu == "A100" and kind.tp == 8 for kind in counts)


def test_a_service_keeps_to_itself() -> None:
    task = problem((1.0, 0.5), services=("chat", "code"), nodes=(NodeShape("H100", 8, 4),))
    plan = solve(task, EXACT)
    assert not violations(task, plan)
    assert {flow.to.kind.service for flow in plan.flows} == {"chat", "code"}


def test_a_power_cap_binds() -> None:
    free = solve(problem(eta=0.2, latency_w=100.0), EXACT)
    peak_w = sum(g.count * g.column.peak_w for g in free.groups)
    task = problem(eta=0.2, latency_w=100.0, power_cap_w=0.9 * peak_w)
    capped = solve(task, EXACT)
    assert not violations(task, capped)
    assert not capped.shed
    assert capped.cost_w > free.cost_w


def test_only_what_has_no_room_is_shed() -> None:
    task = tiny((6.0, 1.0), gpus=4)
    plan = solve(task, EXACT)
    assert plan.status == "shed"
    assert plan.gpus("H100") == 4
    # Best use of 4 GPUs: requests counted alike, two short TP2 serve 3.8/s and one short TP4 4.0/s.
    assert sum(rps for _, _, rps in plan.shed) == pytest.approx(7.0 - 4.0, rel=1e-4)
    assert not violations(task, plan)


def test_what_weighs_more_is_served_first() -> None:
    task = tiny((6.0, 1.0), gpus=4)
    heavy = replace(task, demands=(task.demands[0], replace(task.demands[1], weight=50.0)))
    assert {pool for _, pool, _ in solve(heavy, EXACT).shed} == {"short"}


def test_a_small_saving_keeps_what_runs() -> None:
    current = ((KINDS["short2"], 2), (KINDS["medium2"], 2))
    switches = tuple(SwitchJoules("chat", "H100", tp, 60_000.0 * tp, 5_000.0) for tp in (2, 4))
    task = tiny((3.7, 1.5), current=current, switches=switches, horizon_s=300.0)
    stays = solve(task, EXACT)
    assert stays.counts() == dict(current)
    assert stays.switch_j == 0
    assert solve(replace(task, horizon_s=86_400.0 * 30), EXACT).counts() != dict(current)


def test_a_move_replaces_a_start_and_a_stop() -> None:
    task = tiny(
        (3.7, 0.0), current=((KINDS["medium2"], 2),), switches=(SwitchJoules("chat", "H100", 2, 5e4, 1e3),),
        moves=(Move(KINDS["medium2"], KINDS["short2"], 10.0),), horizon_s=1e5,
    )  # fmt: skip
    task = replace(task, columns=(task.columns[0], task.columns[2]))
    plan = solve(task, EXACT)
    assert plan.counts() == {KINDS["short2"]: 2}
    assert plan.switch_j == pytest.approx(20.0)


def test_eta_goes_from_least_joules_to_least_latency() -> None:
    ends = {
        eta: solve(problem((2.0, 1.0, 0.5), nodes=(NodeShape("H100", 8, 4),), eta=eta, latency_w=100.0), EXACT)
        for eta in (0.0, 0.5, 1.0)
    }
    watts = [ends[eta].expected_w for eta in (1.0, 0.5, 0.0)]
    flight = [sum(g.count * g.column.running for g in ends[eta].groups) for eta in (1.0, 0.5, 0.0)]
    assert watts == sorted(watts) and watts[0] < watts[-1]
    assert flight == sorted(flight, reverse=True) and flight[0] > flight[-1]


def test_each_service_may_have_its_own_eta() -> None:
    task = problem((2.0, 1.0), (2, 4), (NodeShape("H100", 8, 4),), services=("chat", "batch"), latency_w=200.0)
    both, mixed = solve(task, EXACT), solve(replace(task, etas=(("chat", 0.0),)), EXACT)

    def sums(plan: Plan, service: str) -> tuple[float, float]:
        mine = [(g.count * g.column.watts, g.count * g.column.running) for g in plan.groups
                if g.column.kind.service == service]  # fmt: skip
        return sum(watts for watts, _ in mine), sum(running for _, running in mine)

    assert sums(mixed, "chat")[1] < sums(both, "chat")[1], "fewer in flight, whatever the watts"
    assert sums(mixed, "chat")[0] > sums(both, "chat")[0]
    assert sums(mixed, "batch")[0] == pytest.approx(sums(both, "batch")[0], rel=0.02)


def test_floors_and_n_plus_one_hold_where_gpus_allow_and_are_told_where_not() -> None:
    task = tiny((1.0, 0.2), gpus=8, floors=(("chat", 3),), spare=frozenset({"chat"}))
    plan = solve(task, EXACT)
    assert sum(plan.counts().values()) >= 3
    assert not shortfalls(task, plan)
    short = solve(replace(task, nodes=(NodeShape("H100", 2),)), EXACT)
    assert short.status == "short"
    assert not short.shed


def test_with_many_gpus_it_goes_by_parts_and_stays_near_the_bound() -> None:
    task = problem((120.0, 50.0, 30.0), (2, 4, 8), (NodeShape("H100", 8, 64),))
    plan = solve(task, Limits(time_s=5.0))
    assert not violations(task, plan)
    assert plan.source == "milp"
    assert plan.gap < 0.01


def test_a_failing_solver_leaves_the_first_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise AttributeError("'StatusNotOk' object has no attribute 'canonical_code'")

    monkeypatch.setattr(solver.mathopt, "solve", broken)
    plan = solve(problem())
    assert plan.groups == first_plan(problem()).groups
    assert plan.status.startswith("solver failed: AttributeError")


def test_no_time_leaves_the_first_plan_or_better() -> None:
    plan = solve(problem(), Limits(time_s=1e-9))
    assert plan.groups
    assert not violations(problem(), plan)


def test_limited_by_nodes_it_repeats_itself() -> None:
    task = problem((5.3, 2.7, 1.1), (2, 4, 8), (NodeShape("H100", 8, 6),))
    limits = Limits(time_s=None, nodes=50, gap=0.002)
    assert solve(task, limits) == solve(task, limits)


def test_nothing_to_plan_is_a_plan() -> None:
    assert solve(Problem((), (), ())).groups == ()
    assert solve(problem((0.0, 0.0, 0.0))).groups == ()


def test_a_running_kind_without_columns_is_stopped() -> None:
    gone = Kind("chat", "short", "H100", 8)
    task = tiny(current=((gone, 1),), switches=(SwitchJoules("chat", "H100", 8, 1e5, 3e3),))
    plan = solve(task, EXACT)
    assert plan.switch_j == pytest.approx(3e3)
    assert isinstance(plan, Plan)


bounds = st.sampled_from([(), (Bound("chat", "short", 2, 2), Bound("chat", "long", 0, 0)), (Bound("chat", "long", 3),)])
loads = st.tuples(*[st.floats(0, 12).map(lambda x: round(x, 2))] * 3)
shapes = st.lists(
    st.builds(NodeShape, st.sampled_from(["H100", "A100"]), st.sampled_from([2, 3, 4, 8]), st.integers(1, 3)),
    min_size=1, max_size=3,
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@example(
    (0.0, 1.0, 1.0), [NodeShape("H100", 2, 2)], inf, False, ()
)  # a count of 0.0000007 carries a little of the flow
@given(loads, shapes, st.sampled_from([inf, 6000.0]), st.booleans(), bounds)
def test_whatever_is_asked_the_plan_fits_and_covers_or_sheds(
    rps: tuple[float, ...], nodes: list[NodeShape], cap_w: float, spare: bool, bound: tuple[Bound, ...]
) -> None:
    task = problem(
        rps, (2, 4, 8), tuple(nodes), power_cap_w=cap_w, floors=(("chat", 2),),
        spare=frozenset({"chat"}) if spare else frozenset(), bounds=bound,
    )  # fmt: skip
    first, plan = first_plan(task), solve(task, Limits(time_s=None, nodes=200, gap=0.01))
    assert not plan.status.startswith("solver")
    assert not violations(task, plan)
    assert sum(r for *_, r in plan.shed) <= sum(r for *_, r in first.shed) + 1e-6
