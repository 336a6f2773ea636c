"""What the energy ledger costs: per request on the hot path, and per reading off it.

    python -m bench.ledger_cost

Hot: a bill, a stint, its three moments, the end, and the estimate of an answer's header. Off: one reading of 100
instances with 20 requests each, without the HTTP of their counters. CPU seconds; readings are wall time."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Sequence
from time import perf_counter, thread_time
from types import SimpleNamespace
from typing import Any

from core.clock import SystemClock
from core.instances import State
from gateway.ledger import Ledger
from gateway.ledger_store import LedgerStore
from pools.counters import Counted
from pools.stints import Bill, Ended, Stint
from profiles.engine_model import load_engine_model

MODEL = load_engine_model("llama-3.1-70b")
ROUNDS, PER_ROUND = 200, 1000
ENDED = Ended(0.0, "short", "completed", 500, 200, True)


class Rising:
    """Counters that have counted 1 kJ since they were read last."""

    quality: Any = "measured"
    from_zero = False

    def __init__(self) -> None:
        self.joules = 0.0
        self.clock = SystemClock()

    def covers(self, instance: Any) -> bool:
        return True

    async def read(self, instances: Sequence[Any]) -> dict[str, Counted]:
        self.joules += 1000.0
        return {one.id: Counted(self.clock.now_s(), {one.id: self.joules}) for one in instances}


def instances(count: int) -> list[Any]:
    return [
        SimpleNamespace(id=f"i{n}", pool="short", tp=4, clock_mhz=1980, step_tokens=512, state=State.READY, since_s=0.0,
                        sequences=8, adopted=False)
        for n in range(count)
    ]  # fmt: skip


def make(count: int) -> tuple[Ledger, Any]:
    members = {one.id: SimpleNamespace(instance=one) for one in instances(count)}
    fleet: Any = SimpleNamespace(members=members, spec=SimpleNamespace(name="svc"), model=MODEL)
    store = LedgerStore(None, keep_s=1e9, keep_requests_s=1e9)
    return Ledger(lambda: [fleet], [Rising()], SystemClock(), store, 1.0), fleet


def hot_us(ledger: Ledger, fleet: Any) -> float:
    """Per request, but for the reading of the clock, which the gateway does anyway."""
    instance = next(iter(fleet.members.values())).instance
    began_s = thread_time()
    for n in range(PER_ROUND):
        bill = Bill("id", "key", "svc", "SM")
        stint: Stint = ledger.begin(bill, fleet, instance, 500, 1, 1.0 + n)
        stint.first_s = 2.0 + n
        ledger.estimate(stint, 3.0 + n)
        ledger.quality(stint)
        stint.end_s = 3.0 + n
        ledger.finished(bill, ENDED)
    spent_s = thread_time() - began_s
    ledger._ended.clear()
    ledger._seats[instance.id].stints.clear()
    return spent_s / PER_ROUND * 1e6


async def reading_ms(count: int, each: int) -> float:
    ledger, fleet = make(count)
    await ledger.read()
    now_s = SystemClock().now_s()
    for member in fleet.members.values():
        for n in range(each):
            stint = ledger.begin(Bill(f"{n}", "key", "svc", "SM"), fleet, member.instance, 500, 1, now_s)
            stint.first_s = now_s + 0.001 * n
    took = []
    for _ in range(10):
        await SystemClock().sleep(0.2)
        began_s = perf_counter()
        await ledger.read()
        took.append((perf_counter() - began_s) * 1e3)
    ledger.store.close()
    return statistics.median(took)


def main() -> None:
    ledger, fleet = make(1)
    hot = sorted(hot_us(ledger, fleet) for _ in range(ROUNDS))
    ledger.store.close()
    found = {
        "hot_us_per_request": {"min": hot[0], "median": statistics.median(hot), "p90": hot[int(0.9 * len(hot))]},
        "reading_ms_100_instances_2000_requests": asyncio.run(reading_ms(100, 20)),
        "reading_ms_3_instances_60_requests": asyncio.run(reading_ms(3, 20)),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
