"""What a pool is asked to carry, in the few numbers that its price depends on, and their reading off requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.service import SIZES, Edges, Slo


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one class: rate, mean prompt and answer, and what means do not tell. `input_sq`: mean of the squared
    prompt; `longest_tokens`: the prompt that 99 % do not exceed; `context_tokens`: KV tokens of a sequence while it
    decodes, averaged over its steps. 0: taken from the means."""

    size_class: str
    rps: float
    input_tokens: float
    output_tokens: float
    ttft_s: float
    input_sq: float = 0.0
    longest_tokens: float = 0.0
    context_tokens: float = 0.0

    def completed(self) -> Load:
        return replace(
            self,
            input_sq=max(self.input_sq, self.input_tokens**2),
            longest_tokens=self.longest_tokens or self.input_tokens,
            context_tokens=self.context_tokens or self.input_tokens + self.output_tokens / 2,
        )


Mix = tuple[Load, ...]


def rate(mix: Mix) -> float:
    return sum(load.rps for load in mix)


def scaled(mix: Mix, times: float) -> Mix:
    return tuple(replace(load, rps=load.rps * times) for load in mix)


def from_each_on(found: Mapping[str, Mix], pools: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """By pool in their order, of the whole load what it and all longer ones are asked for together: of requests, prompt
    and answer tokens, whichever is most."""
    of_pools = [sums(found.get(pool, ())) for pool in pools]
    whole = [sum(values) or 1.0 for values in zip(*of_pools, strict=True)]
    later = [[sum(values) for values in zip(*of_pools[place:], strict=True)] for place in range(len(pools))]
    return tuple(
        (pool, max(part / all_of for part, all_of in zip(parts, whole, strict=True)))
        for pool, parts in zip(pools, later, strict=True)
    )


def sums(mix: Mix) -> tuple[float, float, float]:
    """Requests, prompt and answer tokens, each per second."""
    return rate(mix), sum(one.rps * one.input_tokens for one in mix), sum(one.rps * one.output_tokens for one in mix)


def mixes(
    requests: Iterable[tuple[int, int]], duration_s: float, edges: Edges, slo: Slo, serves: Mapping[str, Sequence[str]]
) -> dict[str, Mix]:
    """Requests (prompt tokens, answer tokens) seen in `duration_s`, by pool. `serves`: output sizes that each pool
    serves first, as in a configuration; what no pool names goes to the last."""
    by_class: dict[str, list[tuple[int, int]]] = {}
    for prompt, answer in requests:
        by_class.setdefault(edges.input_size(prompt) + edges.output_size(answer), []).append((prompt, answer))
    pools = list(serves)
    found: dict[str, list[Load]] = {pool: [] for pool in pools}
    for size_class in (a + b for a in SIZES for b in SIZES):
        if lengths := by_class.get(size_class):
            pool = next((p for p in pools if size_class[1] in serves[p]), pools[-1])
            found[pool].append(_load(size_class, lengths, duration_s, slo.ttft_s[size_class[0]]))
    return {pool: tuple(loads) for pool, loads in found.items()}


def _load(size_class: str, lengths: Sequence[tuple[int, int]], duration_s: float, ttft_s: float) -> Load:
    prompts, answers = np.array(lengths, dtype=np.float64).T
    context = float((answers * (prompts + answers / 2)).sum() / answers.sum())
    return Load(
        size_class, len(lengths) / duration_s, float(prompts.mean()), float(answers.mean()), ttft_s,
        float((prompts**2).mean()), float(np.quantile(prompts, 0.99, method="higher")), context,
    )  # fmt: skip
