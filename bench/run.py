"""What joulegate costs beside other gateways: `python -m bench.run`. All gateways run at once, pinned to one core, and
take turns; stub engines and load client have another core. Exit status: 0 measured, 1 an answer was wrong or joulegate
did not start, 2 wrong usage. docs/performance.md says how to read the figures."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.counters import usable
from bench.gateways import AGAIN, BASELINE, OURS, PEERS, Gateway, Place, joulegate, peer, peers_root
from bench.machine import rss_mb
from bench.processes import NotStarted, Running, build, start_gateway, start_stub
from bench.results import DIRECT, Results, as_json, failures, share, table
from bench.segments import FLOOD, PACED, REQUESTS, STEPS, Bench, load_args
from pools.ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
ROUNDS_PER_START = 2  # then every gateway is started anew: two starts of one program differ by some per cent
ROUNDS, ROUNDS_OF_TWO = 8, 16  # what fits into the time with all peers, and with joulegate against itself
MAX_REPEATS = 0.25  # of all segments
VAIN_REPEATS = (
    4  # disturbed again so often in a row: others are here to stay, and more rounds are the better use of time
)
SLOW_ROUNDS = ROUNDS_PER_START  # a gateway that is ten times dearer needs no precision


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    cores = sorted(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--peers", default="", help=f"some of {', '.join(PEERS)}; default: those installed")
    parser.add_argument("--self-check", action="store_true", help="joulegate against itself: how far apart is noise")
    parser.add_argument("--baseline", type=Path, help="another checkout of joulegate, compared as a peer")
    parser.add_argument("--source", type=Path, default=ROOT, help="the checkout to measure (default: this one)")
    parser.add_argument("--rounds", type=int, default=0, help=f"default: {ROUNDS}, or {ROUNDS_OF_TWO} without peers")
    parser.add_argument("--seconds", type=float, default=2.56, help="length of the paced segment")
    parser.add_argument("--budget", type=float, default=360, help="no round begins that would end later (seconds)")
    parser.add_argument("--seed", type=int, default=1, help="of the order within rounds")
    parser.add_argument(
        "--nice", type=int, default=0, help="priority of all of it; below 0 (root only) disturbs others"
    )
    parser.add_argument("--max-foreign", type=float, default=0.05, help="share of the core that others may use")
    parser.add_argument("--gateway-core", type=int, default=cores[-1])
    parser.add_argument("--load-core", type=int, default=cores[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench.json")
    args = parser.parse_args(argv)
    args.peers = args.peers.replace(",", " ").split()
    for name in args.peers:
        if name not in PEERS:
            parser.error(f"no peer {name!r}; known: {', '.join(PEERS)}")
    if args.rounds < 0 or args.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    alone = (args.self_check or args.baseline) and not args.peers
    args.rounds = args.rounds or (ROUNDS_OF_TWO if alone else ROUNDS)
    return args


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def snapshot(source: Path, to: Path) -> Path:
    """A copy of the code, so that somebody who edits meanwhile does not change what is measured."""
    packages = [path.parent.name for path in source.glob("*/__init__.py") if path.parent.name not in ("bench", "tests")]
    for package in packages:
        shutil.copytree(source / package, to / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "joulegate.py", to)
    return to


def choose(args: argparse.Namespace, place: Place, results: Results) -> list[Gateway]:
    """joulegate and who is compared with it. Named peers that are not installed are told in `results.missing`."""
    names = args.peers or ([] if args.self_check or args.baseline else PEERS)
    ports = iter(free_ports(3 + 2 * len(names)))
    source = snapshot(args.source.resolve(), place.folder / "source")
    chosen = [joulegate(OURS, next(ports), place, source)]
    if args.self_check:
        chosen.append(joulegate(AGAIN, next(ports), place, source))
    if args.baseline:
        chosen.append(joulegate(BASELINE, next(ports), place, snapshot(args.baseline.resolve(), place.folder / "base")))
    for name in names:
        found = peer(name, next(ports), place, peers_root(), next(ports))
        if found is None:
            results.missing[name] = f"not installed (PEERS_VENVS={peers_root()})"
        else:
            chosen.append(found)
    return chosen


@dataclass(slots=True)
class Run:
    """The gateways of one start and what is left of time and repeats."""

    bench: Bench
    results: Results
    stub_port: int
    order: random.Random
    repeats_left: int
    in_vain: int = 0
    started: dict[str, tuple[Gateway, Running]] = field(default_factory=dict)

    def start(self, gateways: Sequence[Gateway], folder: Path) -> None:
        for gateway in gateways:
            if gateway.name in self.results.missing:
                continue
            try:
                self.started[gateway.name] = gateway, start_gateway(gateway, self.bench.gateway_core, folder)
            except NotStarted as error:
                if gateway.name == OURS:
                    raise
                self.results.missing[gateway.name] = str(error)
        for gateway, _ in self.started.values():
            self.bench.ask(gateway.port, gateway.headers, load_args(REQUESTS, 0.6))
            self.bench.ask(gateway.port, gateway.headers, load_args(FLOOD, 0.6))

    def stop(self) -> None:
        for _, running in self.started.values():
            running.stop()
        self.started.clear()

    def remember_rss(self, number: int) -> None:
        for name, (_, running) in self.started.items():
            self.results.rss.setdefault(name, {})[number] = rss_mb(running.pids())

    def round(self, number: int) -> None:
        everyone = {pid for _, running in self.started.values() for pid in running.pids()}
        for step in STEPS:
            names = [*self.started, *([DIRECT] if step == PACED else [])]
            self.order.shuffle(names)
            for name in names:
                if name == DIRECT:
                    self.results.segments.append(self.bench.direct(self.stub_port, number))
                else:
                    self._measure(name, everyone, step, number)

    def _measure(self, name: str, everyone: set[int], step: str, number: int) -> None:
        gateway, running = self.started[name]
        segment = self.bench.segment(gateway, running, everyone, step, number)
        self.results.segments.append(segment)
        if segment.noisy and self.repeats_left > 0 and self.in_vain < VAIN_REPEATS:
            self.repeats_left -= 1
            segment = self.bench.segment(gateway, running, everyone, step, number)
            self.results.segments.append(segment)
            self.in_vain = self.in_vain + 1 if segment.noisy else 0


def measure(run: Run, gateways: Sequence[Gateway], args: argparse.Namespace, folder: Path) -> int:
    """Rounds until they or the time are used up; how many there were."""
    began, longest = time.monotonic(), 0.0
    for number in range(args.rounds):
        if time.monotonic() - began + longest > args.budget:
            say(f"time is used up after {number} of {args.rounds} rounds")
            return number
        round_began = time.monotonic()
        if number % ROUNDS_PER_START == 0:
            run.stop()
            run.start([g for g in gateways if number < SLOW_ROUNDS or not g.slow], folder)
        run.round(number)
        run.remember_rss(number // ROUNDS_PER_START)
        took = time.monotonic() - round_began
        longest = max(longest, took) if number != SLOW_ROUNDS else took
        noise = share(s for s in run.results.segments if s.round == number and s.gateway != DIRECT)
        say(f"round {number + 1} of {args.rounds}: {took:.0f} s, {noise * 100:.0f} % of the segments disturbed")
    return int(args.rounds)


def carry_out(args: argparse.Namespace, folder: Path) -> int:
    programs = ROOT / "build/bench"
    build(programs)
    backends = free_ports(2)
    results, place = Results(), Place((backends[0], backends[1]), folder)
    gateways = choose(args, place, results)
    for name, reason in results.missing.items():
        say(f"{name}: {reason}")
    counts = usable()
    bench = Bench(programs / "load", args.gateway_core, args.load_core, args.seconds, args.max_foreign, counts)
    repeats = int(args.rounds * len(gateways) * len(STEPS) * MAX_REPEATS)
    run = Run(bench, results, backends[0], random.Random(args.seed), repeats)
    stub = start_stub(programs / "stub", backends, args.load_core, folder / "stub.log")
    began = time.monotonic()
    try:
        rounds = measure(run, gateways, args, folder)
    finally:
        run.stop()
        stub.stop()
    about = {
        "rounds": rounds,
        "seconds": args.seconds,
        "took_s": round(time.monotonic() - began, 1),
        "disturbed": round(share(s for s in results.segments if s.gateway != DIRECT), 3),
        "instructions": "counted" if counts else "not supported on this machine",
        "nice": args.nice,
        "cores": {"gateway": args.gateway_core, "load": args.load_core},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(as_json(results, about), indent=1) + "\n")
    print(table(results))
    say(f"written: {args.out}")
    return 1 if failures(results) else 0


def main(argv: Sequence[str]) -> int:
    args = parse_args(argv)
    os.sched_setaffinity(0, {args.load_core})
    try:
        os.nice(args.nice)  # inherited by everything that is started
    except PermissionError:
        say("--nice: only root may raise a priority")
        return 2
    with tempfile.TemporaryDirectory(prefix="joulegate-bench-") as folder:
        try:
            return carry_out(args, Path(folder))
        except NotStarted as error:
            say(str(error))
            return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
