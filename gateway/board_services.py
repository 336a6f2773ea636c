"""One service as the dashboard shows it at one instant, and what of its past that needs. Copies, never live objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import Any

from controller.emergency import predicted_late_s
from controller.knowledge import ServiceKnowledge
from controller.planning import SOON_S
from controller.state import ServiceState
from core.instances import ClassCount, SeenInstance, SeenPool, State
from core.service import CLASSES
from gateway.board_series import Tally, Window
from gateway.ledger import CAUSES, Drawn
from gateway.service import Service

COLUMNS = (
    *(f"{cause}_w" for cause in CAUSES), "arrived_rps", "output_tps", "good_tps", "queued",
    "running", "judged", "attained", "mean_rps", "upper_rps", "ready", "gpus",
)  # fmt: skip
INSTANCE_COLUMNS = (
    "id", "pool", "tp", "clock_mhz", "state", "requests", "sequences", "slots", "kv_tokens", "kv_room", "watts",
    "since_s", "reason", "breaker_open", "adopted",
)  # fmt: skip
SERVING = (State.STARTING, State.READY, State.DRAINING, State.PARKED)


class Past:
    """What of a service's past its picture needs. Sums of five minutes; the last forecast; counts at the last look."""

    def __init__(self) -> None:
        self.all = Window()
        self.classes: defaultdict[str, Window] = defaultdict(Window)
        self.pools: defaultdict[str, Window] = defaultdict(Window)
        self.second = Tally()
        self.mean_rps = self.upper_rps = nan
        self._counts: tuple[ClassCount, ...] | None = None
        self._at_s = 0.0

    def add(self, t: float, size_class: str, pool: str, part: Tally, ttfts_s: Sequence[float]) -> None:
        self.all.add(t, part, ttfts_s)
        if size_class:
            self.classes[size_class].add(t, part, ttfts_s)
        if pool:
            self.pools[pool].add(t, part, ttfts_s)
        self.second.judged += part.judged
        self.second.attained += part.attained
        self.second.tokens += part.tokens
        self.second.good_tokens += part.good_tokens

    def pass_time(self, t: float) -> None:
        self.second = Tally()
        for window in (self.all, *self.classes.values(), *self.pools.values()):
            window.forget(t)

    def forecast(self, state: ServiceState | None, wall_s: float, coverage: float | None) -> None:
        """Of the next five minutes; not a number where nothing is forecast for the service."""
        self.mean_rps = self.upper_rps = nan
        if state is None or coverage is None or state.demand.counts is None:
            return
        told = state.demand.load.forecast(wall_s, SOON_S, coverage)
        self.mean_rps, self.upper_rps = told.total_mean.requests_rps, told.total_upper.requests_rps

    def rates(self, counts: tuple[ClassCount, ...], now_s: float) -> float:
        """Requests that arrived per second since the last call."""
        before, took_s = self._counts, now_s - self._at_s
        self._counts, self._at_s = counts, now_s
        if before is None or took_s <= 0:
            return 0.0
        return max(0, sum(now.asked - then.asked for now, then in zip(counts, before, strict=True))) / took_s


@dataclass(frozen=True, slots=True)
class Picture:
    """`row` holds the values of COLUMNS."""

    name: str
    row: tuple[float, ...]
    quality: str
    pools: list[dict[str, Any]]
    classes: dict[str, dict[str, Any]]
    instances: list[tuple[Any, ...]]
    fixed: Mapping[str, Any]
    attainment: float | None
    gpus: int

    def told(self, plan: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            "name": self.name, "row": [_short(v) for v in self.row], "quality": self.quality, **self.fixed,
            "attainment": self.attainment, "pools": self.pools, "classes": self.classes,
            "instance_columns": INSTANCE_COLUMNS, "instances": self.instances, "plan": plan,
        }  # fmt: skip


