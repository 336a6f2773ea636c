"""Streams under faults, each answer checked.   python -m tests.chaos.run --engine emulated --duration 60 --seed 1

Writes build/chaos.json; exit status 1 when an answer was not what it had to be or something was left behind."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from core.errors import UpstreamFailed, UpstreamTimeout
from pools.connection import ConnectionLost, Wires
from tests.chaos.faults import ALL_KINDS, APART_S, Faults
from tests.chaos.mix import Tally, Truth, Verdict, Wish, judge, wishes
from tests.chaos.report import report, rows_of, slope
from tests.chaos.truths import AskedTruths, EmulatedTruths
from tests.chaos.world import World, emulated_world, fds_of, leftovers, rss_bytes_of, vllm_world

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
TOPICS = {"emulated": 400, "vllm": 1}
EVERY_S = {"emulated": 0.7, "vllm": 2.0}
GATEWAY_ENDS = frozenset({"gateway_kill", "gateway_sigterm"})
VLLM_KINDS = frozenset({"kill9", "engine_kill", "sigterm", "cut", "gateway_kill"})
HEADERS = [(b"content-type", b"application/json")]


class Run:
    """One run: its clients, its faults, its books."""

    def __init__(self, world: World, truths: EmulatedTruths | AskedTruths, faults: Faults, args: argparse.Namespace):
        self.world = world
        self.tally = Tally()
        self.samples: list[tuple[int, int, int]] = []  # (requests, resident bytes, fds) of the gateway that runs now
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
            wish, kind = next(self._wishes), "turned_away"
            while kind == "turned_away":
                await self._faults.gateway_up()
                verdict = await self.ask(wish, self._truths.of(wish))
                kind = verdict.kind
                verdict.why += f" [{self._faults.lately()}]" if verdict.why else ""
                self.tally.add(verdict, wish.path)

    async def ask(self, wish: Wish, truth: Truth) -> Verdict:
        body, status = b"", 0
        faults = self._faults
        kills, ends = faults.kills, faults.ends
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
            died = kills != faults.kills
            if not status and (died or ends != faults.ends) and not isinstance(error, ConnectionLost):
                return Verdict("turned_away")  # nobody listened
            whole = body.endswith(b"data: [DONE]\n\n")
            if not whole or not died:
                return Verdict(
                    "cut" if died else "malformed" if whole else "lost", f"{error.message} after {len(body)}"
                )
        if status == 503 and b'"shutting_down"' in body and ends != faults.ends:
            return Verdict("turned_away")
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
                self.samples.append((self.tally.streams, rss_bytes_of(pid), fds_of(pid)))

    async def warm_up(self, count: int) -> None:
        """Without faults and without being counted: what a gateway keeps open stands then."""
        work = list(islice(self._wishes, count))
        await asyncio.gather(*(self.ask(wish, self._truths.of(wish)) for wish in work))


async def settled(world: World, before_fds: int) -> dict[str, int]:
    """What is still held when all is over; waits for it to go. `sequences`: that engines still compute."""
    due_s = time.monotonic() + 10.0
    while True:
        idle = await asyncio.to_thread(world.gateway.idle)
        fds = max(0, fds_of(world.gateway.process.pid) - before_fds)
        sequences = sum([await asyncio.to_thread(instance.sequences) for instance in world.instances])
        if (idle and not fds and not sequences) or time.monotonic() > due_s:
            break
        await asyncio.sleep(0.2)
    state = world.gateway.state()
    held = sum(i["sequences"] for service in state["services"] for i in service["instances"])
    queued = sum(service["queued"] for service in state["services"])
    return {"slots": held + state["in_flight"], "queued": queued, "sequences": sequences, "fds": fds}


async def chaos(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    emulated = args.engine == "emulated"
    world = await (emulated_world(folder, args.speed) if emulated else vllm_world(folder, args.model))
    try:
        truths = EmulatedTruths() if emulated else AskedTruths([f"http://127.0.0.1:{i.port}" for i in world.instances])
        if isinstance(truths, AskedTruths):
            asked = args.streams + 4 * args.clients if args.streams else 10_000
            await truths.learn(islice(wishes(args.seed, "tiny", TOPICS["vllm"], 0.03), asked))
        usual = ALL_KINDS - GATEWAY_ENDS if args.soak else ALL_KINDS if emulated else VLLM_KINDS
        wanted = frozenset(args.faults.split(",")) if args.faults else usual
        faults = Faults(world, args.seed, args.every or EVERY_S[args.engine], wanted, args.apart)
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
    said = report(args, run.tally, faults, took_s, rows_of(folder), world.numbers)
    late = run.samples[len(run.samples) // 2 :]
    said |= {
        "leaked": leaked,
        "rss_slope_bytes_per_request": slope([(requests, rss) for requests, rss, _ in run.samples]),
        "rss_late_mb": [round(rss / 1e6, 1) for _, rss, _ in late[:: max(1, len(late) // 10)]],
        "fds_late": [min(fds for *_, fds in late), max(fds for *_, fds in late)] if late else None,
    }
    return {**said, "faults_of_the_gateways_own": len(faulty), "load": os.getloadavg()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--engine", choices=("emulated", "vllm"), default="emulated")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds under faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--streams", type=int, default=0, help="stop after so many; 0 = by duration alone")
    parser.add_argument(
        "--soak", action="store_true", help="the gateway is left alone, so that its memory can be judged"
    )
    parser.add_argument("--model", type=Path, help="folder of the model that vLLM serves; without: the tests' tiny one")
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--speed", type=float, default=5.0, help="of the emulated engines")
    parser.add_argument("--every", type=float, default=0.0, help="mean seconds between faults")
    parser.add_argument(
        "--apart", type=float, default=APART_S, help="least seconds from one kill of an instance to the next"
    )
    parser.add_argument("--faults", default="", help="kinds, with commas; empty: all that fit the engine")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "chaos.json")
    args = parser.parse_args()
    if unknown := frozenset(filter(None, args.faults.split(","))) - ALL_KINDS:
        parser.error(f"no such faults: {', '.join(sorted(unknown))}; there are {', '.join(sorted(ALL_KINDS))}")
    with tempfile.TemporaryDirectory() as folder:
        said = asyncio.run(chaos(args, Path(folder)))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(said, indent=1) + "\n")
    print(json.dumps(said, indent=1))
    bad = sum(said[kind] for kind in ("lost", "truncated", "duplicated", "malformed"))
    wrong = said["faults_of_the_gateways_own"] or said["not_as_ordered"]
    return int(bool(bad or any(said["leaked"].values()) or wrong))


if __name__ == "__main__":
    sys.exit(main())
