"""How long a tick keeps the event loop: the controller's decision and its row for the run log.

`python -m bench.tick_times`: a service of 100 instances, all busy, as planned for its load, with a queue in front of
every pool; everything seen changes from tick to tick. Planning is not part of a tick: it runs beside. CPU milliseconds
of this thread, so that a busy machine counts little; wall milliseconds beside them.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from controller.demand import Demand, observed
from controller.knowledge import Knowledge, ServiceKnowledge, Settings
from controller.planning import Ask, Asked, ServicePlan, make_plan
from controller.state import ControllerState, ServiceState
from controller.tape import Inputs, TapeWriter
from controller.tick import tick
from core.instances import ClassCount, Seen, SeenGpus, SeenInstance, SeenPool, SeenService, SeenWaiting, State
from core.service import CLASSES, SIZES, InstanceLimits, PoolSpec, ServiceSpec
from pools.shape import step_tokens
from profiles.engine_model import load_engine_model
from simulator.case import shipped_service

WAITING = 256  # as many of a queue as the controller is told of
NAMES = ("short", "medium", "long")
PROMPT, ANSWER = 900, 200


def service(model: str) -> ServiceSpec:
    pools = tuple(
        PoolSpec(name, (size,), 1, 4, 1980, InstanceLimits(128)) for name, size in zip(NAMES, SIZES, strict=True)
    )
    return replace(shipped_service(model), pools=pools)


def counts(requests: int) -> tuple[ClassCount, ...]:
    each = requests // len(CLASSES)
    return (ClassCount(each, PROMPT * each, each, ANSWER * each, each, each),) * len(CLASSES)


def planned(spec: ServiceSpec, knowledge: Knowledge, instances: int) -> tuple[ServicePlan, Demand, float]:
    """The plan of the load that takes about so many instances, what was seen of that load, and its rate."""
    low, high = 1.0, 2000.0
    while True:
        rps = (low + high) / 2
        demand = Demand()
        for minute in range(11):
            demand = observed(demand, spec, 60.0 * minute, counts(int(rps * 60 * minute)))
        ask = Ask(knowledge, {spec.name: Asked(knowledge.services[spec.name], demand)}, {}, 600.0, 600.0)
        plan = make_plan(ask)[spec.name]
        found = sum(plan.counts().values())
        if found == instances or high - low < 0.1:
            return plan, demand, rps
        low, high = (rps, high) if found < instances else (low, rps)


def seen(spec: ServiceSpec, plan: ServicePlan, rps: float, ticks: int) -> Iterator[Seen]:
    rng = random.Random(1)
    kinds = [kind for kind, count in plan.counts().items() for _ in range(count)]
    gpus = sum(tp for _, tp in kinds)
    for number in range(ticks):
        now_s = 600.0 + number
        waiting = tuple(SeenWaiting(now_s + 0.01 * n, rng.randrange(2000)) for n in range(WAITING))
        pools = tuple(SeenPool(spec.name, p.name, 1, p.tp, WAITING, True, waiting) for p in spec.pools)
        instances = tuple(
            SeenInstance(
                f"{pool}-{n}", spec.name, pool, tp, State.READY, rng.randrange(60), 0.0, clock_mhz=1980,
                clock_knob=True, sequences=rng.randrange(60), kv_tokens=rng.randrange(90_000),
                prefill_tokens=rng.randrange(4000),
            )
            for n, (pool, tp) in enumerate(kinds)
        )  # fmt: skip
        told = SeenService(spec.name, counts(int(rps * now_s)), 1.0)
        yield Seen(now_s, pools, instances, (told,), SeenGpus(gpus, gpus), now_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-2-70b")
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--ticks", type=int, default=1000)
    options = parser.parse_args()
    spec, model = service(options.model), load_engine_model(options.model)
    steps = {tp: step_tokens(model, tp, max(model.clocks_mhz), spec.slo.tbt_s) for tp in model.points}
    known = Knowledge({spec.name: ServiceKnowledge(spec, model, steps)}, Settings(plan_every_s=1e9))
    plan, demand, rps = planned(spec, known, options.instances)
    state = ControllerState({spec.name: ServiceState(demand, plan)})
    tape, sizes = TapeWriter(), list[int]()
    took: dict[str, list[float]] = {"tick, CPU": [], "tick, wall": [], "its row, CPU": []}
    for one in seen(spec, plan, rps, options.ticks):
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        after, decision = tick(state, one, known, 1.0)
        decided_s = time.thread_time()
        took["tick, wall"].append(time.perf_counter() - wall_s)
        row = tape.row(state, Inputs(None, one, known, 1.0, None, ()), decision)
        took["its row, CPU"].append(time.thread_time() - decided_s)
        took["tick, CPU"].append(decided_s - cpu_s)
        sizes.append(len(msgspec.json.encode(row)))
        state = after
    print(f"{sum(plan.counts().values())} instances, {rps:.0f} requests/s, {options.ticks} ticks, "
          f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip
    for name, values in took.items():
        ordered = sorted(values)
        p50, p99 = (1e3 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
        print(f"{name:14} p50 {p50:6.2f} ms  p99 {p99:6.2f} ms  most {1e3 * ordered[-1]:6.2f} ms")
    print(f"a row has {sorted(sizes)[len(sizes) // 2]} bytes in the median")


if __name__ == "__main__":
    main()
