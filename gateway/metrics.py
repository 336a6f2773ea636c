"""What Prometheus sees: counts and histograms of finished requests, and gauges read at the moment of the scrape.

Requests add to plain Python numbers; the text format is prometheus-client's. Labels are bounded: services, pools and
instances come from the configuration, routes and outcomes from fixed sets, never from a client."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from core.histogram import SHORT_SECONDS, Histogram
from core.instances import State
from gateway.timing import STAGES, Timing

UNKNOWN = "none"
JOULES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0, 100_000.0)
Rows = Callable[[], Iterable[Metric]]


class Faults:
    """Errors of the gateway's own, by exception type."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, kind: str) -> None:
        self.counts[kind] += 1


class Metrics(Collector):
    """Owns every count. `finished` is called once per request; `gauges` is given by the wiring and reads live state."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.gauges: Rows = lambda: ()
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._tokens: Counter[tuple[str, ...]] = Counter()
        self._retries: Counter[str] = Counter()
        self._moves: Counter[tuple[str, ...]] = Counter()
        self._seams: defaultdict[tuple[str, ...], Histogram] = defaultdict(Histogram)
        self._overruns: Counter[tuple[str, ...]] = Counter()
        self._attained: Counter[tuple[str, ...]] = Counter()
        self._good: Counter[tuple[str, ...]] = Counter()
        self._joules: defaultdict[tuple[str, ...], Histogram] = defaultdict(lambda: Histogram(JOULES))
        self._ttft: defaultdict[tuple[str, ...], Histogram] = defaultdict(Histogram)
        self._tbt: defaultdict[tuple[str, ...], Histogram] = defaultdict(Histogram)
        self._e2e: defaultdict[tuple[str, ...], Histogram] = defaultdict(Histogram)
        self._queue: defaultdict[tuple[str, ...], Histogram] = defaultdict(Histogram)
        self._stages: defaultdict[str, tuple[Histogram, ...]] = defaultdict(_stage_histograms)
        self._overhead: defaultdict[tuple[str, ...], Histogram] = defaultdict(lambda: Histogram(SHORT_SECONDS))

    def moved(self, service: str, kind: str, *, started: bool) -> None:
        """An attempt ended at its instance for a reason other than the client's: `started` streams go on elsewhere or
        are cut, the others are tried again or fail."""
        self._moves[service, kind, "stream" if started else "start"] += 1

    def overran(self, service: str, action: str) -> None:
        """An answer got longer than predicted: what was done about it."""
        self._overruns[service, action] += 1

    def settled(self, service: str, size_class: str, joules: float) -> None:
        """A request's joules are complete."""
        self._joules[service, size_class].add(joules)

    def finished(self, row: Mapping[str, object], timing: Timing | None) -> None:
        service, size_class = row["service"] or UNKNOWN, row["class"] or UNKNOWN
        attempts, e2e_s = row["attempts"], row["e2e_s"]
        assert isinstance(service, str) and isinstance(size_class, str)
        assert isinstance(attempts, int) and isinstance(e2e_s, float)
        self._requests[service, str(row["route"]), str(row["outcome"]), str(row["status"])] += 1
        if attempts > 1:
            self._retries[service] += attempts - 1
        if timing is None:
            return
        key, read, said = (service, size_class), row.get("input_tokens"), row.get("output_tokens")
        if isinstance(read, int):
            self._tokens[service, size_class, "input"] += read
        if isinstance(said, int):
            self._tokens[service, size_class, "output"] += said
        if "attained" in row:
            self._attained[service, size_class, "true" if row["attained"] else "false"] += 1
            if row["attained"]:
                self._good[key] += said if isinstance(said, int) else 0
        ttft_s = row.get("ttft_s")
        if isinstance(ttft_s, float):
            self._ttft[key].add(ttft_s)
        if timing.gaps:
            self._tbt[key].merge(timing.gap_times)
        self._e2e[key].add(e2e_s)
        seam_s = row.get("seam_s")
        if isinstance(seam_s, float):
            self._seams[(service,)].add(seam_s)
        self._queue[service, str(row["pool"] or UNKNOWN)].add(timing.queue_s)
        self._overhead[(service,)].add(timing.own_s)
        for histogram, spent_s in zip(self._stages[service], timing.stages(), strict=True):
            histogram.add(spent_s)

    def collect(self) -> Iterable[Metric]:
        yield _counter(
            "joulegate_requests",
            "Requests by how they ended.",
            ("service", "route", "outcome", "status"),
            self._requests,
        )
        yield _counter("joulegate_tokens", "Tokens of finished requests.", ("service", "class", "kind"), self._tokens)
        yield _counter("joulegate_slo_requests", "Requests that kept (true) or missed (false) their objectives.",
                       ("service", "class", "attained"), self._attained)  # fmt: skip
        yield _counter(
            "joulegate_retries", "Attempts beyond the first.", ("service",), {(k,): v for k, v in self._retries.items()}
        )
        yield _counter("joulegate_overruns", "Answers longer than predicted, by what was done: stay, boost or move.",
                       ("service", "action"), self._overruns)  # fmt: skip
        yield _counter("joulegate_lost_attempts", "Attempts that an instance did not finish.",
                       ("service", "reason", "phase"), self._moves)  # fmt: skip
        yield _histogram("joulegate_seam_seconds", "Longest pause of a stream that went on elsewhere.",
                         ("service",), self._seams)  # fmt: skip
        yield _counter(
            "joulegate_faults",
            "Errors of the gateway's own.",
            ("kind",),
            {(k,): v for k, v in self.faults.counts.items()},
        )
        both = ("service", "class")
        yield _counter("joulegate_good_tokens", "Output tokens of requests that kept their objectives.",
                       both, self._good)  # fmt: skip
        yield _histogram("joulegate_request_joules", "Joules of a request, as the ledger settled them.", both,
                         self._joules)  # fmt: skip
        yield _histogram("joulegate_ttft_seconds", "Body received to first content byte out.", both, self._ttft)
        yield _histogram("joulegate_tbt_seconds", "Time between events of a stream.", both, self._tbt)
        yield _histogram("joulegate_request_seconds", "Body received to end of the answer.", both, self._e2e)
        yield _histogram("joulegate_queue_seconds", "Wait for a slot.", ("service", "pool"), self._queue)
        yield _histogram(
            "joulegate_overhead_seconds",
            "The gateway's own time before sending, queue excluded.",
            ("service",),
            self._overhead,
        )
        stages: dict[tuple[str, ...], Histogram]
        stages = {(name, s): h for name, found in self._stages.items() for s, h in zip(STAGES, found, strict=True)}
        yield _histogram("joulegate_stage_seconds", "The gateway's own time by stage.", ("service", "stage"), stages)
        yield from self.gauges()


