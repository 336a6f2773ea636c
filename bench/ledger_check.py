"""Does the ledger add up? Half an hour of a simulated cluster per seed, its physics off by a tenth from the model, with
deaths, drains, sleep, counters that restart or fall silent, and answers that move.

    python -m bench.ledger_check [SEEDS] [SECONDS]

Prints the largest error of any ten minutes (requests + idle + parked + starting + switching against what was spent),
the residual, and how far the unscaled model is off after ten minutes of learning."""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from tests.ledger_rig import Rig


def check(seed: int, seconds: int) -> dict[str, Any]:
    told = Rig(seed, seconds=seconds).run()
    return {
        "worst_ten_minutes": max(map(abs, told.shares())),
        "residual_share": told.total("residual_j") / told.total("meter_j"),
        "modelled_share": told.total("filled_j") / told.total("meter_j"),
        "unscaled_error": told.foretold(600),
        "moved": told.moved, "counter_restarts": told.resets, "starts": told.starts, "requests": len(told.bills),
    }  # fmt: skip


def main() -> None:
    seeds, seconds = (int(word) for word in (*sys.argv[1:3], *("20", "1800")[len(sys.argv[1:3]) :]))
    rows = [check(seed, seconds) for seed in range(seeds)]
    summary = {
        name: {
            "median": statistics.median(abs(row[name]) for row in rows),
            "largest": max(abs(row[name]) for row in rows),
        }
        for name in ("worst_ten_minutes", "residual_share", "modelled_share", "unscaled_error")
    }
    counts = {name: sum(row[name] for row in rows) for name in ("moved", "counter_restarts", "starts", "requests")}
    print(json.dumps({"seeds": seeds, "seconds": seconds, **summary, **counts}, indent=1))


if __name__ == "__main__":
    main()
