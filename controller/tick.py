"""One decision of the controller: from what is seen to the next safe steps. Pure: no I/O, no clock, no randomness.

In order: operators' orders, watch load and health, plan if due, climb or leave the ladder, clocks, reconcile. A service
without an engine model, or not yet planned, has the instances that its pools are configured or asked to have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.clock_prices import parts
from controller.clocking import set_clocks
from controller.demand import observed
from controller.due import asked, plannable
from controller.emergency import climb
from controller.exploring import taught
from controller.health import judged
from controller.knowledge import Knowledge
from controller.overrides import (
    Apply,
    Order,
    Override,
    barred,
    beyond,
    bounded,
    clocks,
    drains,
    excluded,
    imposed,
    lacking,
    live,
    ordered,
    paused,
    take_out,
)
from controller.placement import Ground
from controller.planning import ServicePlan, switch_joules
from controller.reconcile import BACKOFF_S, LIVE, Wanted, barred_out, dead, steps
from controller.state import ControllerState, Decision, ServiceState
from controller.trust import Doubt, doubted
from core.instances import AS_CONFIGURED, Action, Seen, SeenInstance, SeenService, Start, State, Steer

Notes = list[Mapping[str, object]]
HOUR_S = 3600.0
EMERGENCIES = 2  # budgets of an hour that starts may take with those of emergencies, before nothing goes any more


@dataclass(frozen=True, slots=True)
class View:
    """One service's part of what is seen."""

    seen: Seen
    name: str
    instances: tuple[SeenInstance, ...]
    doubt: Doubt
    overrides: tuple[Override, ...] = ()

    @property
    def managed(self) -> bool:
        return any(pool.managed for pool in self.seen.pools if pool.service == self.name)

    @property
    def paused(self) -> bool:
        return paused(self.overrides, self.name)

    @property
    def free_gpus(self) -> int | None:
        """None: nobody counts them. GPUs that operators took out are not free, whoever still runs there."""
        gpus, out = self.seen.gpus, excluded(self.overrides)
        if not gpus.total:
            return None
        held = {gpu for instance in self.seen.instances for gpu in instance.gpus}
        return gpus.total - gpus.used - sum(gpu not in held for gpu in out)


def tick(
    state: ControllerState, seen: Seen, knowledge: Knowledge, interval_s: float,
    answer: Mapping[str, ServicePlan] | None = None, orders: Sequence[Order] = (),
) -> tuple[ControllerState, Decision]:  # fmt: skip
    """`answer`: the plan that an earlier decision asked for; empty: it could not be made. `orders`: what operators have
    said since the last tick."""
    services = dict(state.services)
    notes: Notes = []
    overrides, actions = _ordered(state, orders, seen, notes)
    proposed: list[Action] = []
    applied = {name: plan for order in orders if isinstance(order, Apply) for name, plan in order.plans.items()}
    for name in dict.fromkeys(pool.service for pool in seen.pools):
        doubt = doubted(seen, name, knowledge.settings)
        view = View(seen, name, tuple(i for i in seen.instances if i.service == name), doubt, overrides)
        one = _watched(services.get(name, ServiceState()), view, knowledge, notes)
        one = _with_plan(one, view, knowledge, answer, applied.get(name), notes)
        services[name], done, would = _acted(one, view, knowledge, notes)
        actions += done
        proposed += would
    ask = asked(services, seen, knowledge, overrides)
    if ask is not None:
        services |= {name: replace(services[name], asked_s=seen.now_s) for name in ask.asked}
    decision = Decision(tuple(actions), seen.now_s + interval_s, tuple(proposed), ask, tuple(notes))
    return ControllerState(services, state.ticks + 1, overrides, excluded(overrides)), decision


