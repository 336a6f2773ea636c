"""The load of a trace as the sources' forecasts and meters see it. Owns two measures of it: work in instance-seconds,
and requests per second of each class with predicted output sizes. Reads the trace; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from core.instances import ClassCount
from core.service import CLASSES
from predictor.length import choose_size
from simulator.case import Case

FIRST_S = 300.0


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one instance that a prompt token and an output token take, in full steps and full batches."""

    prompt_s: float
    output_s: float

    def of(self, prompt_tokens: float, output_tokens: float) -> float:
        return prompt_tokens * self.prompt_s + output_tokens * self.output_s


def work_of(case: Case, tp: int, clock_mhz: int) -> Work:
    model, shape = case.model, case.shape(tp, clock_mhz)
    context = min(round(shape.slots * case.facts.mean_context), model.kv_tokens(tp))
    prompt_s = model.prefill_s(tp, clock_mhz, shape.step_tokens) / shape.step_tokens
    return Work(prompt_s, model.decode_step_s(tp, clock_mhz, shape.slots, context) / shape.slots)


def work_done(work: Work, counts: tuple[ClassCount, ...]) -> float:
    """Instance-seconds that the counts come to: prompts when they are asked for, answers when they are complete."""
    return work.of(sum(c.input_tokens for c in counts), sum(c.output_tokens for c in counts))


def first_work(case: Case, work: Work, window_s: float) -> float:
    """Instances that the busiest `window_s` of the first minutes keep busy: what history tells of the start."""
    windows: dict[int, float] = {}
    for arrival in case.open_trace():
        if arrival.at_s >= FIRST_S:
            break
        window = int(arrival.at_s // window_s)
        windows[window] = windows.get(window, 0.0) + work.of(arrival.input_tokens, arrival.output_tokens)
    return max(windows.values(), default=0.0) / window_s


@dataclass(frozen=True, slots=True)
class Epoch:
    """`peak_work[c]`: the largest work rate of class c over a peak window in this epoch, in instances."""

    start_s: float
    peak_work: tuple[float, ...]


def classed(case: Case, work: Work) -> Iterator[tuple[float, int, float]]:
    """(second, class with its predicted output size, work) of each arrival. The same predictor with the same seed
    predicts the same in the run."""
    lengths, edges, most = case.lengths(), case.spec.edges, case.spec.context_tokens
    for arrival in case.open_trace():
        size = choose_size(lengths.predict(arrival, max(1, most - arrival.input_tokens)))
        lengths.learn(arrival)
        place = CLASSES.index(edges.input_size(arrival.input_tokens) + size)
        yield arrival.at_s, place, work.of(arrival.input_tokens, arrival.output_tokens)


def epochs(case: Case, work: Work, epoch_s: float, peak_s: float) -> list[Epoch]:
    """The peak of each class and epoch, as a template of the same day in earlier weeks would have it at best."""
    rows: list[list[float]] = []
    window, sums = 0, [0.0] * len(CLASSES)

    def close() -> None:
        row = rows[int(window * peak_s // epoch_s)]
        row[:] = [max(before, total / peak_s) for before, total in zip(row, sums, strict=True)]

    for at_s, place, weight in classed(case, work):
        while len(rows) <= at_s // epoch_s:
            rows.append([0.0] * len(CLASSES))
        if int(at_s // peak_s) != window:
            close()
            window, sums = int(at_s // peak_s), [0.0] * len(CLASSES)
        sums[place] += weight
    if rows:
        close()
    return [Epoch(index * epoch_s, tuple(row)) for index, row in enumerate(rows)]
