"""The settings that the baselines' sources leave open, as swept on each public trace for least energy at 99 % in every
class (bench/sweep_baselines.py; docs/baselines.md has the table). A baseline is judged on one trace with the settings
of the other, which `Case.swept_on` names. Owns the values; each baseline owns what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simulator.baselines import autoscale, dynamollm, ecofaas, pegasus, retail, throttllem, voltana
from simulator.baselines.clocks import Ladder
from simulator.case import Case
from simulator.policies import Say
from simulator.run import Ran

CHOSEN: Mapping[str, Mapping[str, Any]] = {
    "code": {
        "scaleinst": dynamollm.Options(peak_s=5.0, headroom=0.6, pools=("LL",)),
        "scaleshard": dynamollm.Options(peak_s=5.0, headroom=1.2, pools=("LL",)),
        "scalefreq": dynamollm.Options(peak_s=5.0, headroom=0.6, pools=("LL",), clock_headroom=1.2, steps_mhz=1980),
        "dynamollm": dynamollm.Options(
            peak_s=5.0, headroom=1.2, pools=("ML", "LL"), clock_headroom=1.2, steps_mhz=1980
        ),
        "autoscale": autoscale.Options(4, 0.2),
        "pegasus": pegasus.Options(ladder=Ladder(4, 1.0, 1400)),
        "retail": retail.Options(ladder=Ladder(4, 1.0, 1400)),
        "throttllem": throttllem.Options(Ladder(4, 1.0, 1400), autoscale.Options(4, 0.2)),
        "voltana": voltana.Options(ladder=Ladder(4, 1.0, 1400)),
        "ecofaas": ecofaas.Options((1400, 1980), tp=4, share=1.0, spare=1),
    },
    "conversation": {
        "scaleinst": dynamollm.Options(peak_s=5.0, headroom=0.6, pools=("LL",)),
        "scaleshard": dynamollm.Options(peak_s=60.0, headroom=0.6, pools=("LL",)),
        "scalefreq": dynamollm.Options(peak_s=5.0, headroom=0.6, pools=("LL",), clock_headroom=1.2, steps_mhz=1980),
        "dynamollm": dynamollm.Options(
            peak_s=5.0, headroom=0.6, pools=("ML", "LL"), clock_headroom=1.2, steps_mhz=1980
        ),
        "autoscale": autoscale.Options(4, 0.2),
        "pegasus": pegasus.Options(ladder=Ladder(4, 1.0, 1000)),
        "retail": retail.Options(ladder=Ladder(4, 1.0, 1000)),
        "throttllem": throttllem.Options(Ladder(4, 1.0, 1400), autoscale.Options(4, 0.2)),
        "voltana": voltana.Options(ladder=Ladder(4, 1.0, 1200)),
        "ecofaas": ecofaas.Options((1400, 1980), tp=4, share=1.0, spare=1),
    },
}


def chosen(name: str, run: Callable[..., Ran]) -> Callable[[Case, int, Say], Ran]:
    """`run` with the settings that `case.swept_on` chose for the baseline of this name."""
    return lambda case, gpus, say: run(case, gpus, say, CHOSEN[case.swept_on][name])
