"""`python -m simulator.serve`: one emulated engine as a process, with little to import. Owns the flags only."""

from __future__ import annotations

import argparse
import sys

import uvloop

from simulator.server import RUNNERS, EngineOptions, run_engine


def parse(arguments: list[str]) -> EngineOptions:
    parser = argparse.ArgumentParser(prog="joulegate engine", description="An emulated vLLM server.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--profile", required=True, help="an engine model of profiles/models_h100.yaml")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--clock-mhz", type=int, default=1980)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--speed", type=float, default=1.0, help="engine seconds in a real second")
    parser.add_argument("--served-model-name", default="", help="default: the profile's name")
    parser.add_argument("--max-model-len", type=int, default=32768)
    parser.add_argument("--runner", choices=RUNNERS, default="generate")
    parser.add_argument("--shutdown-timeout", type=float, default=0.0, help="seconds to finish answers after SIGTERM")
    parser.add_argument("--start-delay", type=float, default=0.0, help="seconds before the port opens")
    parser.add_argument("--nvml-state", default="", help="file of emulated GPUs whose clock this engine follows")
    parser.add_argument("--gpus", default="", help="their UUIDs, with commas, as many as --tp")
    parser.add_argument("--api-key", default=None)
    values = vars(parser.parse_args(arguments))
    values["shutdown_timeout_s"] = values.pop("shutdown_timeout")
    values["start_delay_s"] = values.pop("start_delay")
    return EngineOptions(**values)


def main() -> int:
    try:
        uvloop.run(run_engine(parse(sys.argv[1:])))
    except ValueError as error:
        sys.stderr.write(f"joulegate engine: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