def _ordered(
    state: ControllerState, orders: Sequence[Order], seen: Seen, notes: Notes
) -> tuple[tuple[Override, ...], list[Action]]:
    """The overrides that hold now, and what beginning and ending ones ask for at once."""
    overrides = live(imposed(state.overrides, orders), seen)
    ended = [one for one in state.overrides if one not in overrides]
    for one in (one for one in overrides if one not in state.overrides):
        notes.append({"note": "override", "id": one.id, "override": one.kind, "by": one.by, "reason": one.reason})
    notes += [{"note": "override_over", "id": one.id, "override": one.kind} for one in ended]
    return overrides, [*take_out(excluded(overrides), state.excluded), *drains(overrides, ended, seen)]


def _with_plan(
    one: ServiceState, view: View, knowledge: Knowledge, answer: Mapping[str, ServicePlan] | None,
    applied: ServicePlan | None, notes: Notes,
) -> ServiceState:  # fmt: skip
    """The newest plan, and the one that an operator has approved: whatever was in force when the mode became advise."""
    if answer is not None:
        plan = one.plan if view.paused else answer.get(view.name, one.plan)
        if plan is not None:
            _news(one, plan, view.name, notes)
        one = replace(one, plan=plan, asked_s=None)
    if applied is not None:
        plan = replace(applied, at_s=view.seen.now_s, ordered=ordered(view.overrides, view.seen.pools))
        _news(one, plan, view.name, notes)
        return replace(one, plan=plan, approved=plan)
    return replace(one, approved=one.plan) if knowledge.mode == "enforce" else one


def _acted(
    one: ServiceState, view: View, knowledge: Knowledge, notes: Notes
) -> tuple[ServiceState, list[Action], list[Action]]:
    """What is done by the plan in force, and what the newest would do besides where the mode does not let it."""
    force = one.in_force(knowledge.mode)
    after, done = _decided(replace(one, plan=force), view, knowledge, notes)
    if force is one.plan:
        return after, done, []
    _, would = _decided(one, view, knowledge, [])
    return replace(after, plan=one.plan), done, [a for a in would if a not in done and not isinstance(a, Steer)]


def _news(one: ServiceState, plan: ServicePlan, name: str, notes: Notes) -> None:
    """A plan is taken over; one that was merely kept is no news."""
    if plan is not one.plan:
        targets = [f"{t.kind.pool} {t.count} x TP{t.kind.tp} at {t.clock_mhz} MHz" for t in plan.targets]
        load = {"mean_rps": round(plan.mean_rps, 3), "upper_rps": round(plan.upper_rps, 3)}
        notes.append({"note": "plan", "service": name, "expected_w": plan.expected_w, "status": plan.status,
                      "targets": targets, **load})  # fmt: skip


def _watched(one: ServiceState, view: View, knowledge: Knowledge, notes: Notes) -> ServiceState:
    """Load and attainment since the last tick, at the time that they tell of."""
    known, counts = knowledge.services.get(view.name), _counts(view)
    one = _trusted(one, view, notes)
    if known is None or counts is None:
        return one
    before = one.demand.counts
    demand = observed(one.demand, known.spec, view.seen.wall_s - counts.age_s, counts.counts)
    health = judged(one.health, before, counts.counts, view.seen.now_s - counts.age_s, knowledge.settings)
    if health.harmed_until_s > one.health.harmed_until_s and plannable(view.name, knowledge):
        notes.append({"note": "do_no_harm", "service": view.name, "bad_minutes": health.bad})
    return taught(replace(one, demand=demand, health=health), one.health, knowledge.settings)


def _trusted(one: ServiceState, view: View, notes: Notes) -> ServiceState:
    """What has become too old to be trusted is told once, and so is what is fresh again."""
    now = tuple(sorted(view.doubt.what))
    if now == one.doubted:
        return one
    if stale := [name for name in now if name not in one.doubted]:
        notes.append({"note": "stale", "service": view.name, "what": {name: view.doubt.what[name] for name in stale}})
    if fresh := [name for name in one.doubted if name not in now]:
        notes.append({"note": "fresh_again", "service": view.name, "what": fresh})
    return replace(one, doubted=now)


def _counts(view: View) -> SeenService | None:
    return next((service for service in view.seen.services if service.name == view.name), None)


