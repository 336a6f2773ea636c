"""Streams under faults, each answer checked.   python -m tests.chaos.run --engine emulated --duration 60 --seed 1

Writes build/chaos.json; exit status 1 when an answer was not what it had to be or something was left behind."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from core.errors import UpstreamFailed, UpstreamTimeout
from pools.connection import Wires
from tests.chaos.faults import ELSEWHERE_FAULTS, INSTANCE_FAULTS, Faults
from tests.chaos.mix import Tally, Truth, Verdict, Wish, judge, wishes
from tests.chaos.truths import AskedTruths, EmulatedTruths
from tests.chaos.world import World, emulated_world, fds_of, leftovers, rss_bytes_of, vllm_world

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
TOPICS = {"emulated": 400, "vllm": 1}
EVERY_S = {"emulated": 0.7, "vllm": 2.0}
VLLM_KINDS = frozenset({"kill9", "sigterm", "cut", "gateway_kill"})
HEADERS = [(b"content-type", b"application/json")]


class Run:
    """One run: its clients, its faults, its books."""

    def __init__(self, world: World, truths: EmulatedTruths | AskedTruths, faults: Faults, args: argparse.Namespace):
        self.world = world
        self.tally = Tally()
        self.samples: list[tuple[int, int]] = []  # (requests, resident bytes) of the gateway that runs now
        self._truths = truths
        self._faults = faults
        self._wishes = wishes(args.seed, "tiny", TOPICS[args.engine], leave_share=0.03)
        self._until_s = time.monotonic() + args.duration
        self._most = args.streams
        self._wires = Wires("127.0.0.1", world.port, 5.0)

    def more(self) -> bool:
        return time.monotonic() < self._until_s and not (self._most and self.tally.streams >= self._most)

    async def client(self) -> None:
        while self.more():
            await self._faults.gateway_up()
            wish = next(self._wishes)
            self.tally.add(await self.ask(wish, self._truths.of(wish)), wish.path)

    async def ask(self, wish: Wish, truth: Truth) -> Verdict:
        body, status = b"", 0
        deaths = self._faults.deaths_of_gateway
        try:
            async with await self._wires.send(
                b"POST", wish.path.encode(), HEADERS, json.dumps(wish.body).encode()
            ) as it:
                status = (await it.head(PATIENCE_S)).status
                while data := await it.chunk(PATIENCE_S):
                    body += data
                    if wish.leaves_after and len(body) > wish.leaves_after:
                        return Verdict("left")
        except (UpstreamFailed, UpstreamTimeout) as error:
            died = deaths != self._faults.deaths_of_gateway
            whole = body.endswith(b"data: [DONE]\n\n")
            if not whole or not died:
                return Verdict(
                    "cut" if died else "malformed" if whole else "lost", f"{error.message} after {len(body)}"
                )
        return judge(wish, status, body, truth)

    async def sample(self) -> None:
        """Until cancelled."""
        pid = 0
        while True:
            await asyncio.sleep(1.0)
            process = self.world.gateway.process
            if process.pid != pid:
                pid, self.samples = process.pid, []
            if process.poll() is None:
                self.samples.append((self.tally.streams, rss_bytes_of(pid)))

    async def warm_up(self, count: int) -> None:
        """Without faults and without being counted: what a gateway keeps open stands then."""
        work = list(islice(self._wishes, count))
        await asyncio.gather(*(self.ask(wish, self._truths.of(wish)) for wish in work))


def slope(samples: list[tuple[int, int]]) -> float | None:
    """Bytes per request, least squares over the later half; None from too few."""
    late = samples[len(samples) // 2 :]
    if len(late) < 5 or late[-1][0] == late[0][0]:
        return None
    mean_x = sum(x for x, _ in late) / len(late)
    mean_y = sum(y for _, y in late) / len(late)
    return sum((x - mean_x) * (y - mean_y) for x, y in late) / sum((x - mean_x) ** 2 for x, _ in late)


def seams_of(folder: Path) -> list[float]:
    rows = [json.loads(line) for path in folder.glob("run.jsonl*") for line in path.read_text().splitlines()]
    return sorted(row["seam_s"] for row in rows if "seam_s" in row)


def rank(values: list[float], share: float) -> float | None:
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else None


async def settled(world: World, before_fds: int) -> dict[str, int]:
    """What is still held when all is over; waits for it to go."""
    due_s = time.monotonic() + 10.0
    while True:
        idle = await asyncio.to_thread(world.gateway.idle)
        fds = max(0, fds_of(world.gateway.process.pid) - before_fds)
        if (idle and not fds) or time.monotonic() > due_s:
            break
        await asyncio.sleep(0.2)
    state = world.gateway.state()
    held = sum(i["sequences"] for service in state["services"] for i in service["instances"])
    return {"slots": held + state["in_flight"], "fds": fds}


async def chaos(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    emulated = args.engine == "emulated"
    world = await (emulated_world(folder, args.speed) if emulated else vllm_world(folder))
    try:
        truths = EmulatedTruths() if emulated else AskedTruths([f"http://127.0.0.1:{i.port}" for i in world.instances])
        if isinstance(truths, AskedTruths):
            await truths.learn(islice(wishes(args.seed, "tiny", TOPICS["vllm"], 0.03), 10_000))
        kinds = frozenset(k for k, _ in (*INSTANCE_FAULTS, *ELSEWHERE_FAULTS))
        wanted = frozenset(args.faults.split(",")) if args.faults else kinds if emulated else VLLM_KINDS
        faults = Faults(world, args.seed, args.every or EVERY_S[args.engine], wanted & kinds)
        run = Run(world, truths, faults, args)
        await run.warm_up(3 * args.clients)
        before_fds = fds_of(world.gateway.process.pid)
        beside = [asyncio.create_task(run.sample()), asyncio.create_task(faults.run())]
        began_s = time.monotonic()
        await asyncio.gather(*(run.client() for _ in range(args.clients)))
        took_s = time.monotonic() - began_s
        for task in beside:
            task.cancel()
        await faults.gateway_up()
        await faults.mended()
        run._wires.close()
        leaked = await settled(world, before_fds)
        faulty = world.gateway.faults()
    finally:
        await world.close()
    leaked["children"] = leftovers(world.instances)
    return report(args, run, faults, leaked, took_s, seams_of(folder), len(faulty))


def report(
    args: argparse.Namespace,
    run: Run,
    faults: Faults,
    leaked: dict[str, int],
    took_s: float,
    seams: list[float],
    own: int,
) -> dict[str, Any]:
    tally = vars(run.tally)
    return {
        "engine": args.engine,
        "seed": args.seed,
        "duration_s": round(took_s, 1),
        **tally,
        "faults": dict(faults.counts),
        "leaked": leaked,
        "moved": len(seams),
        "seam_p50_s": rank(seams, 0.5),
        "seam_p99_s": rank(seams, 0.99),
        "rss_slope_bytes_per_request": slope(run.samples),
        "faults_of_the_gateways_own": own,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--engine", choices=("emulated", "vllm"), default="emulated")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds under faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streams", type=int, default=0, help="stop after so many; 0 = by duration alone")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--speed", type=float, default=5.0, help="of the emulated engines")
    parser.add_argument("--every", type=float, default=0.0, help="mean seconds between faults")
    parser.add_argument("--faults", default="", help="kinds, with commas; empty: all that fit the engine")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "chaos.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        said = asyncio.run(chaos(args, Path(folder)))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(said, indent=1) + "\n")
    print(json.dumps(said, indent=1))
    bad = sum(said[kind] for kind in ("lost", "truncated", "duplicated", "malformed"))
    return int(bool(bad or any(said["leaked"].values()) or said["faults_of_the_gateways_own"]))


if __name__ == "__main__":
    sys.exit(main())
