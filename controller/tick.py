"""One decision of the controller: from what is seen to the next safe steps. Pure: no I/O, no clock, no randomness.

In order: watch load and health, plan if due, climb or leave the ladder, clocks, reconcile. A service without an engine
model, or not yet planned, has the number of instances that its pools are configured or asked to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from controller.clocking import set_clocks
from controller.demand import observed
from controller.emergency import climb
from controller.health import judged
from controller.knowledge import Knowledge
from controller.planning import Ask, Asked, ServicePlan
from controller.reconcile import BACKOFF_S, LIVE, Wanted, dead, steps
from controller.state import ControllerState, Decision, ServiceState
from core.instances import AS_CONFIGURED, Action, Seen, SeenInstance, SeenService, Start, State, Steer

Notes = list[Mapping[str, object]]
HOUR_S = 3600.0
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class View:
    """One service's part of what is seen."""

    seen: Seen
    name: str
    instances: tuple[SeenInstance, ...]

    @property
    def managed(self) -> bool:
        return any(pool.managed for pool in self.seen.pools if pool.service == self.name)


def tick(
    state: ControllerState, seen: Seen, knowledge: Knowledge, interval_s: float,
    answer: Mapping[str, ServicePlan] | None = None,
) -> tuple[ControllerState, Decision]:  # fmt: skip
    """`answer`: the plan that an earlier decision asked for."""
    services = dict(state.services)
    actions: list[Action] = []
    proposed: list[Action] = []
    notes: Notes = []
    for name in dict.fromkeys(pool.service for pool in seen.pools):
        view = View(seen, name, tuple(i for i in seen.instances if i.service == name))
        one = _watched(services.get(name, ServiceState()), view, knowledge, notes)
        if answer is not None and name in answer:
            one = _adopted(one, answer[name], name, notes)
        one, done = _decided(one, view, knowledge, notes)
        acts = knowledge.mode == "enforce" or one.plan is None or not _planned(knowledge, name)
        actions += done if acts else [action for action in done if isinstance(action, Steer)]
        proposed += [] if acts else done
        services[name] = one
    asked = _asked(services, seen, knowledge)
    if asked:
        services |= {name: replace(services[name], asked_s=seen.now_s) for name in asked}
    ask = Ask(knowledge, asked, _current(seen), seen.now_s, seen.wall_s) if asked else None
    decision = Decision(tuple(actions), seen.now_s + interval_s, tuple(proposed), ask, tuple(notes))
    return ControllerState(services, state.ticks + 1), decision


def _adopted(one: ServiceState, plan: ServicePlan, name: str, notes: Notes) -> ServiceState:
    """A plan is taken over; one that was merely kept is no news."""
    if plan is not one.plan:
        targets = [f"{t.kind.pool} {t.count} x TP{t.kind.tp} at {t.clock_mhz} MHz" for t in plan.targets]
        load = {"mean_rps": round(plan.mean_rps, 3), "upper_rps": round(plan.upper_rps, 3)}
        notes.append({"note": "plan", "service": name, "expected_w": plan.expected_w, "status": plan.status,
                      "targets": targets, **load})  # fmt: skip
    return replace(one, plan=plan, asked_s=None)


def _watched(one: ServiceState, view: View, knowledge: Knowledge, notes: Notes) -> ServiceState:
    """Load and attainment of the time since the last tick."""
    known, counts = knowledge.services.get(view.name), _counts(view)
    if known is None or counts is None:
        return one
    before = one.demand.counts
    demand = observed(one.demand, known.spec, view.seen.wall_s, counts.counts)
    health = judged(one.health, before, counts.counts, view.seen.now_s, knowledge.settings)
    if health.harmed_until_s > one.health.harmed_until_s:
        notes.append({"note": "do_no_harm", "service": view.name, "bad_minutes": health.bad})
    return replace(one, demand=demand, health=health)


def _counts(view: View) -> SeenService | None:
    return next((service for service in view.seen.services if service.name == view.name), None)


def _planned(knowledge: Knowledge, name: str) -> bool:
    known = knowledge.services.get(name)
    return known is not None and known.model is not None


def _decided(one: ServiceState, view: View, knowledge: Knowledge, notes: Notes) -> tuple[ServiceState, list[Action]]:
    if not view.managed:
        return one, []
    actions: list[Action] = dead([i for i in view.instances if _ours(view, i)])
    if _planned(knowledge, view.name):
        one, ladder = climb(one, view.seen, knowledge.services[view.name], notes)
        one, clocks = set_clocks(one, view.seen, knowledge.services[view.name], knowledge.settings)
        actions += [*ladder, *clocks]
    one, moves = _reconciled(one, view, knowledge)
    return one, [*actions, *moves]


def _ours(view: View, instance: SeenInstance) -> bool:
    pools = {pool.name for pool in view.seen.pools if pool.service == view.name and pool.managed}
    return instance.pool in pools and not instance.adopted


def _reconciled(one: ServiceState, view: View, knowledge: Knowledge) -> tuple[ServiceState, list[Action]]:
    now_s = view.seen.now_s
    mine = [i for i in view.instances if _ours(view, i)]
    one = _failures(one, mine, now_s)
    wanted, reason = _wanted(one, view, knowledge)
    if one.plan is not None:
        one, wanted = _patient(one, wanted, mine, now_s, knowledge)
    pausing = {pool for pool, at_s in one.retry_at_s.items() if now_s < at_s}
    counts = {kind: count for kind, count in wanted.counts.items() if kind[0] not in pausing}
    live = [i for i in mine if i.state is not State.FAILED and i.pool not in pausing]
    if one.plan is None:  # no plan of our own: whatever TP an instance has, it is one of its pool's
        tps = {pool.name: pool.tp for pool in view.seen.pools if pool.service == view.name}
        live = [replace(i, tp=tps[i.pool]) for i in live]
    moves = steps(replace(wanted, counts=counts), live, reason)
    started = sum(isinstance(move, Start) for move in moves)
    recent = tuple(at_s for at_s in one.starts_s if now_s - at_s < HOUR_S)
    return replace(one, starts_s=(*recent, *(now_s for _ in range(started)))), moves