def picture(
    service: Service, known: ServiceKnowledge, state: ServiceState | None, past: Past, draws: Mapping[str, Drawn],
    now_s: float,
) -> Picture:  # fmt: skip
    """`draws`: what the ledger last booked, by instance."""
    fleet, spec = service.fleet, service.spec
    seen_pools, seen = fleet.observe()
    mine = {i.id: draws[i.id] for i in seen if i.id in draws and _is_known(draws[i.id], service)}
    told = bool(mine) or fleet.model is not None
    causes = [sum(drawn.watts.get(cause, 0.0) for drawn in mine.values()) if told else nan for cause in CAUSES]
    watts = {i.id: sum(mine[i.id].watts.values()) if i.id in mine else nan for i in seen}
    gpus = sum(i.tp for i in seen if i.state in SERVING)
    second = past.second
    row = (
        *causes, past.rates(fleet.counts.seen(), now_s), second.tokens, second.good_tokens,
        service.admission.router.queued(), sum(i.running for i in seen), second.judged, second.attained,
        past.mean_rps, past.upper_rps, sum(1 for i in seen if i.state is State.READY), gpus,
    )  # fmt: skip
    ready = [i for i in seen if i.state is State.READY]
    fixed = {
        "model": spec.model, "launcher": spec.launcher.kind, "managed": fleet.launcher.managed,
        "slo": {"ttft_s": dict(spec.slo.ttft_s), "tbt_s": spec.slo.tbt_s},
        "gpu": fleet.model.gpu if fleet.model else None, "idle_w": fleet.model.idle_w if fleet.model else None,
        "clocks_mhz": fleet.model.clocks_mhz if fleet.model and fleet.knobs.clock else (),
    }  # fmt: skip
    pools = [
        _pool(pool, place, seen_pools, [i for i in seen if i.pool == pool.name], ready, known, watts, past, now_s)
        | {"serves": list(spec.pools[place].serves)}
        for place, pool in enumerate(seen_pools)
    ]
    measured = bool(mine) and all(drawn.quality == "measured" for drawn in mine.values())
    return Picture(
        name=spec.name, row=row, quality="measured" if measured else "modelled" if told else "", pools=pools,
        classes={name: _class(past.classes[name]) for name in CLASSES if name in past.classes},
        instances=[_instance(service, i.id, watts[i.id], now_s) for i in seen],
        fixed=fixed, attainment=_share(past.all.sum), gpus=gpus,
    )  # fmt: skip


def _is_known(drawn: Drawn, service: Service) -> bool:
    """Without a counter and without a model the books hold zeros, which nobody has measured."""
    return drawn.quality == "measured" or service.fleet.model is not None


def _pool(
    pool: SeenPool, place: int, pools: Sequence[SeenPool], mine: Sequence[SeenInstance], ready: Sequence[SeenInstance],
    known: ServiceKnowledge, watts: Mapping[str, float], past: Past, now_s: float,
) -> dict[str, Any]:  # fmt: skip
    states = {state.value: sum(1 for i in mine if i.state is state) for state in State}
    draws = sum(watts[i.id] for i in mine)
    ended = past.pools[pool.name].sum
    return {
        "name": pool.name, "wanted": pool.wanted, "pinned": pool.pinned, "managed": pool.managed,
        "states": {state: number for state, number in states.items() if number},
        "tp": sorted({i.tp for i in mine}) or [pool.tp],
        "clocks_mhz": sorted({i.clock_mhz for i in mine}),
        "watts": _short(draws), "queued": pool.queued, "slack_s": _slack(pools, place, ready, known, now_s),
        "running": sum(i.running for i in mine), "sequences": sum(i.sequences for i in mine),
        "attainment": _share(ended), "judged": ended.judged, "output_tokens": ended.tokens,
    }  # fmt: skip


def _slack(
    pools: Sequence[SeenPool], place: int, ready: Sequence[SeenInstance], known: ServiceKnowledge, now_s: float
) -> float | None:
    """Seconds that the worst request of the queue is predicted to have to spare; None when nothing waits."""
    waiting = pools[place].waiting
    if not waiting:
        return None
    if known.model is None:  # how fast prompts go is not known: what is left until the first deadline
        return round(min(one.deadline_s for one in waiting) - now_s, 3)
    late_s = predicted_late_s(pools, place, ready, known, now_s)
    return round(-late_s, 3) if late_s < inf else None


def _class(window: Window) -> dict[str, Any]:
    ended, ttft_s = window.sum, window.ttft_s(0.99)
    joules = ended.joules / ended.tokens if ended.joules > 0 and ended.tokens else None
    quality = "modelled" if window.modelled_t is not None else "attributed"
    return {
        "ended": ended.ended, "judged": ended.judged, "attainment": _share(ended), "output_tokens": ended.tokens,
        "ttft_p99_s": None if ttft_s is None else round(ttft_s, 4), "j_per_output_token": joules,
        "quality": quality,
    }  # fmt: skip


def _instance(service: Service, instance_id: str, watts: float, now_s: float) -> tuple[Any, ...]:
    one = service.fleet.members[instance_id].instance
    return (
        one.id, one.pool, one.tp, one.clock_mhz, one.state.value, one.requests, one.sequences, one.limits.slots,
        one.kv_tokens, one.limits.kv_tokens, _short(watts), round(now_s - one.since_s), one.reason,
        one.breaker.opened, one.adopted,
    )  # fmt: skip


def _share(tally: Tally) -> float | None:
    return round(tally.attained / tally.judged, 5) if tally.judged else None


def _short(value: float) -> float | None:
    """JSON knows no NaN."""
    return round(value, 3) if isfinite(value) else None
