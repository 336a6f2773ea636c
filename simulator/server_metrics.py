"""The engine's /metrics under vLLM's names. Owns counting in the server's own time and the text format; no library.

prometheus_client costs 60 ms of import and a lock per observation; an emulated engine counts every token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
PARAMS_N = (1, 2, 5, 10, 20)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    __slots__ = ("buckets", "counts", "sum")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> Iterable[str]:
        total = 0
        edges = [*(str(float(bound)) for bound in self.buckets), "+Inf"]
        for edge, count in zip(edges, self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{edge}"}} {total}'
        yield f"{name}_count{{{labels}}} {total}"
        yield f"{name}_sum{{{labels}}} {self.sum}"


class Meters:
    """What only grows. Written by the engine loop, in real seconds."""

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT)
        self.itl = Histogram(ITL)
        self.tpot = Histogram(ITL)
        self.e2e = Histogram(LATENCY)
        self.queue = Histogram(LATENCY)
        self.prefill = Histogram(LATENCY)
        self.decode = Histogram(LATENCY)
        self.inference = Histogram(LATENCY)
        self.iteration = Histogram(ITERATION)
        self.prompt = Histogram(TOKENS)
        self.generation = Histogram(TOKENS)
        self.asked_tokens = Histogram(TOKENS)
        self.asked_n = Histogram(PARAMS_N)
        self.finished = dict.fromkeys(FINISH_REASONS, 0)

    def histograms(self) -> list[tuple[str, Histogram, str]]:
        return [
            ("vllm:request_prompt_tokens", self.prompt, "Number of prefill tokens processed."),
            ("vllm:request_generation_tokens", self.generation, "Number of generation tokens processed."),
            ("vllm:iteration_tokens_total", self.iteration, "Histogram of number of tokens per engine_step."),
            ("vllm:request_params_n", self.asked_n, "Histogram of the n request parameter."),
            ("vllm:request_params_max_tokens", self.asked_tokens, "Histogram of the max_tokens request parameter."),
            ("vllm:time_to_first_token_seconds", self.ttft, "Histogram of time to first token in seconds."),
            ("vllm:inter_token_latency_seconds", self.itl, "Histogram of inter-token latency in seconds."),
            ("vllm:request_time_per_output_token_seconds", self.tpot, "Time per output token per request."),
            ("vllm:e2e_request_latency_seconds", self.e2e, "Histogram of e2e request latency in seconds."),
            ("vllm:request_queue_time_seconds", self.queue, "Time spent in WAITING phase for request."),
            ("vllm:request_inference_time_seconds", self.inference, "Time spent in RUNNING phase for request."),
            ("vllm:request_prefill_time_seconds", self.prefill, "Time spent in PREFILL phase for request."),
            ("vllm:request_decode_time_seconds", self.decode, "Time spent in DECODE phase for request."),
        ]


class Page:
    """A page of the Prometheus text format."""

    def __init__(self, model_name: str) -> None:
        escaped = model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self.labels = f'engine="0",model_name="{escaped}"'
        self._lines: list[str] = []

    def gauge(self, name: str, value: float, help_text: str, more: str = "") -> None:
        self._value(name, "gauge", value, help_text, more)

    def counter(self, name: str, value: float, help_text: str, more: str = "") -> None:
        """`name` ends in _total."""
        self._value(name, "counter", value, help_text, more)

    def histogram(self, name: str, value: Histogram, help_text: str) -> None:
        self._head(name, "histogram", help_text)
        self._lines += value.lines(name, self.labels)

    def encode(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()

    def _value(self, name: str, kind: str, value: float, help_text: str, more: str) -> None:
        self._head(name, kind, help_text)
        labels = f"{self.labels},{more}" if more else self.labels
        self._lines.append(f"{name}{{{labels}}} {float(value)}")

    def _head(self, name: str, kind: str, help_text: str) -> None:
        # One HELP and TYPE a name, also where a name has several series.
        head = f"# TYPE {name} {kind}"
        if head not in self._lines:
            self._lines += [f"# HELP {name} {help_text}", head]
