"""Lengths of a real model's answers under the system prompts of bench/templates.py, for `joulegate predict eval`.

    python -m bench.template_lengths ../shared/data/alpaca_eval_outputs --vllm .venv-vllm/bin/python --model DIR

Starts a vLLM server on one CPU core and asks it: every template with the same PROMPTS prompts of AlpacaEval, of those
that `joulegate train` holds out, so that the shipped model has seen none. The model ends its answers itself; those that
MOST tokens end count as cut. Half of the prompts come first, in an order mixed by SEED, then the other half: history
may learn of the first, the second is scored; they are asked in turns, so that the file is a fair part of both when the
time is up. Goes on where it stopped; an answer that is not through then is asked for anew. Keeps no answer's text.
With --again N it asks N of the answered questions a second time, into OUT.again, and says how often the model agrees
with itself on the class: nobody who knows only the question can do better. --url asks a server that runs already.
(Requests have no seeds of their own: vLLM 0.32 on a CPU dies of one whose prompt is prefilled in pieces.)"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import takewhile
from pathlib import Path

import httpx
import numpy as np
from scipy.stats import spearmanr

from bench.templates import TEMPLATES
from core.clock import Clock, SystemClock
from pools.ports import free_ports
from predictor.records import read_records
from predictor.train import HELD_PROMPTS, prompt_share

SEED, PROMPTS, MOST = 1, 100, 512
TEMPERATURE, STREAMS = 0.7, 64
START_S, DRAIN_S = 600.0, 420.0
SERVER = (
    "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server", "--served-model-name", "model", "--host", "127.0.0.1",
    "--dtype", "float32", "--enforce-eager", "--max-model-len", "4096", "--kv-cache-memory-bytes", "3000M",
    "--max-num-seqs", str(STREAMS), "--seed", str(SEED), "--distributed-executor-backend", "uni",
)  # fmt: skip
ENV = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1",
}  # fmt: skip


def questions(folder: Path, seed: int = SEED) -> list[tuple[str, str]]:
    """(template, prompt), in the order in which they are asked."""
    held = {r.asked.prompt for r in read_records(folder) if prompt_share(r.prompt_id) < HELD_PROMPTS}
    order = random.Random(seed)
    prompts = order.sample(sorted(prompt.decode() for prompt in held), PROMPTS)
    asked: list[tuple[str, str]] = []
    for half in (prompts[: PROMPTS // 2], prompts[PROMPTS // 2 :]):
        own = [(name, prompt) for name in TEMPLATES for prompt in half]
        order.shuffle(own)
        asked += own
    return asked


async def ask(client: httpx.AsyncClient, at: int, template: str, prompt: str) -> dict[str, object]:
    messages = [{"role": "system", "content": TEMPLATES[template]}, {"role": "user", "content": prompt}]
    body = {"model": "model", "messages": messages, "max_tokens": MOST, "temperature": TEMPERATURE}
    answer = await client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    said = answer.json()
    return {
        "at": at, "template": template, "messages": messages, "output_tokens": said["usage"]["completion_tokens"],
        "max_tokens": MOST, "temperature": TEMPERATURE, "finish_reason": said["choices"][0]["finish_reason"],
    }  # fmt: skip


async def collect(url: str, todo: list[tuple[int, str, str]], out: Path, until_s: float, clock: Clock) -> int:
    """Asks until the time is up; what is then being written may end."""
    left, done = iter(todo), 0
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as client:
        with out.open("a") as lines:

            async def worker() -> None:
                nonlocal done
                for at, template, prompt in left:
                    if clock.now_s() > until_s:
                        return
                    row = await ask(client, at, template, prompt)
                    lines.write(json.dumps(row) + "\n")
                    lines.flush()
                    done += 1

            with suppress(TimeoutError):
                async with asyncio.timeout(until_s + DRAIN_S - clock.now_s()):
                    await asyncio.gather(*(worker() for _ in range(STREAMS)))
    return done


@asynccontextmanager
async def serving(options: argparse.Namespace, clock: Clock) -> AsyncIterator[str]:
    """The address of a server, --url's or one that ends with this."""
    if options.url:
        yield options.url
        return
    (port,) = free_ports(1)
    argv = [options.vllm, *SERVER, "--model", options.model, "--port", str(port)]
    with options.out.with_suffix(".log").open("wb") as log:
        server = subprocess.Popen(
            argv, env={**os.environ, **ENV}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        await healthy(url, server, clock)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)


