"""What live traffic teaches about a profile: one factor for latency and one for watts per (TP, clock).

Pure: an observation and a state give a new state. A factor is live over profiled, learnt as a decaying mean of
logarithms that starts at 1, with how unsure it is; a controller divides its SLO by `slack` and multiplies watts by
`watts_factor`. A factor that stays far from 1 raises a drift alarm: the profile should be measured again. Owns no clock
and no file; `residuals` and `restore` are how the state goes into a profile and back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from profiles.profile import UNKNOWN, Residual

LEAST, MOST = 0.5, 2.0  # a factor outside says that something else is wrong: a wrong model, a throttled card
LATENCY, WATTS = "latency", "watts"


@dataclass(frozen=True, slots=True)
class Rule:
    """How fast is learnt and when an alarm is raised. Deviations are logarithms, so 0.1 is about 10 %.

    Before anything is seen, the profile is trusted as if `prior_samples` observations with spread `prior_sd` had agreed
    with it. `weight` is what a new observation gets once there are many.
    """

    weight: float = 0.05
    prior_sd: float = 0.2
    prior_samples: int = 4
    margin_sd: float = 1.64  # one-sided 95 %
    drift_ignored: float = 0.1  # deviation that never adds up to an alarm: what a profile is allowed to be off
    drift_limit: float = 3.0  # 20 % off raises it after some 40 observations, twice as slow after 6


DEFAULT = Rule()


@dataclass(frozen=True, slots=True)
class Observation:
    """One window of live traffic at a steady clock, beside what the profile says of the same load. A pair that could
    not be taken is None or UNKNOWN. Compare like with like: TBT p50 with TBT p50, at the load that was offered."""

    tp: int
    clock_mhz: int
    latency_s: float | None = None
    profiled_latency_s: float | None = None
    watts: float | None = None
    profiled_watts: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Logarithm of a factor: decaying mean and variance of one observation, and the two sums of the drift alarm."""

    mean: float = 0.0
    variance: float = DEFAULT.prior_sd**2
    samples: int = 0
    above: float = 0.0
    below: float = 0.0

    def sd(self, rule: Rule) -> float:
        """How unsure the mean is; falls as samples come, to the floor that forgetting sets."""
        return math.sqrt(self.variance / _effective(self.samples, rule))

    @property
    def factor(self) -> float:
        return min(max(math.exp(self.mean), LEAST), MOST)

    def seen(self, deviation: float, rule: Rule) -> Estimate:
        # One wild window counts as the clamp, so that it cannot move the factor further than the clamp allows.
        deviation = min(max(deviation, math.log(LEAST)), math.log(MOST))
        weight = 1 / _effective(self.samples + 1, rule)
        surprise = deviation - self.mean
        return Estimate(
            mean=self.mean + weight * surprise,
            variance=(1 - weight) * (self.variance + weight * surprise**2),
            samples=self.samples + 1,
            above=max(0.0, self.above + deviation - rule.drift_ignored),
            below=max(0.0, self.below - deviation - rule.drift_ignored),
        )


@dataclass(frozen=True, slots=True)
class Drift:
    """The profile has been off for long at this (TP, clock): measure it again."""

    tp: int
    clock_mhz: int
    quantity: str  # latency or watts
    factor: float
    samples: int

    def __str__(self) -> str:
        way = "above" if self.factor >= 1 else "below"
        return (
            f"TP{self.tp} at {self.clock_mhz} MHz: live {self.quantity} stays {abs(self.factor - 1):.0%} {way} the "
            f"profile ({self.samples} observations); measure it again"
        )


