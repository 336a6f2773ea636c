"""Builds the running gateway from a configuration, and applies a new configuration to it whole or not at all.

The one place where parts meet. Starts no server and no task: gateway/run.py does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from math import inf
from pathlib import Path
from typing import Literal

import httpx
from prometheus_client.core import Metric
from prometheus_client.registry import CollectorRegistry

from controller.knowledge import STALE_S, Knowledge, ServiceKnowledge, Settings
from controller.loop import Controller, Solve, solved_aside
from controller.planning import ServicePlan
from controller.solve_worker import SolveWorker
from controller.solving import Solving
from core.clock import Clock
from core.errors import BadRequest, Conflict
from core.recorder import Recorder
from core.service import ServiceSpec
from gateway.agents import HostAgent, gpus_of, islands_seen
from gateway.auth import Keyring, RateLimiter
from gateway.config import Config, to_services
from gateway.config import Controller as ControllerConfig
from gateway.events import Events
from gateway.lag import LoopLag
from gateway.ledger import Ledger, Tick
from gateway.ledger_store import LedgerStore
from gateway.metrics import Metrics, instance_gauges, lag_rows
from gateway.metrics_state import controller_rows, energy_rows, instance_rows
from gateway.serve import Gateway
from gateway.service import Service
from gateway.tariff import Tariff, make_tariff
from pools.admission import Admission
from pools.clocks import Clocks, EngineClocks
from pools.cluster import LiveCluster
from pools.connection import authority
from pools.counters import Counters, EngineCounters, GpuCounters
from pools.fleet import Fleet, FleetLimits
from pools.gpu_book import GpuBook
from pools.knobs import EngineKnobs, Knobs, NoKnobs
from pools.launcher import Launcher, ProcessLauncher, StaticLauncher
from pools.shape import step_tokens
from pools.transitions import Transitions
from predictor.blend import Blend
from predictor.challenger import Challenger
from predictor.model import LengthModel
from predictor.model_file import SHIPPED, read_model
from predictor.tokens import ExactCount
from profiles.engine_model import EngineModel, load_engine_model

CONTROL_TIMEOUT_S = 2.0
PROBES = 2  # an instance may miss one before it is old news
SOLVE_S = 1.0  # for the integer programme; the plan is there before


@dataclass(slots=True)
class Running:
    """Everything that lives while the gateway runs. `generation` counts accepted configurations and admin changes."""

    config: Config
    clock: Clock
    recorder: Recorder
    metrics: Metrics
    registry: CollectorRegistry
    gateway: Gateway
    cluster: LiveCluster
    controller: Controller
    admin_keyring: Keyring
    shared: Shared
    mode: Mode
    events: Events
    ledger: Ledger
    tariff: Tariff
    agents: Mapping[str, HostAgent]
    generation: int = 1


@dataclass(slots=True)
class Mode:
    """Whether the controller acts on its plan; an operator may change it while the gateway runs."""

    name: Literal["shadow", "advise", "enforce"]


class Shared:
    """What all services of this process draw from: instance ids (pool name and a number), GPUs and agents."""

    def __init__(self, agents: Mapping[str, HostAgent], transitions: Transitions, speed: float = 1.0) -> None:
        self._numbers = count(1)
        self.speed = speed  # of the clock, and so of engines that are emulated
        self.agents = agents
        self.transitions = transitions
        self.worker = SolveWorker()  # starts with the first problem that it is given
        self.gpus = GpuBook()  # where no agent says which there are
        self.http = httpx.AsyncClient(
            trust_env=False, timeout=CONTROL_TIMEOUT_S
        )  # control of instances; answers go another way

    def new_id(self, pool: str) -> str:
        return f"{pool.replace('/', '-')}-{next(self._numbers)}"

    def skip_ids(self, taken: Iterable[str]) -> None:
        """Numbers of instances that run already are not given again."""
        numbers = [int(number) for number in (one.rpartition("-")[2] for one in taken) if number.isdigit()]
        self._numbers = count(max([next(self._numbers) - 1, *numbers]) + 1)


def build(
    config: Config, clock: Clock, recorder: Recorder, environment: Mapping[str, str], speed: float = 1.0
) -> Running:
    """Wires all parts together. `speed`: of the clock, which emulated engines keep up with. Raises ConfigError-like
    BadRequest when a file that the configuration names is bad."""
    agents = {
        name: HostAgent(name, one, clock, config.controller.node_gpus, environment)
        for name, one in config.agents.items()
    }
    recorded = config.controller.transitions
    transitions = Transitions(clock, None if recorded is None else Path(recorded))
    shared, events = Shared(agents, transitions, speed), Events(recorder)
    recorder = events
    services = {s.name: make_service(s, config, clock, recorder, shared, environment) for s in to_services(config)}
    metrics, registry = Metrics(), CollectorRegistry()
    registry.register(metrics)
    cluster = LiveCluster(
        [service.fleet for service in services.values()],
        clock,
        probe_interval_s=config.health.interval_s,
        probe_timeout_s=config.health.timeout_s,
        gpus=lambda: gpus_of(config.controller.gpus, agents),
        islands=lambda: islands_seen(agents),
    )
    ledger = make_ledger(config, clock, cluster, shared)
    cluster.metered = ledger.metered
    ledger.on_tick = lambda tick: events.send("energy", energy_event(tick))
    gateway = Gateway(
        services, Keyring(config.auth.keys), RateLimiter(), config.limits, clock, recorder, metrics, LoopLag(clock),
        ledger,
    )  # fmt: skip
    mode = Mode(config.controller.mode)
    controller = Controller(
        cluster, clock, recorder, interval_s=config.controller.interval_s,
        knowledge=lambda: known(gateway, config, mode.name, gpus_of(config.controller.gpus, agents), transitions),
        solve=make_solve(config.controller, shared.worker, clock, recorder),
    )  # fmt: skip
    metrics.gauges = lambda: [
        *live_gauges(gateway, controller), *energy_rows(ledger), *instance_rows(gateway),
        *controller_rows(controller, mode.name, clock),
    ]  # fmt: skip
    ledger.on_settled = lambda bill: metrics.settled(bill.service, bill.size_class, bill.joules)
    gateway.plan_of = lambda name: plan_in_force(controller, mode.name, name)
    return Running(
        config,
        clock,
        recorder,
        metrics,
        registry,
        gateway,
        cluster,
        controller,
        Keyring(config.auth.admin_keys),
        shared,
        mode,
        events,
        ledger,
        tariff_of(config),
        agents,
    )


def make_solve(config: ControllerConfig, worker: SolveWorker, clock: Clock, recorder: Recorder) -> Solve:
    def lost(why: str) -> None:
        recorder.record({"kind": "controller", "t": clock.wall_s(), "note": "solver_lost", "cause": why})

    return Solving(worker, SOLVE_S, lost) if config.solver == "milp" else solved_aside


def make_ledger(config: Config, clock: Clock, cluster: LiveCluster, shared: Shared) -> Ledger:
    energy, day_s = config.energy, 86_400.0
    path = None if energy.path is None else Path(energy.path)
    store = LedgerStore(path, keep_s=energy.keep_days * day_s, keep_requests_s=energy.keep_requests_days * day_s)
    counters: list[Counters] = [GpuCounters(agent, agent.uuids_of, clock) for agent in shared.agents.values()]
    counters.append(EngineCounters(shared.http, clock, shared.speed))
    return Ledger(lambda: list(cluster.all_fleets()), counters, clock, store, energy.interval_s)


def tariff_of(config: Config) -> Tariff:
    """ValueError when a file that the configuration names is bad."""
    one = config.energy
    return make_tariff(one.gco2_per_kwh, one.price_per_kwh, one.gco2_file, one.price_file, one.currency)


def energy_event(tick: Tick) -> dict[str, object]:
    """What GET /admin/events tells each second."""
    watts = {cause: round(spent_w, 3) for cause, spent_w in tick.watts.items()}
    pools = {f"{service}/{pool}": round(spent_w, 3) for (service, pool), spent_w in tick.pools.items()}
    total = round(sum(tick.watts.values()), 3)
    return {"t": tick.wall_s, "total_w": total, "watts": watts, "pools": pools, "quality": tick.quality}


def plan_in_force(controller: Controller, mode: str, service: str) -> ServicePlan | None:
    state = controller.state.services.get(service)
    return None if state is None else state.in_force(mode)


def known(gateway: Gateway, settings: Config, mode: str, gpus: int, transitions: Transitions) -> Knowledge:
    """What the controller decides with, as promises and configuration are now."""
    config = settings.controller
    if config.plan == "configured":  # load and attainment are watched all the same
        watched = {name: ServiceKnowledge(service.spec, None) for name, service in gateway.services.items()}
        return Knowledge(watched, gpus=gpus, mode=mode)
    services = {}
    for name, service in gateway.services.items():
        spec, model = service.spec, service.fleet.model
        if model is not None and service.fleet.launcher.managed:
            steps = {tp: step_tokens(model, tp, max(model.clocks_mhz), spec.slo.tbt_s) for tp in model.points}
            costs = transitions.switch_j(name), transitions.wake_j(name), transitions.reshard_j(name)
            services[name] = ServiceKnowledge(spec, model, steps, *costs)
    return Knowledge(services, settings_of(settings), gpus, config.node_gpus, mode)


def settings_of(settings: Config) -> Settings:
    """Nothing is old that is no older than PROBES probes in a row can make it."""
    config, probes = settings.controller, settings.health
    return Settings(
        plan_every_s=config.plan_interval_s, eta=config.eta, spare=config.spare, park=config.park,
        tbt_room=config.tbt_room, learn=config.learn,
        stale_s=max(STALE_S, PROBES * (probes.interval_s + probes.timeout_s)),
        power_cap_w=inf if config.power_cap_w is None else config.power_cap_w,
    )  # fmt: skip


def make_service(
    spec: ServiceSpec, config: Config, clock: Clock, recorder: Recorder, shared: Shared, environment: Mapping[str, str]
) -> Service:
    def note(kind: str, fields: dict[str, object]) -> None:
        recorder.record({"kind": kind, "t": clock.wall_s(), "service": spec.name, **fields})

    admission = Admission(spec, clock, max_queue=config.limits.max_queue, max_wait_s=config.limits.max_wait_s)
    agent = shared.agents.get(spec.launcher.agent)
    launcher = make_launcher(spec, environment, shared, agent, authority(config.listen.host, config.listen.port))
    model = load_engine_model(spec.profile) if spec.profile else None
    limits = FleetLimits(
        config.limits.connect_timeout_s, config.health.fall, config.health.rise,
        config.breaker.failures, config.breaker.backoff_s, config.breaker.backoff_max_s,
    )  # fmt: skip
    knobs = make_knobs(spec, model, shared.http, agent)
    fleet = Fleet(spec, launcher, admission, model, clock, limits, note, shared.new_id, knobs, shared.transitions)
    exact = ExactCount(spec.tokenizer) if spec.tokenizer and os.path.exists(spec.tokenizer) else None
    return Service(fleet, admission, make_predictor(spec), make_challenger(spec), exact=exact)


def make_predictor(spec: ServiceSpec) -> Blend:
    """OSError or ModelFileError when its file cannot be used."""
    if spec.predictor.kind == "running":
        return Blend(None)
    return Blend(LengthModel(read_model(Path(spec.predictor.model) if spec.predictor.model else SHIPPED)))


def make_challenger(spec: ServiceSpec) -> Challenger | None:
    name = spec.predictor.challenger
    return Challenger(Blend(LengthModel(read_model(Path(name)))), name) if name else None


def make_knobs(spec: ServiceSpec, model: EngineModel | None, http: httpx.AsyncClient, agent: HostAgent | None) -> Knobs:
    if spec.launcher.kind == "static":
        return NoKnobs()
    clocks: Clocks | None = None
    if agent is not None:
        clocks = agent.clocks
    elif spec.launcher.kind == "emulated" and model is not None:
        clocks = EngineClocks(http, max(model.clocks_mhz))
    return EngineKnobs(http, clocks, spec.launcher.sleep_level, spec.launcher.start_timeout_s)


def make_launcher(
    spec: ServiceSpec, environment: Mapping[str, str], shared: Shared, agent: HostAgent | None, address: str
) -> Launcher:
    if spec.launcher.kind == "static":
        return StaticLauncher()
    if agent is None:
        return ProcessLauncher(spec, environment, shared.gpus, speed=shared.speed, address=address)
    return ProcessLauncher(
        spec, environment, agent.book, emulated_gpus=lambda: agent.state_file, speed=shared.speed, address=address
    )


def take_over(running: Running) -> list[str]:
    """What an earlier gateway that was killed has left running serves on, before anything new starts. One that was
    parked is woken, for nobody remembers that it sleeps."""
    fleets = [service.fleet for service in running.gateway.services.values()]
    found = [(fleet, one.instance_id) for fleet in fleets for one in fleet.take_over()]
    running.shared.skip_ids(instance_id for _, instance_id in found)
    for fleet, instance_id in found:
        running.cluster.sleepers.rouse(fleet, instance_id)
    return [instance_id for _, instance_id in found]


def live_gauges(gateway: Gateway, controller: Controller) -> Iterable[Metric]:
    seen = [
        (service.spec.name, i.pool, i.id, i.state, i.requests)
        for service in gateway.services.values()
        for i in (member.instance for member in service.fleet.members.values())
    ]
    queued = {
        (service.spec.name, pool.name): service.admission.router.queued(index)
        for service in gateway.services.values()
        for index, pool in enumerate(service.spec.pools)
    }
    return [*instance_gauges(seen, queued), *lag_rows(gateway.lag.last_s, gateway.lag.histogram)]


def apply_config(running: Running, new: Config, environment: Mapping[str, str]) -> list[str]:
    """Takes `new` whole, or raises Conflict and changes nothing. Returns what changed, in words."""
    specs = {spec.name: spec for spec in to_services(new)}
    old = running.gateway.services
    blocked = list(_needs_restart(running.config, new))
    blocked += [f"services.{n}: {why}" for n, s in specs.items() if n in old for why in _fixed(old[n].spec, s)]
    if blocked:
        raise Conflict("this change needs a restart: " + "; ".join(blocked), code="restart_needed")
    try:
        added = {
            name: make_service(spec, new, running.clock, running.recorder, running.shared, environment)
            for name, spec in specs.items()
            if name not in old
        }
        challengers = {name: make_challenger(spec) for name, spec in specs.items() if name in old}
    except (OSError, ValueError) as error:
        raise BadRequest(str(error)) from None
    changes = _apply_services(running, specs, added, challengers)
    gateway = running.gateway
    if (new.auth, new.limits) != (running.config.auth, running.config.limits):
        changes.append("auth and limits")
    gateway.keyring, gateway.limits = Keyring(new.auth.keys), new.limits
    running.admin_keyring = Keyring(new.auth.admin_keys)
    for service in gateway.services.values():
        service.admission.max_wait_s = new.limits.max_wait_s
        service.admission.router.max_queue = new.limits.max_queue
    running.config = new
    running.generation += 1
    return changes


def _apply_services(
    running: Running, specs: Mapping[str, ServiceSpec], added: Mapping[str, Service],
    challengers: Mapping[str, Challenger | None],
) -> list[str]:  # fmt: skip
    changes = []
    services = running.gateway.services
    for name in [n for n in services if n not in specs]:
        del services[name]
        running.cluster.retire(name)
        changes.append(f"service {name} removed; its instances drain")
    for name, service in added.items():
        services[name] = service
        running.cluster.add(service.fleet)
        changes.append(f"service {name} added")
    for name, spec in specs.items():
        if name not in added and services[name].spec != spec:
            if services[name].spec.predictor.challenger != spec.predictor.challenger:
                services[name].challenger = challengers[name]
            services[name].fleet.respec(spec)
            changes.append(f"service {name} changed")
    running.cluster.changed.set()
    return changes


def _needs_restart(old: Config, new: Config) -> Iterable[str]:
    for section in ("listen", "agents", "run_log", "energy", "controller", "health", "breaker"):
        if getattr(old, section) != getattr(new, section):
            yield section
    if old.limits.connect_timeout_s != new.limits.connect_timeout_s:  # the pools of connections were made with it
        yield "limits.connect_timeout_s"


def _fixed(old: ServiceSpec, new: ServiceSpec) -> Iterable[str]:
    """What running instances were started with and cannot change under them."""
    for name in ("model", "context_tokens", "launcher", "profile", "tokenizer", "embeddings", "engine_priority"):
        if getattr(old, name) != getattr(new, name):
            yield name
    if (old.predictor.kind, old.predictor.model) != (new.predictor.kind, new.predictor.model):
        yield "predictor.kind and predictor.model: name a new model as predictor.challenger"
    before = {pool.name: pool for pool in old.pools}
    for pool in new.pools:
        same = before.get(pool.name)
        if same is not None and (same.tp, same.clock_mhz, same.limits) != (pool.tp, pool.clock_mhz, pool.limits):
            yield f"pools.{pool.name}: tp, clock_mhz, slots, kv_tokens and step_tokens"
