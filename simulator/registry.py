"""The policies that can be compared, by name. Owns the list and its order; each policy lives in a file of its own.

A policy takes the case, the GPUs that are available and somebody to tell of its progress, and returns its run. What
it runs it runs through `case.run`, so that every run is counted and sampled alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.baselines import autoscale, dynamollm, ecofaas, pegasus, retail, static_best, throttllem, voltana
from simulator.baselines.chosen import chosen
from simulator.case import Case
from simulator.joulegate_policy import joulegate
from simulator.policies import Say, multipool, singlepool
from simulator.run import Ran

Run = Callable[[Case, int, Say], Ran]  # (case, GPUs available, progress)
DYNAMOLLM = "DynamoLLM (HPCA 2025)"


@dataclass(frozen=True, slots=True)
class Policy:
    """`source`: where the policy comes from, as reports print it."""

    name: str
    source: str
    run: Run


POLICIES: tuple[Policy, ...] = (
    Policy("singlepool", DYNAMOLLM, singlepool),
    Policy("multipool", DYNAMOLLM, multipool),
    Policy("scaleinst", DYNAMOLLM, chosen("scaleinst", dynamollm.scaleinst)),
    Policy("scaleshard", DYNAMOLLM, chosen("scaleshard", dynamollm.scaleshard)),
    Policy("scalefreq", DYNAMOLLM, chosen("scalefreq", dynamollm.scalefreq)),
    Policy("dynamollm", DYNAMOLLM, chosen("dynamollm", dynamollm.run)),
    Policy("autoscale", "Kubernetes HorizontalPodAutoscaler", chosen("autoscale", autoscale.run)),
    Policy("pegasus", "Pegasus (ISCA 2014)", chosen("pegasus", pegasus.run)),
    Policy("retail", "ReTail (HPCA 2022)", chosen("retail", retail.run)),
    Policy("throttllem", "throttLL'eM (HPCA 2025)", chosen("throttllem", throttllem.run)),
    Policy("voltana", "VoltanaLLM (arXiv 2509.04827)", chosen("voltana", voltana.run)),
    Policy("ecofaas", "EcoFaaS (ISCA 2024)", chosen("ecofaas", ecofaas.run)),
    Policy("static-best", "search over static plans, with hindsight", static_best.run),
    Policy("joulegate", "the controller that serves", joulegate),
)


def policy_of(name: str) -> Policy:
    """KeyError names those there are."""
    found = {policy.name: policy for policy in POLICIES}
    if name not in found:
        raise KeyError(f"unknown policy {name}; known: {', '.join(found)}")
    return found[name]
