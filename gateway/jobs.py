"""Admin work that takes a while: started with 202, asked about by id. Owns a bounded list of jobs, newest kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Literal

KEEP = 1000
JobState = Literal["running", "done"]


@dataclass(frozen=True, slots=True)
class Job:
    id: str
    kind: str
    target: str
    started_t: float
    finished: Callable[[], bool]

    @property
    def state(self) -> JobState:
        return "done" if self.finished() else "running"


class Jobs:
    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._numbers = count(1)

    def add(self, kind: str, target: str, started_t: float, finished: Callable[[], bool]) -> Job:
        job = Job(f"job-{next(self._numbers)}", kind, target, started_t, finished)
        self._jobs[job.id] = job
        if len(self._jobs) > KEEP:
            self._jobs.popitem(last=False)
        return job

    def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)