def _decided(one: ServiceState, view: View, knowledge: Knowledge, notes: Notes) -> tuple[ServiceState, list[Action]]:
    if not view.managed:
        return one, []
    actions: list[Action] = dead([i for i in view.instances if _ours(view, i)])
    actions += clocks(view.overrides, view.seen, view.name)
    if plannable(view.name, knowledge):
        known = knowledge.services[view.name]
        one, ladder = climb(one, view.seen, known, view.doubt, notes)
        one, turned = set_clocks(one, view.seen, known, knowledge.settings, view.doubt, view.overrides)
        actions += [*ladder, *turned]
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
        one, wanted = _patient(one, wanted, mine, now_s, knowledge, view)
    pausing = {pool for pool, at_s in one.retry_at_s.items() if now_s < at_s}
    counts = {kind: count for kind, count in wanted.counts.items() if kind[0] not in pausing}
    out = excluded(view.overrides)
    doomed = [i for i in mine if barred(i, out) and i.state is not State.FAILED]
    whole = [i for i in mine if i.state is not State.FAILED and i not in doomed]
    if one.plan is None:  # no plan of our own: whatever TP an instance has, it is one of its pool's
        tps = {pool.name: pool.tp for pool in view.seen.pools if pool.service == view.name}
        whole = [replace(i, tp=tps[i.pool]) for i in whole]
    live = [i for i in whole if i.pool not in pausing]
    ground = _ground(view, live) if one.plan is not None else None
    drain = wanted.drain and not _awaited(view, wanted, whole, pausing)
    moves = steps(replace(wanted, counts=counts, ground=ground, drain=drain), live, reason)
    moves += barred_out(doomed, live, wanted, view.free_gpus)
    started = sum(isinstance(move, Start) for move in moves) if one.plan is not None else 0  # no plan changed its mind
    recent = tuple(at_s for at_s in one.starts_s if now_s - at_s < HOUR_S)
    return replace(one, starts_s=(*recent, *(now_s for _ in range(started)))), moves


def _awaited(view: View, wanted: Wanted, whole: Sequence[SeenInstance], pausing: Collection[str]) -> bool:
    """Whether something is missing that failed to start, is tried again after a pause, and has room: until it is READY
    what it replaces serves on. Where there is no room a drain makes it."""
    alive = Counter((i.pool, i.tp) for i in whole)
    short = [tp for (pool, tp), count in wanted.counts.items() if pool in pausing and alive[pool, tp] < count]
    free, islands = view.free_gpus, view.seen.gpus.islands
    if free is None:
        return bool(short)
    held = {gpu for instance in view.seen.instances for gpu in instance.gpus} | set(excluded(view.overrides))
    most = min(free, max((len(set(island) - held) for island in islands), default=free))
    return any(tp <= most for tp in short)


def _ground(view: View, live: Sequence[SeenInstance]) -> Ground | None:
    """None where there is nothing to choose: one island, or nobody says which GPUs there are."""
    islands, ours = view.seen.gpus.islands, {i.id for i in live}
    if len(islands) < 2:
        return None
    taken = {gpu for instance in view.seen.instances if instance.id not in ours for gpu in instance.gpus}
    taken |= set(excluded(view.overrides))
    return Ground(tuple(frozenset(island) - taken for island in islands))


