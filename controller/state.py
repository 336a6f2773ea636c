"""What the controller carries from tick to tick: frozen values, one per service. Owns no decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.demand import Demand
from controller.learning import Learning
from controller.overrides import Override
from controller.planning import Ask, ServicePlan
from controller.pressure import Standing
from core.instances import Action


@dataclass(frozen=True, slots=True)
class Health:
    """Attainment by minutes. `bad`: minutes in a row under what was promised; until `harmed_until_s` everything goes to
    its fastest. `trim` stretches the planned demand: up quickly after a miss, down slowly while nothing is missed.
    `minutes`: (judged, attained) of the last hour. `classes`: the same by class, forgotten by half in half an hour."""

    minute_s: float = 0.0
    judged: int = 0
    attained: int = 0
    bad: int = 0
    harmed_until_s: float = 0.0
    trim: float = 1.0
    minutes: tuple[tuple[int, int], ...] = ()
    classes: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceState:
    """`plan`: the newest. `approved`: the one that `advise` follows: what an operator has applied, or what was in force
    when the mode became advise. `asked_s`: when the plan that is being made was asked for. `surplus_s`: since when
    fewer instances were wanted. `starts_s`: when instances were started, within the last hour. `kv_tokens`: by pool, at
    the last look. `doubted`: what of the last observation was too old to be trusted."""

    demand: Demand = field(default_factory=Demand)
    plan: ServicePlan | None = None
    approved: ServicePlan | None = None
    asked_s: float | None = None
    clocks_s: float = 0.0
    standings: Mapping[str, Standing] = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    surplus_s: float | None = None
    starts_s: tuple[float, ...] = ()
    kv_tokens: Mapping[str, int] = field(default_factory=dict)
    learning: Learning = field(default_factory=Learning)
    failures: Mapping[str, int] = field(default_factory=dict)
    retry_at_s: Mapping[str, float] = field(default_factory=dict)
    doubted: tuple[str, ...] = ()

    def in_force(self, mode: str) -> ServicePlan | None:
        """None: the configured instances are what is wanted."""
        return {"enforce": self.plan, "advise": self.approved}.get(mode)


@dataclass(frozen=True, slots=True)
class ControllerState:
    """`excluded`: GPUs that the cluster was told not to use."""

    services: Mapping[str, ServiceState] = field(default_factory=dict)
    ticks: int = 0
    overrides: tuple[Override, ...] = ()
    excluded: tuple[str, ...] = ()


def planned_state(service: str, plan: ServicePlan) -> ControllerState:
    """A start with a plan that is there already: from history, or from before a restart."""
    return ControllerState({service: ServiceState(plan=plan)})


@dataclass(frozen=True, slots=True)
class Decision:
    """`actions` are to be applied; `proposed` are what a plan of its own would do where the mode does not let it.
    `ask`: a plan to be made; it comes with a later tick. `notes`: what happened and why, for the log."""

    actions: tuple[Action, ...]
    next_due_s: float
    proposed: tuple[Action, ...] = ()
    ask: Ask | None = None
    notes: tuple[Mapping[str, object], ...] = ()
