"""A stream at its instance: when it has to leave. Asked by the stream's pipe now and then, and when it is overlong."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from core.clock import Clock
from core.errors import UpstreamTimeout
from core.instances import State
from gateway.attempt import UNBEGUN, Leave
from gateway.job import Job
from gateway.resume import why_it_stays
from gateway.service import Service
from pools.instance import Instance, Slot
from pools.overrun import Choice, Stream, asked_again, asked_from, choose, elsewhere, site


class Stay:
    """Asked now and then whether a stream may stay where it is."""

    def __init__(self, job: Job, service: Service, slot: Slot, clock: Clock, count: Callable[[str], None]) -> None:
        self._job = job
        self._service = service
        self._slot, self._instance = slot, slot.instance
        self._now_s = clock.now_s
        self._still = 0
        self._count = count

    def watch(self, went_on: bool) -> None:
        """UpstreamTimeout when the instance fails its probes and nothing comes from it either; Leave when it is to be
        emptied, this stream can go on elsewhere and there is an elsewhere; or when it was due to begin, has not, and
        the ladder lets such streams go."""
        self._still = 0 if went_on else self._still + 1
        instance = self._instance
        if self._still >= 2 and instance.state in (State.FAILED, State.STOPPED):
            raise UpstreamTimeout("the instance fails its probes and sends nothing")
        if instance.leave and self.elsewhere() and not why_it_stays(self._job):
            raise Leave("drain")
        may_leave(self._job, self._service, self._slot, self._now_s())

    @property
    def edge(self) -> float:
        """Tokens at which the answer is longer than predicted."""
        sized = self._job.sized
        if self._job.answer is None or sized is None or self._instance.model is None:
            return inf
        return asked_from(self._service.spec, sized.output_size)

    def overrun(self, events: int) -> float:
        """Weighs what to do with an answer of `events` tokens or more; returns when to ask again, or raises Leave."""
        if self._job.answer is None or self._job.answer.fold().finish:
            return inf
        choice = weigh_overrun(self._job, self._service, self._instance, self._now_s())
        self._count(choice.action)
        if choice.action == "boost":
            self._instance.boosts_wanted += 1
        if choice.action == "move" and not why_it_stays(self._job):
            raise Leave("overrun")
        return asked_again(self._service.spec, events)

    def elsewhere(self) -> bool:
        """Whether another instance is open now."""
        now_s, here = self._now_s(), self._instance
        return any(i is not here and i.open_to(now_s) for i in self._service.admission.router.instances.values())


def may_leave(job: Job, service: Service, slot: Slot, now_s: float) -> None:
    """Leave where the ladder lets go of what has not begun, and this is overdue and would be taken elsewhere."""
    if service.admission.router.lets_go(slot, now_s, job.refused):
        raise Leave(UNBEGUN)


def weigh_overrun(job: Job, service: Service, here: Instance, now_s: float) -> Choice:
    """With what the router knows of the instances that serve the longer answers."""
    answer, sized, timing = job.answer, job.sized, job.timing
    assert answer is not None and sized is not None and timing is not None and here.model is not None
    spec, limit = service.spec, job.parsed.max_tokens if job.parsed else None
    room = spec.context_tokens - len(answer.fold().prompt)
    stream = Stream(
        prompt_tokens=len(answer.prompt),
        out_tokens=len(answer.ids),
        most_tokens=max(len(answer.ids) + 1, min(limit or room, room)),
        late=timing.gaps_late,
        tbt_limit_s=timing.tbt_limit_s,
        length=service.predictor.length(sized.told),
    )
    others = elsewhere(spec, service.admission.router.instances.values(), here, stream, now_s)
    return choose(stream, site(here, here.model, 0, 0), others)
