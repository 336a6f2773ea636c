"""Every tick's input and output, as rows that tell what has changed since the row before; and back again.

Owns the shape of the rows of kind `decision`. A key row holds everything, the state included; it comes first, and again
every KEY_S, so that a log whose beginning is gone can still be read. Rows share frozen values with the controller and
are encoded where they are written. Infinity is null, as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cache
from math import inf
from typing import Any

import msgspec

from controller.knowledge import Knowledge, ServiceKnowledge, Settings
from controller.overrides import Order
from controller.planning import ServicePlan
from controller.state import ControllerState, Decision
from core.instances import (
    Action,
    ClassCount,
    Seen,
    SeenGpus,
    SeenInstance,
    SeenPool,
    SeenService,
    SeenWaiting,
    State,
)  # fmt: skip
from core.service import LauncherSpec, ServiceSpec
from profiles.engine_model import EngineModel, gpu_of, load_engine_model

KEY_S = 1800.0
Row = dict[str, Any]
BLANK = SeenInstance("", "", "", 0, State.STARTING, 0, 0.0)
INSTANCE = tuple(field.name for field in fields(SeenInstance))
NOTHING_SEEN = Seen(0.0, (), ())


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a tick is given. `state` None: what the tick before has left."""

    state: ControllerState | None
    seen: Seen
    knowledge: Knowledge
    interval_s: float
    answer: Mapping[str, ServicePlan] | None
    orders: Sequence[Order]


class TapeWriter:
    def __init__(self) -> None:
        self._seen: Seen | None = None
        self._knowledge: Knowledge | None = None
        self._key_s = -inf

    def row(self, state: ControllerState, inputs: Inputs, decision: Decision) -> Row:
        """`state`: as the tick was given it."""
        seen, row = inputs.seen, Row(n=state.ticks)
        if self._seen is None or seen.now_s - self._key_s >= KEY_S:
            self._seen, self._knowledge, self._key_s = NOTHING_SEEN, None, seen.now_s
            row |= {"key": True, "state": state, "interval_s": inputs.interval_s}
        if inputs.knowledge != self._knowledge:
            row["knowledge"] = _knowledge_row(inputs.knowledge)
        row["seen"] = seen_row(self._seen, seen)
        if inputs.answer is not None:
            row["answer"] = inputs.answer
        if inputs.orders:
            row["orders"] = list(inputs.orders)
        self._seen, self._knowledge = seen, inputs.knowledge
        return row | {"decided": decided(decision)}


class TapeReader:
    """Rows in their order, from a key row on."""

    def __init__(self) -> None:
        self._seen: Seen | None = None
        self._knowledge = Knowledge()
        self._interval_s = 1.0

    def read(self, row: Row) -> Inputs | None:
        """None: nothing can be known before the first key row. ValueError where the row is not one of ours."""
        try:
            return self._read(row)
        except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
            raise ValueError(f"no row of a tick that today's code can read: {type(error).__name__}: {error}") from None

    def _read(self, row: Row) -> Inputs | None:
        state = None
        if row.get("key"):
            self._seen, self._interval_s = NOTHING_SEEN, row["interval_s"]
            state = msgspec.convert(row["state"], ControllerState)
        if self._seen is None:
            return None
        if "knowledge" in row:
            self._knowledge = _knowledge_of(row["knowledge"])
        self._seen = seen_of(self._seen, row["seen"])
        answer = msgspec.convert(row.get("answer"), dict[str, ServicePlan] | None)
        orders = msgspec.convert(row.get("orders", []), list[Order])
        return Inputs(state, self._seen, self._knowledge, self._interval_s, answer, orders)


# --- what was decided


def told(action: Action) -> Row:
    return {"action": type(action).__name__.lower()} | {f.name: _plain(getattr(action, f.name)) for f in fields(action)}


def decided(decision: Decision) -> Row:
    """Only what there is: most ticks decide nothing."""
    row: Row = {"due_s": decision.next_due_s}
    for name, actions in (("actions", decision.actions), ("proposed", decision.proposed)):
        if actions:
            row[name] = [told(action) for action in actions]
    if decision.notes:
        row["notes"] = [dict(note) for note in decision.notes]
    if decision.ask is not None:
        row["ask"] = {"services": list(decision.ask.asked), "reason": decision.ask.reason}
    return row


def _plain(value: object) -> object:
    return {f.name: getattr(value, f.name) for f in fields(value)} if hasattr(value, "__dataclass_fields__") else value  # type: ignore[arg-type]


# --- what was seen


def seen_row(before: Seen, seen: Seen) -> Row:
    row: Row = {"now_s": seen.now_s, "wall_s": seen.wall_s}
    if seen.pools != before.pools:
        row["pools"] = [_changed(SeenPool("", "", 0, 0, 0, True), pool) for pool in seen.pools]
    known, there = {i.id: i for i in before.instances}, {i.id for i in seen.instances}
    if changes := [row_of for i in seen.instances if (row_of := _instance_row(known.get(i.id), i))]:
        row["instances"] = changes
    if gone := [name for name in known if name not in there]:
        row["gone"] = gone
    if _order(known, seen) != [i.id for i in seen.instances]:
        row["order"] = [i.id for i in seen.instances]
    if services := [_service_row(before, service) for service in seen.services]:
        row["services"] = services
    if seen.gpus != before.gpus:
        row["gpus"] = [seen.gpus.total, seen.gpus.used, seen.gpus.bare]
    if seen.gpus.islands != before.gpus.islands:
        row["islands"] = seen.gpus.islands
    return row


