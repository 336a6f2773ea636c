"""What one prediction costs: p50 and p99 on one core, beside a bare numpy logistic timed in the same run.

    python -m bench.predict_cost [../shared/data/alpaca_eval_outputs] [--rounds 40] [--json]

Prompts are those of the folder (or made of a list of words), joined until they are as long as asked. Cases take turns,
so that a busy moment of the machine falls on all of them. What is bare is arithmetic that a model of this size hardly
does without: 40 numbers times 3 columns, exp, normalised, from a tuple to a list. No thread pool, no collection off."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns

import msgspec
import numpy as np

from core.service import Edges
from gateway.asked import asked_of
from gateway.parse import parse
from predictor.blend import Blend
from predictor.features import NAMES, Asked
from predictor.model import prediction_of, shipped_model
from predictor.records import read_records

PROMPTS, LEARNT, LIMIT = 200, 100, 4000
EDGES = Edges()
Case = tuple[Callable[[int], object], list[int]]


def prompts_of(texts: Sequence[bytes], size: int, seed: int = 3) -> list[bytes]:
    order, made = random.Random(seed), []
    for _ in range(PROMPTS):
        prompt = b""
        while len(prompt) < size:
            prompt += order.choice(texts) + b"\n"
        made.append(prompt[:size])
    return made


def bare() -> Callable[[int], object]:
    order = np.random.default_rng(1)
    rows = [tuple(row) for row in order.random((PROMPTS, len(NAMES)))]
    weights, bias = order.random((len(NAMES), 3)), order.random(3)

    def logistic(at: int) -> object:
        chance = np.exp(np.dot(rows[at], weights) + bias)
        return (chance / chance.sum()).tolist()

    return logistic


def cases(texts: Sequence[bytes]) -> dict[str, Case]:
    model = shipped_model()
    found: dict[str, Case] = {"bare numpy logistic": (bare(), [])}
    for name, size in (("200 bytes", 200), ("2 kB", 2048), ("100,000 bytes", 100_000)):
        prompts = prompts_of(texts, size)
        asked = [Asked(prompt, len(prompt)) for prompt in prompts]
        blend = Blend(model)
        for one in asked[:LEARNT]:
            blend.learn(blend.foretell(b"template", LIMIT, EDGES, one), 50 + len(one.prompt) % 400)
        bodies = [
            msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": p.decode("utf-8", "replace")}]})
            for p in prompts
        ]
        parsed = [parse(body, b"") for body in bodies]

        def alone(at: int, asked: list[Asked] = asked) -> object:
            return prediction_of(model.distribution(model.features(asked[at])), LIMIT, EDGES)

        def history(at: int, asked: list[Asked] = asked, blend: Blend = blend) -> object:
            return blend.foretell(b"template", LIMIT, EDGES, asked[at])

        def request(at: int, parsed: list = parsed, blend: Blend = blend) -> object:  # type: ignore[type-arg]
            return blend.foretell(b"template", LIMIT, EDGES, asked_of(parsed[at]))

        found |= {f"{name}, model": (alone, []), f"{name}, with history": (history, [])}
        found[f"{name}, with history, of a parsed request"] = (request, [])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.data:
        texts = sorted({record.asked.prompt for record in read_records(options.data)})
    else:
        words = random.Random(5).choices(sorted(shipped_model().vocabulary.known), k=4000)
        texts = [b" ".join(words[at : at + 20]) + b"?" for at in range(0, 4000, 20)]
    measured = cases(texts)
    for _ in range(options.rounds):
        for case, took in measured.values():
            for at in range(PROMPTS):
                start = perf_counter_ns()
                case(at)
                took.append(perf_counter_ns() - start)
    base = float(np.percentile(measured["bare numpy logistic"][1], 50))
    rows = {
        name: {
            "p50_us": round(float(np.percentile(took, 50)) / 1e3, 2),
            "p99_us": round(float(np.percentile(took, 99)) / 1e3, 2),
            "of_bare": round(float(np.percentile(took, 50)) / base, 2),
        }
        for name, (_, took) in measured.items()
    }
    if options.json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    sys.stdout.write(f"{'':52}{'p50 us':>8}{'p99 us':>9}{'x bare':>8}\n")
    for name, row in rows.items():
        sys.stdout.write(f"{name:52}{row['p50_us']:8.1f}{row['p99_us']:9.1f}{row['of_bare']:8.2f}\n")


if __name__ == "__main__":
    main()
