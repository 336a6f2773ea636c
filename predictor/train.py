"""Fits a length model to answers of known lengths.

Owns the split, the targets and the choice of strength; the numeric fit is in predictor/fit.py. Prompts and models (by
family) that are held out are never seen by the fit. An answer cut by its limit is censored: its weight goes to longer
lengths as those are distributed among answers that were not cut (Efron's redistribution)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import log2

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from predictor.features import NAMES, Asked, Vocabulary, ends_of, featurise, words_of
from predictor.fit import KNOTS, fit
from predictor.model_file import Body
from predictor.records import Record

Array = NDArray[np.float64]
GRID = (-3.5, -2.5, -2.0, -1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.25)
HELD_PROMPTS, HELD_MODELS = 0.25, 0.3
WORDS = 250  # twice as many tell no more
LEAST_PROMPTS = 6  # a word that fewer have says nothing, and may be somebody's name
LEAST_ANSWERS = 30  # of a model, to know where its lengths lie
MOST_CUT = 0.4
NARROWEST = 0.2  # log2; a model whose answers are all alike is a template, not a conversation
SHORTEST = 4.0  # log2 of its median
STRENGTHS = (0.0003, 0.001, 0.003, 0.01, 0.03)
FOLDS = 4


class TrainError(ValueError):
    """Too little, or nothing, to learn from."""


@dataclass(frozen=True, slots=True)
class Split:
    """`held` has only prompts and models that `training` has not; what has one of the two is used by neither."""

    training: list[Record]
    held: list[Record]
    calibration: list[Record]  # training prompts of held models: what a service's history would tell


def split(records: Sequence[Record]) -> Split:
    """By hash, so that a row stays on its side whatever else the file holds."""
    families = {_family(record.model) for record in records}
    parts = Split([], [], [])
    for record in records:
        prompt = prompt_share(record.prompt_id) < HELD_PROMPTS
        model = len(families) == 1 or prompt_share(_family(record.model).encode()) < HELD_MODELS
        if prompt and model:
            parts.held.append(record)
        elif not prompt and (not model or len(families) == 1):
            parts.training.append(record)
        elif not prompt:
            parts.calibration.append(record)
    return parts


def _family(model: str) -> str:
    """Variants of a model answer alike: `FuseChat-Gemma-2` and `FuseChat-Qwen-2.5` stay on one side."""
    name = model.rpartition("/")[2].lower().replace("_", "-")
    return name.split("-")[0]


def prompt_share(data: bytes) -> float:
    """Where a name falls between 0 and 1: those below HELD_PROMPTS are held out."""
    return int.from_bytes(sha256(data).digest()[:4], "big") / 2**32


@dataclass(frozen=True, slots=True)
class Level:
    """Where a service's answers lie, in log2 tokens: median and half of what lies between q16 and q84."""

    level: float
    spread: float


Group = tuple[str, bytes]  # a service, and a template of it that is known by itself, or none


def groups_of(records: Iterable[Record]) -> list[Group]:
    """Whose level each answer is measured against: its template's where that has answers enough, else its service's.
    Templates of a service answer at levels of their own; taken for one service they would be noise to each other."""
    records = list(records)
    counts = Counter((record.model, record.template) for record in records)
    return [
        (record.model, record.template if counts[record.model, record.template] >= LEAST_ANSWERS else b"")
        for record in records
    ]


def levels_of(records: Sequence[Record]) -> dict[Group, Level]:
    """Of each group whose answers are many and varied enough to learn of."""
    by_group: defaultdict[Group, list[Record]] = defaultdict(list)
    for record, group in zip(records, groups_of(records), strict=True):
        by_group[group].append(record)
    levels = {}
    for group, own in by_group.items():
        logs = np.log2([max(1, record.output_tokens) for record in own])
        low, middle, high = (float(value) for value in np.quantile(logs, (0.16, 0.5, 0.84)))
        cut = sum(record.cut for record in own) / len(own)
        if cut:
            high = 2 * middle - low
        if len(own) >= LEAST_ANSWERS and cut <= MOST_CUT and high - low >= 2 * NARROWEST and middle >= SHORTEST:
            levels[group] = Level(middle, (high - low) / 2)
    return levels


def train(records: Sequence[Record], say: Callable[[str], None], card: dict[str, str | int | float]) -> Body:
    """`records` are those to learn of, all of them. Raises TrainError."""
    levels = levels_of(records)
    usable = [(record, group) for record, group in zip(records, groups_of(records), strict=True) if group in levels]
    if not usable:
        raise TrainError(f"no service or template has {LEAST_ANSWERS} answers of varied length to learn from")
    by_prompt: defaultdict[Asked, list[tuple[Record, Level]]] = defaultdict(list)
    for record, group in usable:
        by_prompt[_unlimited(record.asked)].append((record, levels[group]))
    words = _vocabulary(by_prompt)
    inputs, means, scales = _inputs(list(by_prompt), words)
    terciles, targets, weights = _targets(list(by_prompt.values()))
    say(f"{len(usable)} answers, {len(by_prompt)} prompts, {len(levels)} models and templates, {len(words)} words")
    strength = _best_strength(inputs, targets, weights, [own[0][0].prompt_id for own in by_prompt.values()], say)
    fitted = fit(inputs, len(NAMES), np.array(GRID), targets, weights, strength)
    whole = set(levels) - {group for record, group in usable if record.cut}  # a level read of cut answers is too low
    middles = [level.level for group, level in levels.items() if group in (whole or levels)]
    return Body(
        features=list(NAMES), words=[word.decode() for word in words], grid=KNOTS.tolist(),
        cumulative=_rounded(1 / (1 + np.exp(-fitted.logits))), means=_rounded(means), scales=_rounded(scales),
        mid=_rounded(fitted.mid), mid_bias=_rounded([fitted.mid_bias])[0],
        width=_rounded(fitted.width), width_bias=_rounded([fitted.width_bias])[0],
        level=round(float(np.mean(middles)), 4), level_spread=round(float(np.std(middles)), 4),
        spread=round(float(np.mean([level.spread for level in levels.values()])), 4),
        terciles=(round(terciles[0], 4), round(terciles[1], 4)),
        card={**card, "answers": len(usable), "prompts": len(by_prompt), "models": len(levels), "strength": strength},
    )  # fmt: skip


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{float(value):.5g}") for value in values]