async def healthy(url: str, server: subprocess.Popen[bytes], clock: Clock) -> None:
    start_s = clock.now_s()
    async with httpx.AsyncClient(base_url=url, timeout=5, trust_env=False) as client:
        while clock.now_s() - start_s < START_S and server.poll() is None:
            with suppress(httpx.TransportError):
                if (await client.get("/health")).status_code == 200:
                    return
            await asyncio.sleep(1)
    raise SystemExit("the server did not start")


def finish(out: Path, order: list[tuple[str, str]]) -> None:
    """All rows in the order of the questions."""
    rows = {row["at"]: row for row in map(json.loads, out.read_text().splitlines())}
    whole = out.with_name(out.name + ".part")
    whole.write_text("".join(json.dumps(rows[at]) + "\n" for at in range(len(order)) if at in rows))
    whole.replace(out)


def lengths_at(out: Path) -> dict[int, int]:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.touch()
    return {row["at"]: row["output_tokens"] for row in map(json.loads, out.read_text().splitlines())}


def turns(count: int) -> list[int]:
    """The first of the first half, the first of the second, the second of the first and so on."""
    half = count // 2
    return [at for pair in zip(range(half), range(half, count), strict=True) for at in pair]


def agreement(once: dict[int, int], twice: dict[int, int], asked: list[int]) -> str:
    """Classes by the terciles of all that was answered once. Of those asked twice the ones before the first that is not
    through: what is missing at the end is long."""
    both = list(takewhile(twice.__contains__, asked))
    if len(both) < 2:
        return "too few are through to say more\n"
    small, medium = map(float, np.quantile(list(once.values()), (1 / 3, 2 / 3)))
    sizes = [[(n > small) + (n > medium) for n in (once[at], twice[at])] for at in both]
    same = sum(a == b for a, b in sizes)
    cut = sum(once[at] >= MOST and twice[at] >= MOST for at in both)
    by_class = {name: [b for a, b in sizes if a == size].count(size) for size, name in enumerate("SML")}
    rank = spearmanr([once[at] for at in both], [twice[at] for at in both]).statistic
    return (
        f"of {len(both)} asked twice {same} have the same class by terciles ({same / len(both):.3f}; "
        f"{by_class}), both cut {cut}, Spearman {rank:.2f}\n"
    )


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--vllm", help="Python with vLLM")
    parser.add_argument("--model")
    parser.add_argument("--url", help="of a server that runs already, as this would start it")
    parser.add_argument("--out", type=Path, default=Path("build/template-lengths.jsonl"))
    parser.add_argument("--again", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    if not options.url and not (options.vllm and options.model):
        parser.error("needs --vllm and --model, or --url")
    clock = SystemClock()
    until_s = clock.now_s() + 60 * options.minutes - DRAIN_S
    order = questions(options.data)
    once = lengths_at(options.out)
    out, had, ats = options.out, once, turns(len(order))
    if options.again:
        out = options.out.with_name(options.out.name + ".again")
        had, ats = lengths_at(out), random.Random(SEED).sample(sorted(once), min(options.again, len(once)))
    async with serving(options, clock) as url:
        done = await collect(url, [(at, *order[at]) for at in ats if at not in had], out, until_s, clock)
    finish(out, order)
    sys.stdout.write(f"{done} answers more, {len(had) + done} of {len(ats)}\n")
    if options.again:
        sys.stdout.write(agreement(once, lengths_at(out), ats))


if __name__ == "__main__":
    asyncio.run(main())
