"""Runs a sweep's plan on a target: journal first, instance second. Owns the order of things, decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from core.clock import Clock
from pools.measure import Probe, Rule, Target
from pools.measure_journal import Journal
from pools.measure_stats import measured_of
from pools.measure_sweep import Space, Sweep

Told = Callable[[Sweep, Probe], None]


def identity(space: Space, rule: Rule, target: Target) -> dict[str, Any]:
    """What must be equal for a journal to be gone on with: all that the answers depend on."""
    return asdict(space) | {"rule": asdict(rule), "target": asdict(target.about)}


async def run_sweep(space: Space, target: Target, rule: Rule, journal: Journal, clock: Clock, told: Told) -> Sweep:
    """The finished sweep. `told` hears each probe before it is taken."""
    sweep = Sweep(space)
    plan = sweep.plan()
    probe = next(plan, None)
    while probe is not None:
        told(sweep, probe)
        measured = journal.find(probe)
        if measured is None:
            await target.configure(probe.tp, probe.clock_mhz)
            measured = measured_of(await target.run(probe, rule), target.about.origin)
            journal.add(measured)
            await clock.sleep(0)  # a target under simulated time never waits: let a cancellation in
        try:
            probe = plan.send(measured)
        except StopIteration:
            probe = None
    return sweep