def seen_of(before: Seen, row: Row) -> Seen:
    known = {i.id: i for i in before.instances if i.id not in set(row.get("gone", ()))}
    for one in row.get("instances", ()):
        values = {name: _instance_value(name, value) for name, value in one.items()}
        known[one["id"]] = replace(known.get(one["id"], BLANK), **values)
    pools = tuple(_pool_of(pool) for pool in row["pools"]) if "pools" in row else before.pools
    services = tuple(_service_of(before, service) for service in row.get("services", ()))
    islands = tuple(tuple(island) for island in row["islands"]) if "islands" in row else before.gpus.islands
    gpus = replace(SeenGpus(*row["gpus"]) if "gpus" in row else before.gpus, islands=islands)
    instances = tuple(known[name] for name in row.get("order", known))
    return Seen(row["now_s"], pools, instances, services, gpus, row["wall_s"])


def _order(known: Mapping[str, SeenInstance], seen: Seen) -> list[str]:
    """As a reader will have them: who was there, then who is new."""
    there = {i.id for i in seen.instances}
    return [name for name in known if name in there] + [i.id for i in seen.instances if i.id not in known]


def _instance_row(before: SeenInstance | None, instance: SeenInstance) -> Row:
    if instance == before:
        return {}
    return {"id": instance.id} | _changed(before or BLANK, instance)


def _instance_value(name: str, value: Any) -> Any:
    if name == "state":
        return State(value)
    return tuple(value) if name == "gpus" else inf if value is None else value


def _changed(before: Any, after: Any) -> Row:
    names = INSTANCE if isinstance(after, SeenInstance) else [field.name for field in fields(after)]
    changed = {name: value for name in names if (value := getattr(after, name)) != getattr(before, name)}
    return {name: value.value if isinstance(value, Enum) else value for name, value in changed.items()}


def _pool_of(row: Row) -> SeenPool:
    waiting = tuple(SeenWaiting(**one) for one in row.get("waiting", ()))
    return replace(SeenPool("", "", 0, 0, 0, True), **{**row, "waiting": waiting})


def _service_row(before: Seen, service: SeenService) -> Row:
    """Counts by class, where they have changed."""
    old = next((one for one in before.services if one.name == service.name), SeenService(service.name, ()))
    row: Row = {"name": service.name, "watts": service.watts, "quality": service.quality}
    row |= {name: age_s for name in ("age_s", "watts_age_s") if (age_s := getattr(service, name))}
    same = len(old.counts) == len(service.counts)
    changes = {
        str(place): [getattr(count, field.name) for field in fields(ClassCount)]
        for place, count in enumerate(service.counts)
        if not same or count != old.counts[place]
    }
    return row | ({"counts": changes} if changes else {})


def _service_of(before: Seen, row: Row) -> SeenService:
    old = next((one for one in before.services if one.name == row["name"]), SeenService(row["name"], ()))
    counts = dict(enumerate(old.counts)) | {int(at): ClassCount(*one) for at, one in row.get("counts", {}).items()}
    return SeenService(
        row["name"], tuple(counts[place] for place in sorted(counts)), row["watts"], row["quality"],
        row.get("age_s", 0.0), row.get("watts_age_s", 0.0),
    )  # fmt: skip


# --- what it was decided with


def _knowledge_row(knowledge: Knowledge) -> Row:
    """Engine models by name: today's code brings today's. Nothing of how instances are started, which may hold keys."""
    services = {
        name: {
            "spec": replace(one.spec, launcher=LauncherSpec(one.spec.launcher.kind)),
            "model": [one.model.model, one.model.gpu] if one.model is not None else None,
            "step_tokens": {str(tp): tokens for tp, tokens in one.step_tokens.items()},
            "switch_j": {str(tp): joules for tp, joules in one.switch_j.items()},
            "wake_j": {str(tp): joules for tp, joules in one.wake_j.items()},
            "reshard_j": one.reshard_j,
        }
        for name, one in knowledge.services.items()
    }
    settings = _changed(Settings(), knowledge.settings)
    return {"services": services, "settings": settings, "gpus": knowledge.gpus, "node_gpus": knowledge.node_gpus,
            "mode": knowledge.mode}  # fmt: skip


@cache
def _model_of(name: str, card: str) -> EngineModel:
    return load_engine_model(name, gpu_of(card))


def _knowledge_of(row: Row) -> Knowledge:
    services = {
        name: ServiceKnowledge(
            msgspec.convert(one["spec"], ServiceSpec),
            _model_of(*one["model"]) if one["model"] is not None else None,
            {int(tp): tokens for tp, tokens in one["step_tokens"].items()},
            {int(tp): (start_j, stop_j) for tp, (start_j, stop_j) in one.get("switch_j", {}).items()},
            {int(tp): joules for tp, joules in one.get("wake_j", {}).items()},
            tuple((before, after, joules) for before, after, joules in one.get("reshard_j", ())),
        )
        for name, one in row["services"].items()
    }
    values: Row = {name: inf if value is None else value for name, value in row["settings"].items()}
    return Knowledge(services, replace(Settings(), **values), row["gpus"], row["node_gpus"], row["mode"])