def _wanted(one: ServiceState, view: View, knowledge: Knowledge) -> tuple[Wanted, str]:
    """The plan where there is one, else what the pools are configured to have."""
    seen, settings = view.seen, knowledge.settings
    gpus = view.free_gpus
    pools = [pool for pool in seen.pools if pool.service == view.name and pool.managed]
    if one.plan is None:
        configured = {(pool.name, pool.tp): pool.wanted for pool in pools}
        counts, shapes = bounded(view.overrides, pools, configured, dict.fromkeys(configured, AS_CONFIGURED))
        return Wanted(view.name, counts, shapes, 1 << 20, None, 0), "the configured plan"
    counts, shapes = one.plan.counts(), one.plan.shapes(knowledge, view.name)
    for pool in pools:
        if pool.pinned:
            counts = {kind: count for kind, count in counts.items() if kind[0] != pool.name}
            counts[pool.name, pool.tp] = pool.wanted
            shapes[pool.name, pool.tp] = AS_CONFIGURED
    counts, shapes = bounded(view.overrides, pools, counts, shapes)
    reason = f"the plan of {one.plan.at_s:.0f} s for {one.plan.mean_rps:.1f} to {one.plan.upper_rps:.1f} requests/s"
    park_s = _park_s(knowledge, view.name) if settings.park else {}
    return Wanted(
        view.name, counts, shapes, settings.most_changes, gpus, settings.floor, park_s=park_s, now_s=seen.now_s,
        carries=parts(one.plan.alone), from_pool=dict(one.plan.from_pool),
    ), reason  # fmt: skip


def _park_s(knowledge: Knowledge, name: str) -> dict[int, float]:
    """By TP, how long an instance may sleep: until that has cost what its next start would. Whenever it is wanted
    again, that spends at most twice what foreknowledge would (the ski-rental rule)."""
    known = knowledge.services[name]
    model = known.model
    if model is None or model.parked_w <= model.bare_idle_w:
        return {}
    extra_w = model.parked_w - model.bare_idle_w
    return {tp: switch_joules(name, model, tp, known).start_j / (extra_w * tp) for tp in model.points}


def _patient(
    one: ServiceState, wanted: Wanted, mine: list[SeenInstance], now_s: float, knowledge: Knowledge, view: View
) -> tuple[ServiceState, Wanted]:  # fmt: skip
    """A surplus must have been one for a while, of fresh observations, and starts of an hour are counted, so that
    nothing thrashes. An emergency may start more, but beyond twice the budget nothing is drained: what goes is what the
    next one would start again. What an operator ordered waits for none of that."""
    settings = knowledge.settings
    there = Counter((i.pool, i.tp) for i in mine if i.state in LIVE)
    fewer = there.total() > sum(wanted.counts.values())
    if one.surplus_s is not None and not fewer:  # one went and its place is taken by what replaces the others
        fewer = any(count > wanted.counts.get(kind, 0) for kind, count in there.items())
    since_s = (one.surplus_s if one.surplus_s is not None else now_s) if fewer else None
    patient = since_s is not None and now_s - since_s < settings.settle_s
    budget = max(settings.most_changes, settings.switches_per_hour * (knowledge.gpus or 100) / 100)
    recent = sum(1 for at_s in one.starts_s if now_s - at_s < HOUR_S)
    urgent = any(standing.rungs for standing in one.standings.values()) or one.health.harmed_until_s > now_s
    starts = settings.most_changes if urgent else min(settings.most_changes, max(0, int(budget) - recent))
    spent = recent >= EMERGENCIES * int(budget) or view.doubt.holds
    pools = [pool for pool in view.seen.pools if pool.service == view.name and pool.managed]
    if lacking(view.overrides, pools, wanted.counts, mine):
        starts, patient, spent = settings.most_changes, False, False
        wanted = replace(wanted, from_pool={})  # it is not ours to weigh
    drain = not (patient or urgent or spent)
    if not drain and (too_many := beyond(view.overrides, pools, wanted.counts, mine)):
        wanted, drain = _others_stay(wanted, mine, too_many), True
    return replace(one, surplus_s=since_s), replace(wanted, starts=starts, drain=drain)


def _others_stay(wanted: Wanted, mine: Sequence[SeenInstance], going: Collection[str]) -> Wanted:
    """Surplus goes from the pools `going` alone."""
    there = Counter((i.pool, i.tp) for i in mine if i.state in LIVE and i.pool not in going)
    kept = {kind: max(count, wanted.counts.get(kind, 0)) for kind, count in there.items()}
    return replace(wanted, counts={**wanted.counts, **kept})


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
