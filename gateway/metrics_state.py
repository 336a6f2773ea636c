"""What Prometheus sees of energy and of the controller: read from live state at the moment of a scrape, counted nowhere
else. Every figure here is the ledger's or the controller's own."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.loop import Controller
from controller.pressure import taken
from controller.state import ControllerState
from core.clock import Clock
from core.instances import State
from gateway.ledger import Ledger
from gateway.serve import Gateway

PARTS = ("idle", "prefill", "decode")
MODES = ("shadow", "advise", "enforce")


def energy_rows(ledger: Ledger) -> Iterable[Metric]:
    """Joules and watts. They are modelled where no hardware counter is read; the label `quality` says so."""
    where = ("service", "pool")
    spent = CounterMetricFamily(
        "joulegate_energy_joules", "Joules since the start of the gateway, by what they were spent on.",
        labels=(*where, "cause"),
    )  # fmt: skip
    counted = CounterMetricFamily(
        "joulegate_energy_counted_joules", "Joules that energy counters have counted since the start.", labels=where
    )
    residual = GaugeMetricFamily(
        "joulegate_energy_residual_joules", "Counted joules that nothing explains, since the start. May fall.",
        labels=where,
    )  # fmt: skip
    for (service, pool, cause), joules in list(ledger.totals.items()):
        if cause == "meter":
            counted.add_metric((service, pool), joules)
        elif cause == "residual":
            residual.add_metric((service, pool), joules)
        else:
            spent.add_metric((service, pool, cause), joules)
    tick = ledger.last
    watts = GaugeMetricFamily(
        "joulegate_power_watts", "Watts at the last reading of the counters, by cause.", labels=("cause", "quality")
    )
    for cause, drawn_w in tick.watts.items():
        watts.add_metric((cause, tick.quality), drawn_w)
    by_pool = GaugeMetricFamily(
        "joulegate_pool_power_watts", "Watts of a pool's instances at the last reading.", labels=where
    )
    for key, drawn_w in tick.pools.items():
        by_pool.add_metric(key, drawn_w)
    read = GaugeMetricFamily(
        "joulegate_energy_read_timestamp_seconds", "When the energy counters were last read, Unix time.", tick.wall_s
    )
    return [spent, counted, residual, watts, by_pool, read, *_model_rows(ledger), *_store_rows(ledger)]


def _model_rows(ledger: Ledger) -> Iterable[Metric]:
    foretold = CounterMetricFamily(
        "joulegate_energy_foretold_joules", "Joules that the engine model foretold before its counter was read.",
        labels=("service",),
    )  # fmt: skip
    judged = CounterMetricFamily(
        "joulegate_energy_judged_joules", "Joules that were then counted, in the same windows.", labels=("service",)
    )
    for service, (foretold_j, counted_j) in ledger.expected.items():
        foretold.add_metric((service,), foretold_j)
        judged.add_metric((service,), counted_j)
    factors = GaugeMetricFamily(
        "joulegate_energy_model_factor", "What the counters have taught: joules counted per joule of the engine model.",
        labels=("service", "tp", "clock_mhz", "part"),
    )  # fmt: skip
    for (service, tp, clock_mhz), values in ledger.factors().items():
        for part, value in zip(PARTS, values, strict=True):
            factors.add_metric((service, str(tp), str(clock_mhz), part), value)
    resets = CounterMetricFamily(
        "joulegate_energy_counter_resets", "Energy counters that fell and were taken to have restarted.",
        value=ledger.odometers.resets,
    )  # fmt: skip
    return [foretold, judged, factors, resets]


def _store_rows(ledger: Ledger) -> Iterable[Metric]:
    store = ledger.store
    rows = CounterMetricFamily(
        "joulegate_ledger_rows", "Rows of the ledger by what became of them.", labels=("result",)
    )
    rows.add_metric(("written",), store.written)
    rows.add_metric(("dropped",), store.dropped)
    errors = CounterMetricFamily(
        "joulegate_ledger_errors", "Writes that the ledger's disk refused; they are tried again.", value=store.errors
    )
    return [rows, errors]


def controller_rows(controller: Controller, mode: str, clock: Clock) -> Iterable[Metric]:
    state, now_s = controller.state, clock.now_s()
    ticks = CounterMetricFamily("joulegate_controller_ticks", "Rounds of the controller.", value=state.ticks)
    modes = GaugeMetricFamily(
        "joulegate_controller_mode", "1 for the mode in force: shadow, advise or enforce.", labels=("mode",)
    )
    for name in MODES:
        modes.add_metric((name,), float(name == mode))
    return [ticks, modes, *_plan_rows(state, now_s), *_health_rows(state, now_s)]


def _plan_rows(state: ControllerState, now_s: float) -> Iterable[Metric]:
    watts = GaugeMetricFamily(
        "joulegate_plan_expected_watts", "Mean watts of the plan under its load, modelled.", labels=("service",)
    )
    age = GaugeMetricFamily("joulegate_plan_age_seconds", "Time since the plan was made.", labels=("service",))
    load = GaugeMetricFamily(
        "joulegate_plan_requests_per_second", "Load that the plan is for: its mean, and the peak it has room for.",
        labels=("service", "bound"),
    )  # fmt: skip
    targets = GaugeMetricFamily(
        "joulegate_plan_instances", "Instances of the plan.", labels=("service", "pool", "tp", "clock_mhz")
    )
    for name, one in state.services.items():
        if one.plan is None:
            continue
        watts.add_metric((name,), one.plan.expected_w)
        age.add_metric((name,), now_s - one.plan.at_s)
        load.add_metric((name, "mean"), one.plan.mean_rps)
        load.add_metric((name, "upper"), one.plan.upper_rps)
        for target in one.plan.targets:
            labels = (name, target.kind.pool, str(target.kind.tp), str(target.clock_mhz))
            targets.add_metric(labels, target.count)
    return [watts, age, load, targets]


def _health_rows(state: ControllerState, now_s: float) -> Iterable[Metric]:
    rungs = GaugeMetricFamily(
        "joulegate_ladder_rungs", "Rungs of the emergency ladder that a pool has taken.", labels=("service", "pool")
    )
    maximum = GaugeMetricFamily(
        "joulegate_at_maximum", "1 while broken promises make everything run at its fastest.", labels=("service",)
    )
    for name, one in state.services.items():
        for pool, standing in one.standings.items():
            rungs.add_metric((name, pool), len(taken(standing)))
        maximum.add_metric((name,), float(one.health.harmed_until_s > now_s))
    return [rungs, maximum]


def instance_rows(gateway: Gateway) -> Iterable[Metric]:
    """What is told per instance, beside the requests that run there."""
    labels = ("service", "pool", "instance")
    clocks = GaugeMetricFamily("joulegate_instance_clock_mhz", "GPU clock last set. 0: not locked.", labels=labels)
    gpus = GaugeMetricFamily("joulegate_instance_gpus", "GPUs (tensor parallelism).", labels=labels)
    kv = GaugeMetricFamily("joulegate_instance_kv_tokens", "KV tokens reserved by running requests.", labels=labels)
    breakers = GaugeMetricFamily(
        "joulegate_instance_breaker_open", "1 while failures keep new requests away.", labels=labels
    )
    wanted = GaugeMetricFamily(
        "joulegate_wanted_instances", "Instances that an operator or the configuration wants.", labels=labels[:2]
    )
    for service in gateway.services.values():
        for one in (member.instance for member in service.fleet.members.values()):
            if one.state in (State.STOPPED, State.FAILED):
                continue
            key = (service.spec.name, one.pool, one.id)
            clocks.add_metric(key, one.clock_mhz)
            gpus.add_metric(key, one.tp)
            kv.add_metric(key, one.kv_tokens)
            breakers.add_metric(key, float(one.breaker.opened))
        for pool, number in service.fleet.wanted.items():
            wanted.add_metric((service.spec.name, pool), number)
    return [clocks, gpus, kv, breakers, wanted]