def instance_gauges(
    seen: Iterable[tuple[str, str, str, State, int]], queued: Mapping[tuple[str, str], int]
) -> Iterable[Metric]:
    """`seen` are (service, pool, instance, state, running requests); `queued` counts by (service, pool)."""
    rows = list(seen)
    running = GaugeMetricFamily(
        "joulegate_instance_requests", "Requests running.", labels=("service", "pool", "instance")
    )
    states: Counter[tuple[str, str, str]] = Counter()
    for service, pool, instance, state, requests in rows:
        running.add_metric((service, pool, instance), requests)
        states[service, pool, state.value] += 1
    by_state = GaugeMetricFamily("joulegate_instances", "Instances by state.", labels=("service", "pool", "state"))
    for key in {(service, pool) for service, pool, *_ in rows}:
        for state in State:
            by_state.add_metric((*key, state.value), states[(*key, state.value)])
    waiting = GaugeMetricFamily("joulegate_queued_requests", "Requests that wait.", labels=("service", "pool"))
    for queue, number in queued.items():
        waiting.add_metric(queue, number)
    return [running, by_state, waiting]


def run_log_counters(written: int, dropped: int, failed: int) -> Metric:
    """What became of the rows of the run log."""
    values: dict[tuple[str, ...], int] = {("written",): written, ("dropped",): dropped, ("failed",): failed}
    return _counter("joulegate_run_log_rows", "Rows of the run log by what became of them.", ("result",), values)


def lag_rows(last_s: float, histogram: Histogram) -> Iterable[Metric]:
    """How late the event loop is."""
    gauge = GaugeMetricFamily("joulegate_loop_lag_last_seconds", "Lateness of the event loop, newest measurement.")
    gauge.add_metric((), last_s)
    return [gauge, _histogram("joulegate_loop_lag_seconds", "Lateness of the event loop.", (), {(): histogram})]


def _stage_histograms() -> tuple[Histogram, ...]:
    return tuple(Histogram(SHORT_SECONDS) for _ in STAGES)


def _counter(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _histogram(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for key, histogram in values.items():
        total, buckets = 0, []
        for bound, number in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            total += number
            buckets.append((str(bound), total))
        family.add_metric(key, buckets, histogram.total)
    return family
