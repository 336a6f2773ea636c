"""The load a bound is computed for: what every policy must have computed by when, and what a kept promise lets it skip.

Owns what counts as demand. Work is released when its request arrives; it is due when an attained request must have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.service import CLASSES, SIZES, ServiceSpec
from simulator.tally import PROMISED
from simulator.trace import Arrival

Floats = NDArray[np.float64]
WINDOW_S = 60.0
LATE_GAP_S = 1.0  # what a late gap is taken to last at most; no step of a shipped engine model lasts half as long
BY_RATIO, BY_PROMPT = 10, 6  # groups of alike requests
MOST_RUNNING = 256  # vLLM's default of sequences at once


@dataclass(frozen=True, slots=True)
class Alike:
    """Requests whose answers relate alike to their prompts: `work` (3,) of all of them; the least and the most `steps`
    per prefill token and `context` per decode step that a part of one of them has."""

    work: Floats
    steps: tuple[float, float]
    context: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Load:
    """Arrays are (windows, 3): decode steps, prefill tokens, tokens of context read by decode steps.

    `slack`: how much of what has been released may still be open when the window ends. `shed`: what the missed 1 % of
    every class takes away at most. `late_gaps`: gaps that may last longer than the TBT objective. `running`: the most
    sequences that can run at once in each window, rounded up to a power of two. `contexts`: the shortest and longest
    context of a decode step. `alike`: groups of requests that are much the same.
    """

    released: Floats
    slack: Floats
    shed: Floats
    late_gaps: float
    running: tuple[int, ...]
    contexts: tuple[int, int]
    alike: tuple[Alike, ...]

    @property
    def windows(self) -> int:
        return len(self.running)


def load_of(trace: Iterable[Arrival], spec: ServiceSpec) -> Load:
    rows = np.array([(a.at_s, a.input_tokens, max(1, a.output_tokens)) for a in trace], dtype=np.float64)
    at_s, prompt, gaps = rows[:, 0], rows[:, 1], rows[:, 2] - 1
    # A prompt's last token alone in its step is computed as a decode (simulator/des_engine.py), so it is not demanded.
    work = np.stack([gaps, prompt - 1, gaps * prompt + gaps * (gaps + 1) / 2], axis=1)
    size, size_class = _classes(prompt, gaps + 1, spec)
    first_s = at_s + np.array([spec.slo.ttft_s[name] for name in SIZES])[size]
    late = np.ceil(0.01 * gaps)
    last_s = first_s + gaps * spec.slo.tbt_s + late * LATE_GAP_S
    windows = max(1, math.ceil(float(last_s.max()) / WINDOW_S))
    due_s = np.stack([last_s, first_s, last_s], axis=1)
    released = np.stack([_by_window(at_s, work[:, n], windows) for n in range(3)], axis=1)
    due = np.stack([_by_window(due_s[:, n], work[:, n], windows) for n in range(3)], axis=1)
    missed = [size_class == n for n in range(len(CLASSES))]
    allowed = [math.floor((1 - PROMISED) * int(one.sum()) + 1e-9) for one in missed]
    shed = sum((_top(work[one], n) for one, n in zip(missed, allowed, strict=True)), np.zeros(3))
    running = _most_at_once(at_s, last_s, windows) + sum(allowed)
    return Load(
        released,
        np.maximum(np.cumsum(released, axis=0) - np.cumsum(due, axis=0), 0.0),
        shed,
        float(late.sum() + shed[0]),
        tuple(min(MOST_RUNNING, 1 << max(0, int(n) - 1).bit_length()) for n in running),
        (int(prompt.min()), int(max(prompt.min(), (prompt + gaps).max()))),
        tuple(_alike(work, prompt, gaps)),
    )


def _alike(work: Floats, prompt: Floats, gaps: Floats) -> Iterator[Alike]:
    """By the ratio of decode steps to prefill tokens, and within those by prompt."""
    ratio = gaps / np.maximum(work[:, 1], 0.5)
    for by_ratio in np.array_split(np.argsort(ratio, kind="stable"), BY_RATIO):
        for part in np.array_split(by_ratio[np.argsort(prompt[by_ratio], kind="stable")], BY_PROMPT):
            if len(part):
                steps = float(ratio[part].min()), float(ratio[part].max())
                most = math.inf if work[part, 1].min() < 1 else steps[1]
                context = float(prompt[part].min() + 1), float((prompt + gaps)[part].max())
                yield Alike(work[part].sum(axis=0), (steps[0], most), context)


def _classes(prompt: Floats, output: Floats, spec: ServiceSpec) -> tuple[NDArray[Any], NDArray[Any]]:
    """(index of the input size, index in CLASSES) of each request."""
    size = np.searchsorted(np.array(spec.edges.input[:2]), prompt, side="left")
    return size, 3 * size + np.searchsorted(np.array(spec.edges.output), output, side="left")


def _by_window(at_s: Floats, amount: Floats, windows: int) -> Floats:
    index = np.minimum(at_s // WINDOW_S, windows - 1).astype(np.int64)
    return np.bincount(index, weights=amount, minlength=windows).astype(np.float64)


def _top(work: Floats, count: int) -> Floats:
    """The `count` largest of each kind of work, which no choice of `count` requests exceeds."""
    return np.asarray(np.sort(work, axis=0)[len(work) - count :].sum(axis=0), dtype=np.float64)


def _most_at_once(from_s: Floats, to_s: Floats, windows: int) -> NDArray[np.int64]:
    """The most intervals that overlap at any instant of each window."""
    edge_s = np.arange(1, windows) * WINDOW_S
    times = np.concatenate([from_s, to_s, edge_s])
    change = np.concatenate([np.ones(len(from_s)), -np.ones(len(to_s)), np.zeros(len(edge_s))])
    order = np.lexsort((-change, times))
    at_once = np.cumsum(change[order])
    index = np.minimum(times[order] // WINDOW_S, windows - 1).astype(np.int64)
    most = np.zeros(windows, dtype=np.int64)
    np.maximum.at(most, index, at_once.astype(np.int64))
    return most