def _unlimited(asked: Asked) -> Asked:
    """A limit is applied to what the model says, not learnt: in open sets it is the collector's, not the asker's."""
    return asked if asked.max_tokens is None else replace(asked, max_tokens=None)


def _vocabulary(prompts: Iterable[Asked]) -> list[bytes]:
    counts: Counter[bytes] = Counter()
    for prompt in {asked.prompt for asked in prompts}:
        counts.update(word for word in set(words_of(ends_of(prompt))) if len(word) <= 24 and _is_text(word))
    often = sorted((-count, word) for word, count in counts.items() if count >= LEAST_PROMPTS)
    return sorted(word for _, word in often[:WORDS])


def _is_text(word: bytes) -> bool:
    return word.decode("utf-8", "ignore").encode() == word


def _inputs(prompts: list[Asked], words: list[bytes]) -> tuple[Array, Array, Array]:
    vocabulary = Vocabulary(words)
    column = {word: len(NAMES) + at for at, word in enumerate(words)}
    inputs = np.zeros((len(prompts), len(NAMES) + len(words)))
    for at, asked in enumerate(prompts):
        features = featurise(asked, vocabulary)
        inputs[at, : len(NAMES)] = features.numbers
        inputs[at, [column[word] for word in features.words if word in column]] = 1.0
    numbers = inputs[:, : len(NAMES)]
    means, deviations = numbers.mean(axis=0), numbers.std(axis=0)
    scales = np.where(deviations > 1e-6, deviations, 1.0)
    inputs[:, : len(NAMES)] = (numbers - means) / scales
    return inputs, means, scales


def _targets(prompts: list[list[tuple[Record, Level]]]) -> tuple[tuple[float, float], Array, Array]:
    """Terciles of all lengths; share of each prompt's answers within each grid point, and how much a prompt weighs."""
    grid = np.array(GRID)
    lengths, cut, owner = [], [], []
    for at, own in enumerate(prompts):
        for record, level in own:
            lengths.append((log2(max(1, record.output_tokens)) - level.level) / level.spread)
            cut.append(record.cut)
            owner.append(at)
    z, was_cut, row = np.array(lengths), np.array(cut), np.array(owner)
    within = (z[:, None] <= grid).astype(float)
    if was_cut.any():
        marginal = within[~was_cut].mean(axis=0)
        at_cut = np.interp(z[was_cut], grid, marginal)
        rest = (marginal - at_cut[:, None]) / np.maximum(1e-9, 1.0 - at_cut)[:, None]
        within[was_cut] = np.clip(np.where(grid >= z[was_cut][:, None], rest, 0.0), 0.0, 1.0)
    counts = np.bincount(row, minlength=len(prompts)).astype(float)
    shares = np.zeros((len(prompts), len(grid)))
    np.add.at(shares, row, within)
    low, high = np.quantile(z[~was_cut], (1 / 3, 2 / 3))
    return (float(low), float(high)), shares / counts[:, None], np.sqrt(counts) / np.sqrt(counts).mean()


def _best_strength(
    inputs: Array, targets: Array, weights: Array, prompts: Sequence[bytes], say: Callable[[str], None]
) -> float:
    """By cross-validation over prompts: the loss of the whole distribution."""
    fold = np.array([int(prompt_share(b"fold" + prompt) * FOLDS) for prompt in prompts])
    grid = np.array(GRID)
    best = (float("inf"), STRENGTHS[0])
    for strength in STRENGTHS:
        losses = []
        for out in range(FOLDS):
            inside, outside = fold != out, fold == out
            if not inside.any() or not outside.any():
                continue
            found = fit(inputs[inside], len(NAMES), grid, targets[inside], weights[inside], strength)
            chance = np.clip(found.below(inputs[outside], grid), 1e-6, 1 - 1e-6)
            share = targets[outside]
            losses.append(float(-(share * np.log(chance) + (1 - share) * np.log1p(-chance)).mean()))
        loss = float(np.mean(losses)) if losses else 0.0
        say(f"strength {strength}: loss {loss:.4f}")
        best = min(best, (loss, strength))
    return best[1]


def held_out(parts: Split) -> list[Record]:
    """What to score a model on, in a fixed order that mixes prompts: of models with usable and uncut answers."""
    levels = {model for model, _ in levels_of(parts.held)}
    cut = {record.model for record in parts.held if record.cut}
    kept = [record for record in parts.held if record.model in levels and record.model not in cut]
    return sorted(kept, key=lambda record: (prompt_share(record.prompt_id + b"order"), record.model))


def as_templates(records: Sequence[Record]) -> list[Record]:
    """The same answers as if one service had given them, each model under a template of its own. The two halves keep
    their prompts; inside each the order is mixed, for nobody asks all applications the same thing in a row."""
    half = len(records) // 2
    found = []
    for part in (records[:half], records[half:]):
        found += sorted(part, key=lambda record: prompt_share(record.prompt_id + record.model.encode()))
    return [replace(record, model="all", template=record.model.encode()) for record in found]