@dataclass(frozen=True, slots=True)
class Correction:
    """The state. Unseen (TP, clock) count as the profile says, with the prior's doubt."""

    estimates: Mapping[tuple[int, int, str], Estimate] = field(default_factory=dict)
    rule: Rule = DEFAULT

    def observe(self, seen: Observation) -> Correction:
        """The state after one more window; the same state if it tells nothing."""
        learnt = {
            (seen.tp, seen.clock_mhz, quantity): self.estimate(seen.tp, seen.clock_mhz, quantity).seen(ratio, self.rule)
            for quantity, ratio in (
                (LATENCY, _log_ratio(seen.latency_s, seen.profiled_latency_s)),
                (WATTS, _log_ratio(seen.watts, seen.profiled_watts)),
            )
            if ratio is not None
        }
        return replace(self, estimates={**self.estimates, **learnt}) if learnt else self

    def estimate(self, tp: int, clock_mhz: int, quantity: str) -> Estimate:
        return self.estimates.get((tp, clock_mhz, quantity)) or Estimate(variance=self.rule.prior_sd**2)

    def latency_factor(self, tp: int, clock_mhz: int) -> float:
        """Live latency over the profile's, 0.5 to 2."""
        return self.estimate(tp, clock_mhz, LATENCY).factor

    def watts_factor(self, tp: int, clock_mhz: int) -> float:
        """Live watts over the profile's, 0.5 to 2."""
        return self.estimate(tp, clock_mhz, WATTS).factor

    def margin(self, tp: int, clock_mhz: int) -> float:
        """At least 1: by how much latency may still be worse than corrected. Falls towards 1 as traffic is seen."""
        return math.exp(self.rule.margin_sd * self.estimate(tp, clock_mhz, LATENCY).sd(self.rule))

    def slack(self, tp: int, clock_mhz: int) -> float:
        """What to divide latency limits by: the factor and the margin together (`slack` of ProfileIndex.capacity)."""
        return self.latency_factor(tp, clock_mhz) * self.margin(tp, clock_mhz)

    def drifts(self) -> tuple[Drift, ...]:
        """Every alarm that stands; an alarm falls by itself when live and profile agree again for as long."""
        return tuple(
            Drift(tp, clock_mhz, quantity, estimate.factor, estimate.samples)
            for (tp, clock_mhz, quantity), estimate in sorted(self.estimates.items())
            if max(estimate.above, estimate.below) > self.rule.drift_limit
        )

    def residuals(self) -> tuple[Residual, ...]:
        """The rows to save with the profile: `replace(profile, residuals=correction.residuals())`."""
        rows = []
        for tp, clock_mhz in sorted({(tp, clock_mhz) for tp, clock_mhz, _ in self.estimates}):
            latency, watts = (self.estimate(tp, clock_mhz, quantity) for quantity in (LATENCY, WATTS))
            rows.append(
                Residual(
                    tp=tp,
                    clock_mhz=clock_mhz,
                    latency=latency.factor,
                    watts=watts.factor,
                    latency_sd=latency.sd(self.rule),
                    watts_sd=watts.sd(self.rule),
                    samples=latency.samples,
                    watts_samples=watts.samples,
                )
            )
        return tuple(rows)


def restore(residuals: Iterable[Residual], rule: Rule = DEFAULT) -> Correction:
    """The state that was saved; what the drift alarm had summed up starts again at 0."""
    estimates: dict[tuple[int, int, str], Estimate] = {}
    for row in residuals:
        for quantity, factor, sd, samples in (
            (LATENCY, row.latency, row.latency_sd, row.samples),
            (WATTS, row.watts, row.watts_sd, row.watts_samples),
        ):
            if samples:
                mean = math.log(min(max(factor, LEAST), MOST))
                variance = sd**2 * _effective(samples, rule)
                estimates[row.tp, row.clock_mhz, quantity] = Estimate(mean, variance, samples)
    return Correction(estimates, rule)


def _effective(samples: int, rule: Rule) -> float:
    """How many observations the mean stands for: the prior's and those seen, at most what the decay remembers."""
    return min(rule.prior_samples + samples, 1 / rule.weight)


def _log_ratio(live: float | None, profiled: float | None) -> float | None:
    if live is None or profiled is None or not (0 < live < UNKNOWN and 0 < profiled < UNKNOWN):
        return None
    return math.log(live / profiled)
