"""Why recent requests went where they went: references kept while they pass, put into words only when asked.

Owns the requests under way and a bounded ring of those that ended. Keeps numbers and names only: of a request that has
ended neither its body nor its text is held."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from controller.planning import ServicePlan
from core.request import Ask
from gateway.job import Job
from gateway.service import Sized
from pools.router import Weighed

KEPT = 1024  # some 3 kB each
NO_PLAN: Callable[[str], ServicePlan | None] = lambda service: None  # noqa: E731


class Trail(Struct, frozen=True):
    """What is known of one request. `row`: of the run log, None while it is under way."""

    request_id: str
    service: str
    sized: Sized | None
    ask: Ask | None
    weighed: Weighed | None
    instance: str
    plan: ServicePlan | None
    row: Mapping[str, object] | None


@dataclass(slots=True)
class Recent:
    running: dict[str, Job] = field(default_factory=dict)
    ended: deque[Trail] = field(default_factory=lambda: deque(maxlen=KEPT))

    def end(self, job: Job, row: Mapping[str, object]) -> None:
        self.running.pop(job.request_id, None)
        self.ended.append(_trail(job, row))

    def find(self, request_id: str) -> Trail | None:
        """The latest of that id: clients may name their requests."""
        job = self.running.get(request_id)
        if job is not None:
            return _trail(job, None)
        return next((one for one in reversed(self.ended) if one.request_id == request_id), None)


def _trail(job: Job, row: Mapping[str, object] | None) -> Trail:
    name = job.service.spec.name if job.service is not None else ""
    return Trail(job.request_id, name, job.sized, job.ask, job.weighed, job.instance, job.plan, row)