def _wanted(one: ServiceState, view: View, knowledge: Knowledge) -> tuple[Wanted, str]:
    """The plan where there is one, else what the pools are configured to have."""
    seen, settings = view.seen, knowledge.settings
    gpus = seen.gpus.total - seen.gpus.used if seen.gpus.total else None
    if one.plan is None:
        pools = [pool for pool in seen.pools if pool.service == view.name and pool.managed]
        counts = {(pool.name, pool.tp): pool.wanted for pool in pools}
        shapes = dict.fromkeys(counts, AS_CONFIGURED)
        return Wanted(view.name, counts, shapes, 1 << 20, None, 0), "the configured plan"
    counts, shapes = one.plan.counts(), one.plan.shapes(knowledge, view.name)
    for pool in seen.pools:
        if pool.service == view.name and pool.pinned:
            counts = {kind: count for kind, count in counts.items() if kind[0] != pool.name}
            counts[pool.name, pool.tp] = pool.wanted
            shapes[pool.name, pool.tp] = AS_CONFIGURED
    reason = f"the plan of {one.plan.at_s:.0f} s for {one.plan.mean_rps:.1f} to {one.plan.upper_rps:.1f} requests/s"
    return Wanted(view.name, counts, shapes, settings.most_changes, gpus, settings.floor), reason


def _patient(
    one: ServiceState, wanted: Wanted, mine: list[SeenInstance], now_s: float, knowledge: Knowledge
) -> tuple[ServiceState, Wanted]:  # fmt: skip
    """A surplus must have been one for a while, and starts of an hour are counted, so that nothing thrashes."""
    settings = knowledge.settings
    live = sum(1 for i in mine if i.state in LIVE)
    fewer = live > sum(wanted.counts.values())
    since_s = (one.surplus_s if one.surplus_s is not None else now_s) if fewer else None
    patient = since_s is not None and now_s - since_s < settings.settle_s
    budget = max(settings.most_changes, settings.switches_per_hour * (knowledge.gpus or 100) / 100)
    recent = sum(1 for at_s in one.starts_s if now_s - at_s < HOUR_S)
    urgent = any(standing.rungs for standing in one.standings.values()) or one.health.harmed_until_s > now_s
    starts = settings.most_changes if urgent else min(settings.most_changes, max(0, int(budget) - recent))
    return replace(one, surplus_s=since_s), replace(wanted, starts=starts, drain=not (patient or urgent))


def _failures(one: ServiceState, mine: list[SeenInstance], now_s: float) -> ServiceState:
    """Starts in a row that failed, by pool, and how long to wait before the next."""
    failures, retry_at_s = dict(one.failures), dict(one.retry_at_s)
    for pool in dict.fromkeys(i.pool for i in mine):
        lost = sum(1 for i in mine if i.pool == pool and i.state is State.FAILED)
        if lost:
            failures[pool] = failures.get(pool, 0) + lost
            retry_at_s[pool] = now_s + BACKOFF_S[min(failures[pool], len(BACKOFF_S) - 1)]
        if any(i.pool == pool and i.state is State.READY and now_s - i.since_s > BACKOFF_S[-1] for i in mine):
            failures.pop(pool, None)
    return replace(one, failures=failures, retry_at_s=retry_at_s)


def _asked(services: Mapping[str, ServiceState], seen: Seen, knowledge: Knowledge) -> dict[str, Asked]:
    """All services that can be planned, as soon as one of them is due: they share the GPUs."""
    able = {
        name: one
        for name, one in services.items()
        if _planned(knowledge, name) and one.demand.counts is not None and any(c.asked for c in one.demand.counts)
    }
    if not any(_due(one, seen, knowledge) for one in able.values()):
        return {}
    if any(one.asked_s is not None for one in able.values()):
        return {}
    return {name: Asked(knowledge.services[name], one.demand, one.health.trim) for name, one in able.items()}


def _due(one: ServiceState, seen: Seen, knowledge: Knowledge) -> bool:
    settings = knowledge.settings
    if one.plan is None:
        return one.demand.load.windows.heard_s >= min(MINUTE_S, settings.plan_every_s)
    age_s = seen.now_s - one.plan.at_s
    if age_s >= settings.plan_every_s:
        return True
    if age_s < MINUTE_S:
        return False
    if one.health.bad and one.health.minute_s > one.plan.at_s:
        return True
    forecast = one.demand.load.forecast(seen.wall_s, 300.0, settings.coverage)
    now_rps, then_rps = forecast.total_mean.requests_rps, one.plan.mean_rps
    return now_rps - then_rps > settings.drift_band * max(1.0, then_rps)  # less load can wait for the next plan


def _current(seen: Seen) -> dict[tuple[str, str, int], int]:
    counted: dict[tuple[str, str, int], int] = {}
    for i in seen.instances:
        if i.state in LIVE and not i.adopted:
            counted[i.service, i.pool, i.tp] = counted.get((i.service, i.pool, i.tp), 0) + 1
    return counted
