"""Answers of runs kept in a folder, so that a long evaluation that was stopped goes on where it was.

Owns the key: what was asked, of which trace, and of which code. Anything that could change an answer changes the key;
a file that cannot be read counts as absent.
"""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

from simulator.compare import Answer, Task

ROOT = Path(__file__).parent.parent
CODE = ("core", "predictor", "profiles", "pools", "controller", "simulator")


class AnswerCache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found = 0
        self._code = code_version()
        self._traces: dict[Path, str] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, task: Task) -> Answer | None:
        try:
            answer = pickle.loads(self._path(task).read_bytes())
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError):
            return None
        if not isinstance(answer, Answer):
            return None
        self.found += 1
        return answer

    def put(self, task: Task, answer: Answer) -> None:
        """Whole or not at all: what is killed while writing leaves no half file under the name."""
        path = self._path(task)
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(pickle.dumps(answer))
        unfinished.replace(path)

    def _path(self, task: Task) -> Path:
        trace = task.rows.path
        if trace not in self._traces:
            self._traces[trace] = hashlib.sha256(trace.read_bytes()).hexdigest()
        asked = (task.what, task.seed, task.experiment, task.rates, task.sampled, self._traces[trace], self._code)
        return self.folder / f"{hashlib.sha256(repr(asked).encode()).hexdigest()[:32]}.pickle"


def code_version() -> str:
    """Of every source file and table that a simulated run can reach."""
    whole = hashlib.sha256()
    for package in CODE:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in (".py", ".yaml"):
                whole.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()
